//! `drumlin delete`: deletes a retained resource or an orphan, after confirmation.

use anyhow::bail;
use drumlin_reconciler::kept::Deletion;

use super::{
    confirm::confirm,
    object_name,
    print::{announce, print_outcome},
    repetition::until_complete,
};
use crate::cli::DeleteArguments;

/// Shows the resource, asks for confirmation and deletes it.
pub(crate) async fn run(arguments: &DeleteArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let (socket, state_dir) = (host.endpoint.path(), &host.state_dir);
    let mut deletion = match &arguments.name {
        None if arguments.namespace.namespace.is_some() => {
            bail!("--namespace is of the name of an orphan; a handle stands alone")
        }
        None => Deletion::of(socket, state_dir, &arguments.what).await?,
        Some(name) => {
            let key = object_name::with_kind_in(
                &format!("{}/{name}", arguments.what),
                &arguments.namespace,
            )?;
            Deletion::of_orphan(socket, state_dir, &key).await?
        }
    };
    announce(arguments.output, &deletion.shown());
    confirm(&arguments.confirmation)?;
    until_complete(async || deletion.run().await).await?;
    let told = format!("{}\n", deletion.told());
    print_outcome(arguments.output, &deletion.deleted(), &told);
    Ok(())
}
