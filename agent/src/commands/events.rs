//! `drumlin events`: the last transitions of objects.

use drumlin_reconciler::events::{events, render};

use super::{object_name, print::print_styled};
use crate::cli::{DataOutput, EventsArguments};

/// Prints the events, oldest first.
pub(crate) fn run(arguments: &EventsArguments) -> anyhow::Result<()> {
    let object = arguments.object.as_deref();
    let namespace = &arguments.namespace;
    let key = object.map(|object| object_name::with_kind_in(object, namespace));
    let key = key.transpose()?;
    let mut found = events(&arguments.state_dir, key.as_ref())?;
    if let Some(namespace) = &namespace.namespace {
        found.retain(|event| event.namespace == *namespace);
    }
    let data = DataOutput::form(arguments.output).data(&found);
    print_styled(&data.unwrap_or_else(|| render(&found)));
    Ok(())
}
