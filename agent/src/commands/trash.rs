//! `drumlin trash`: lists deleted volumes that can be undeleted, or destroys some.

use std::fmt::Write;

use drumlin_reconciler::trash::{Row, Trash};
use serde::Serialize;

use super::{
    confirm::confirm,
    print::{announce, print, print_outcome},
    repetition::until_complete,
};
use crate::cli::{Output, TrashArguments};

/// Volumes that were in the trash.
#[derive(Serialize)]
struct Destroyed {
    volumes: Vec<Row>,
}

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
    let output = arguments.output.and_then(Output::data);
    let mut text = "this permanently deletes:\n".to_owned();
    for row in &found {
        let (owner, size, deleted) = (&row.owner, &row.size, &row.deleted);
        let _ = writeln!(text, "{}: {size}, {owner}, deleted {deleted}", row.id);
    }
    announce(output, &text);
    confirm(&arguments.confirmation)?;
    for row in &found {
        until_complete(|| trash.destroy(row)).await?;
    }
    print_outcome(output, &Destroyed { volumes: found }, "deleted\n");
    Ok(())
}
