//! `drumlin get`: objects with their status.

use anyhow::bail;
use drumlin_crd::ObjectKey;
use drumlin_reconciler::{
    objects::{self, Selection},
    status::Form,
};
use serde_json::{Value, json};

use super::{object_name, print::print_styled};
use crate::cli::{GetArguments, GetOutput, KindsWord, ObjectKind, ObjectWord};

/// Prints the objects.
pub(crate) fn run(arguments: &GetArguments) -> anyhow::Result<()> {
    let key = named(arguments)?;
    let text = text(arguments, key.as_ref()).map_err(|error| {
        let is_kind = |name: &str| ObjectKind::parse(name).is_some();
        match arguments.name.as_deref() {
            Some(name) if is_kind(name) => error.context(
                "a name is expected behind a kind; several kinds are separated by commas, as in `drumlin get dv,dsnap`",
            ),
            _ => error,
        }
    });
    print_styled(&text?);
    Ok(())
}

/// The object that is named; none if only kinds are.
fn named(arguments: &GetArguments) -> anyhow::Result<Option<ObjectKey>> {
    let KindsWord { kinds, name } = &arguments.objects;
    let [kind] = kinds.as_slice() else {
        if name.is_some() || arguments.name.is_some() {
            bail!("a name is that of an object of one kind; give one kind with it");
        }
        return Ok(None);
    };
    let word = ObjectWord {
        kind: *kind,
        name: name.clone(),
    };
    let namespace = &arguments.selection.namespace;
    object_name::of(&word, arguments.name.as_deref(), namespace)
}

fn text(arguments: &GetArguments, key: Option<&ObjectKey>) -> anyhow::Result<String> {
    let selection = match key {
        Some(key) => Selection::One(key.clone()),
        None => Selection::Some {
            namespace: arguments.selection.namespace.namespace.clone(),
            labels: arguments.selection.selector.clone(),
        },
    };
    match arguments.output {
        None => tables(arguments, &selection, Form::Table),
        Some(GetOutput::Wide) => tables(arguments, &selection, Form::Wide),
        Some(GetOutput::Json) => {
            let found = whole(found(arguments, &selection)?, key);
            Ok(serde_json::to_string_pretty(&found)? + "\n")
        }
        Some(GetOutput::Yaml) => {
            let found = whole(found(arguments, &selection)?, key);
            Ok(drumlin_crd::to_yaml(&found))
        }
    }
}

/// A table for each kind that has objects, with a blank line between two.
fn tables(arguments: &GetArguments, selection: &Selection, form: Form) -> anyhow::Result<String> {
    let mut tables = Vec::new();
    let mut none = String::new();
    for kind in &arguments.objects.kinds {
        let table = objects::table(&arguments.state_dir, kind.as_str(), selection)?;
        if table.objects.is_empty() {
            none = table.render(form);
        } else {
            tables.push(table.render(form));
        }
    }
    Ok(if tables.is_empty() {
        none
    } else {
        tables.join("\n")
    })
}

/// All objects, kind by kind.
fn found(arguments: &GetArguments, selection: &Selection) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for kind in &arguments.objects.kinds {
        found.extend(objects::find(
            &arguments.state_dir,
            kind.as_str(),
            selection,
        )?);
    }
    Ok(found)
}

/// The one that was named, or a list.
fn whole(mut found: Vec<Value>, key: Option<&ObjectKey>) -> Value {
    match key {
        Some(_) => found.pop().unwrap_or_default(),
        None => json!({"apiVersion": "v1", "kind": "List", "items": found}),
    }
}
