//! `drumlin handover`: hands a retained resource over between manifest files and the API server, or a volume back to the
//! host.

use anyhow::bail;
use drumlin_reconciler::kept::{self, Release};

use super::{
    object_name,
    print::{announce, note, print_outcome},
};
use crate::cli::HandoverArguments;

/// Hands it over.
pub(crate) async fn run(arguments: &HandoverArguments) -> anyhow::Result<()> {
    if arguments.to_host {
        return to_host(arguments).await;
    }
    let Some(name) = &arguments.name else {
        bail!("NAMESPACE/NAME is missing; with --to-host a handle can be given instead");
    };
    let key = object_name::with_kind(&format!("{}/{name}", arguments.what))?;
    let assigned = kept::hand_over(&arguments.host.state_dir, &key)?;
    let handle = &assigned.handle;
    let text = format!(
        "{handle} is released for handover: the first object {key} that is declared on this node within an hour adopts it\n"
    );
    print_outcome(arguments.output, &assigned, &text);
    Ok(())
}

async fn to_host(arguments: &HandoverArguments) -> anyhow::Result<()> {
    let host = &arguments.host;
    let (socket, state_dir) = (host.endpoint.path(), &host.state_dir);
    let path = arguments.path.as_deref();
    let release = match &arguments.name {
        None => Release::of(socket, state_dir, &arguments.what, path).await?,
        Some(name) => {
            let key = object_name::with_kind(&format!("{}/{name}", arguments.what))?;
            Release::of_orphan(socket, state_dir, &key, path).await?
        }
    };
    let mut released = release.released();
    announce(arguments.output, &release.shown());
    if !arguments.yes {
        print_outcome(arguments.output, &released, "");
        note("nothing was changed; pass --yes to hand it over");
        return Ok(());
    }
    let source = release.run().await?;
    let text = source.map(|source| format!("{source} is handed over\n"));
    released.changed = text.is_some();
    print_outcome(arguments.output, &released, &text.unwrap_or_default());
    Ok(())
}
