//! `drumlin get`: objects with their status.

use drumlin_crd::ObjectKey;
use drumlin_reconciler::{
    objects,
    status::{self, Form},
};
use serde_json::{Value, json};

use super::{object_name, print::print};
use crate::cli::{GetArguments, GetOutput};

/// Prints the objects.
pub(crate) fn run(arguments: &GetArguments) -> anyhow::Result<()> {
    let kind = arguments.kind.as_str();
    let name = arguments.name.as_deref();
    let key = name.map(|name| object_name::of_kind(arguments.kind, name));
    let found = objects::find(&arguments.state_dir, kind, key.as_ref())?;
    let form = match arguments.output {
        None => Form::Table,
        Some(GetOutput::Wide) => Form::Wide,
        Some(GetOutput::Json) => {
            let text = serde_json::to_string_pretty(&whole(found, key.as_ref()))?;
            print(&(text + "\n"));
            return Ok(());
        }
        Some(GetOutput::Yaml) => {
            print(&drumlin_crd::to_yaml(&whole(found, key.as_ref())));
            return Ok(());
        }
    };
    let mut table = status::load(&arguments.state_dir)?.of_kind(kind);
    if let Some(key) = key {
        table
            .objects
            .retain(|row| row.namespace == key.namespace && row.name == key.name);
    }
    print(&table.render(form));
    Ok(())
}

/// The one that was named, or a list.
fn whole(mut found: Vec<Value>, key: Option<&ObjectKey>) -> Value {
    match key {
        Some(_) => found.pop().unwrap_or_default(),
        None => json!({"apiVersion": "v1", "kind": "List", "items": found}),
    }
}
