//! `drumlin undelete`: makes a volume in the trash a volume again.

use drumlin_reconciler::trash::Trash;

use super::print::print_outcome;
use crate::cli::UndeleteArguments;

/// Gives it back.
pub(crate) async fn run(arguments: &UndeleteArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let trash = Trash::read(host.endpoint.path()).await?;
    let name = arguments.name.as_deref();
    let undeleted = trash
        .undelete(&arguments.which, name, &host.state_dir)
        .await?;
    print_outcome(arguments.output, &undeleted, &undeleted.render());
    Ok(())
}
