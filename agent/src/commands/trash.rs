//! `drumlin trash`: lists deleted volumes that can be undeleted, or destroys some.

use drumlin_reconciler::trash::Trash;

use super::{confirm::confirm, print::print, repetition::until_complete};
use crate::cli::{Output, TrashArguments};

/// Lists the trash, or destroys what is named after confirmation.
pub(crate) async fn run(arguments: &TrashArguments) -> anyhow::Result<()> {
    let trash = Trash::read(arguments.endpoint.path()).await?;
    if arguments.destroy.is_empty() {
        print(&trash.render(Output::form(arguments.output)));
        return Ok(());
    }
    let found: Result<Vec<_>, _> = arguments
        .destroy
        .iter()
        .map(|one| trash.find(one))
        .collect();
    let found = found?;
    print("this permanently deletes:\n");
    for row in &found {
        let (owner, size, deleted) = (&row.owner, &row.size, &row.deleted);
        print(&format!("{}: {size}, {owner}, deleted {deleted}\n", row.id));
    }
    confirm(&arguments.confirmation)?;
    for row in &found {
        until_complete(|| trash.destroy(row)).await?;
    }
    print("deleted\n");
    Ok(())
}
