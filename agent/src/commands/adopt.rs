//! `drumlin adopt`: assigns a retained resource to an object, or adopts a volume that others made.

use anyhow::bail;
use drumlin_reconciler::kept::{self, AdoptionOf, ForeignAdoption};

use super::{
    object_name,
    print::{note, print, print_outcome},
};
use crate::cli::{AdoptArguments, DataOutput};

/// Lists, assigns or adopts.
pub(crate) async fn run(arguments: &AdoptArguments) -> anyhow::Result<()> {
    match arguments.what.as_deref() {
        None => list(arguments).await,
        Some(handle) if is_handle(handle) => assign(arguments, handle).await,
        Some(source) => adopt(arguments, source).await,
    }
}

/// Returns true for `NODE/CLASS/KEY`; the location of a volume has one slash, or begins with one.
fn is_handle(what: &str) -> bool {
    !what.starts_with('/') && what.matches('/').count() == 2
}

async fn list(arguments: &AdoptArguments) -> anyhow::Result<()> {
    let candidates = kept::list_foreign(arguments.host.endpoint.path()).await?;
    print(&candidates.render(DataOutput::form(arguments.output)));
    Ok(())
}

async fn assign(arguments: &AdoptArguments, handle: &str) -> anyhow::Result<()> {
    let host = &arguments.host;
    let Some(name) = &arguments.name else {
        bail!("{handle}: NAMESPACE/NAME of the object that adopts it is missing");
    };
    if arguments.yes || arguments.class.is_some() {
        bail!("{handle}: --yes and --class are for volumes of others only");
    }
    let name = object_name::split(name);
    let assigned = kept::adopt(host.endpoint.path(), &host.state_dir, handle, name).await?;
    let text = format!(
        "{handle} is assigned to {}: it is adopted as soon as a manifest or the API server declares that object on this node\n",
        assigned.object
    );
    print_outcome(arguments.output, &assigned, &text);
    Ok(())
}

async fn adopt(arguments: &AdoptArguments, source: &str) -> anyhow::Result<()> {
    let host = &arguments.host;
    let object = arguments.name.as_deref().map(object_name::split);
    let adoption = AdoptionOf {
        source: source.to_owned(),
        object: object.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
        class: arguments.class.clone(),
    };
    let adoption = ForeignAdoption::of(host.endpoint.path(), &host.state_dir, adoption).await?;
    let text = adoption.render(DataOutput::form(arguments.output));
    if !arguments.yes {
        print(&text);
        note("nothing was changed; pass --yes to adopt it");
        return Ok(());
    }
    let (key, handle) = adoption.run().await?;
    print(&text);
    note(&format!(
        "{source} is adopted as {handle}; add the manifest of {key}"
    ));
    Ok(())
}
