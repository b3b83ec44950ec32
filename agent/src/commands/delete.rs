//! `drumlin delete`: deletes a retained resource or an orphan, after confirmation.

use drumlin_reconciler::kept::Deletion;

use super::{confirm::confirm, object_name, print::print};
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
    print(&format!(
        "this deletes, permanently unless its class has a trash:\n{}",
        deletion.shown()
    ));
    confirm(&arguments.confirmation)?;
    deletion.run().await?;
    print("deleted\n");
    Ok(())
}
