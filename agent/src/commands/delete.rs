//! `drumlin delete`: deletes a retained resource, after confirmation.

use std::io::{self, BufRead, IsTerminal};

use anyhow::bail;
use drumlin_reconciler::kept::Deletion;

use super::print::{note, print};
use crate::cli::DeleteArguments;

/// Shows the resource, asks for confirmation and deletes it.
pub(crate) async fn run(arguments: &DeleteArguments) -> anyhow::Result<()> {
    let (host, handle) = (&arguments.host, &arguments.handle);
    let deletion = Deletion::of(host.endpoint.path(), &host.state_dir, handle).await?;
    print(&format!("this permanently deletes:\n{}", deletion.shown()));
    if !arguments.yes {
        if !io::stdin().is_terminal() {
            bail!(
                "nothing was deleted: standard input is not a terminal; pass --yes to delete without confirmation"
            );
        }
        note("type yes to delete it permanently:");
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if answer.trim() != "yes" {
            bail!("nothing was deleted");
        }
    }
    deletion.run().await?;
    print("deleted\n");
    Ok(())
}
