//! `drumlin events`: the last transitions of objects.

use drumlin_reconciler::events::{events, render};
use serde_json::json;

use super::{object_name, print::print};
use crate::cli::{DataOutput, EventsArguments};

/// Prints the events, oldest first.
pub(crate) fn run(arguments: &EventsArguments) -> anyhow::Result<()> {
    let object = arguments.object.as_deref();
    let key = object.map(object_name::with_kind).transpose()?;
    let found = events(&arguments.state_dir, key.as_ref())?;
    print(&match arguments.output {
        None => render(&found),
        Some(DataOutput::Json) => serde_json::to_string_pretty(&found)? + "\n",
        Some(DataOutput::Yaml) => drumlin_crd::to_yaml(&json!(found)),
    });
    Ok(())
}
