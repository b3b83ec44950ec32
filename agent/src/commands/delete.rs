//! `drumlin delete`: deletes a retained resource or an orphan, after confirmation.

use std::io::{self, BufRead, IsTerminal};

use anyhow::bail;
use drumlin_reconciler::kept::Deletion;

use super::{
    object_name,
    print::{note, print},
};
use crate::cli::DeleteArguments;

/// Shows the resource, asks for confirmation and deletes it.
pub(crate) async fn run(arguments: &DeleteArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let (socket, state_dir) = (host.endpoint.path(), &host.state_dir);
    let deletion = match &arguments.name {
        None => Deletion::of(socket, state_dir, &arguments.what).await?,
        Some(name) => {
            let key = object_name::with_kind(&format!("{}/{name}", arguments.what))?;
            Deletion::of_orphan(socket, state_dir, &key).await?
        }
    };
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
