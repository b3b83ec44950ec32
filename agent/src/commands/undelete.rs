//! `drumlin undelete`: makes a volume in the trash a volume again.

use drumlin_reconciler::trash::Trash;

use super::print::print;
use crate::cli::UndeleteArguments;

/// Gives it back.
pub(crate) async fn run(arguments: &UndeleteArguments) -> anyhow::Result<()> {
    let trash = Trash::read(arguments.endpoint.path()).await?;
    let row = trash.find(&arguments.which)?;
    let handle = trash.undelete(&row, arguments.name.as_deref()).await?;
    let next = if row.owner.is_empty() {
        String::new()
    } else {
        format!(
            "; it belongs to {}: the object gets it when it is declared again",
            row.owner
        )
    };
    print(&format!("{handle} is a volume again{next}\n"));
    Ok(())
}
