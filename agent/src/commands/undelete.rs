//! `drumlin undelete`: makes a volume in the trash a volume again.

use drumlin_reconciler::trash::Trash;

use super::print::print;
use crate::cli::UndeleteArguments;

/// Gives it back.
pub(crate) async fn run(arguments: &UndeleteArguments) -> anyhow::Result<()> {
    let trash = Trash::read(arguments.endpoint.path()).await?;
    let row = trash.find(&arguments.which)?;
    let name = arguments.name.as_deref();
    let handle = trash.undelete(&row, name).await?;
    let next = trash.outlook(&row, &handle, name).await;
    print(&format!("{handle} is a volume again{next}\n"));
    Ok(())
}
