//! `drumlin kept`: lists resources that no object refers to.

use drumlin_reconciler::kept::{self, Scope};

use super::print::print;
use crate::cli::{KeptArguments, Output};

/// Prints the table.
pub(crate) async fn run(arguments: &KeptArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let scope = if arguments.all {
        Scope::All
    } else {
        Scope::Manifests
    };
    let kept = kept::list(host.endpoint.path(), &host.state_dir, scope).await?;
    print(&kept.render(Output::form(arguments.output)));
    Ok(())
}
