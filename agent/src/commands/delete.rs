//! `drumlin delete`: deletes a retained resource or an orphan, after confirmation.

use drumlin_reconciler::kept::Deletion;

use super::{confirm::confirm, object_name, print::print, repetition::until_complete};
use crate::cli::DeleteArguments;

/// Shows the resource, asks for confirmation and deletes it.
pub(crate) async fn run(arguments: &DeleteArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let (socket, state_dir) = (host.endpoint.path(), &host.state_dir);
    let mut deletion = match &arguments.name {
        None => Deletion::of(socket, state_dir, &arguments.what).await?,
        Some(name) => {
            let key = object_name::with_kind(&format!("{}/{name}", arguments.what))?;
            Deletion::of_orphan(socket, state_dir, &key).await?
        }
    };
    print(&deletion.shown());
    confirm(&arguments.confirmation)?;
    until_complete(async || deletion.run().await).await?;
    print(&format!("{}\n", deletion.told()));
    Ok(())
}
