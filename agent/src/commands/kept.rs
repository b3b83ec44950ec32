//! `drumlin kept`: lists resources that no object refers to.

use drumlin_reconciler::{kept, status::Form};

use super::print::print;
use crate::cli::{KeptArguments, Output};

/// Prints the table.
pub(crate) async fn run(arguments: &KeptArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let kept = kept::list(host.endpoint.path(), &host.state_dir, arguments.all).await?;
    print(&kept.render(match arguments.output {
        None | Some(Output::Wide) => Form::Table,
        Some(Output::Json) => Form::Json,
    }));
    Ok(())
}
