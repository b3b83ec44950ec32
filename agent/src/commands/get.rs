//! `drumlin get`: objects with their status.

use drumlin_crd::ObjectKey;
use drumlin_reconciler::{
    objects::{self, Selection},
    status::Form,
};
use serde_json::{Value, json};

use super::{object_name, print::print_styled};
use crate::cli::{GetArguments, GetOutput};

/// Prints the objects.
pub(crate) fn run(arguments: &GetArguments) -> anyhow::Result<()> {
    let kind = arguments.object.kind.as_str();
    let asked = &arguments.selection;
    let key = object_name::of(
        &arguments.object,
        arguments.name.as_deref(),
        &asked.namespace,
    )?;
    let selection = match &key {
        Some(key) => Selection::One(key.clone()),
        None => Selection::Some {
            namespace: asked.namespace.namespace.clone(),
            labels: asked.selector.clone(),
        },
    };
    let state_dir = &arguments.state_dir;
    let table = |form| Ok(objects::table(state_dir, kind, &selection)?.render(form));
    let found = || {
        let found = objects::find(state_dir, kind, &selection)?;
        Ok(whole(found, key.as_ref()))
    };
    let text: anyhow::Result<String> = match arguments.output {
        None => table(Form::Table),
        Some(GetOutput::Wide) => table(Form::Wide),
        Some(GetOutput::Json) => {
            found().and_then(|found| Ok(serde_json::to_string_pretty(&found)? + "\n"))
        }
        Some(GetOutput::Yaml) => found().map(|found| drumlin_crd::to_yaml(&found)),
    };
    print_styled(&text?);
    Ok(())
}

/// The one that was named, or a list.
fn whole(mut found: Vec<Value>, key: Option<&ObjectKey>) -> Value {
    match key {
        Some(_) => found.pop().unwrap_or_default(),
        None => json!({"apiVersion": "v1", "kind": "List", "items": found}),
    }
}
