//! `drumlin adopt`: assigns a retained resource to an object.

use drumlin_reconciler::kept;

use super::{object_name, print::print};
use crate::cli::AdoptArguments;

/// Assigns it.
pub(crate) async fn run(arguments: &AdoptArguments) -> anyhow::Result<()> {
    let (host, handle) = (&arguments.host, &arguments.handle);
    let name = object_name::split(&arguments.name);
    let key = kept::adopt(host.endpoint.path(), &host.state_dir, handle, name).await?;
    print(&format!(
        "{handle} is assigned to {key}: it is adopted as soon as a manifest or the API server declares that object on this node\n"
    ));
    Ok(())
}
