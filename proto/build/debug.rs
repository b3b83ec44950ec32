//! Writes `Debug` for messages: like the derived one, but a secret shows only how many entries it has.
//!
//! A message within a message prints itself, so hiding needs no knowledge of what lies around it.

use std::fmt::{self, Write as _};

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor, Value};

/// Writes the implementations for a message, its oneofs and the messages declared within it.
pub(crate) fn write_message(code: &mut String, message: &MessageDescriptor) -> fmt::Result {
    if message.is_map_entry() {
        return Ok(());
    }
    let name = message.name().to_upper_camel_case();
    let path = type_path(message);
    writeln!(code, "impl ::core::fmt::Debug for {path} {{")?;
    writeln!(
        code,
        "    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{"
    )?;
    writeln!(code, "        let mut out = f.debug_struct({name:?});")?;
    for field in message.fields().filter(|field| real_oneof(field).is_none()) {
        write_field(code, &field)?;
    }
    for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        let name = oneof.name().to_snake_case();
        writeln!(code, "        out.field({name:?}, &self.r#{name});")?;
    }
    writeln!(code, "        out.finish()\n    }}\n}}")?;

    for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        write_oneof(code, &oneof)?;
    }
    for child in message.child_messages() {
        write_message(code, &child)?;
    }
    Ok(())
}

fn write_field(code: &mut String, field: &FieldDescriptor) -> fmt::Result {
    let name = field.name().to_snake_case();
    let value = format!("self.r#{name}");
    match field.kind() {
        _ if is_secret(field) && (field.is_map() || field.is_list()) => {
            writeln!(
                code,
                "        out.field({name:?}, &format_args!(\"<{{}} hidden>\", {value}.len()));"
            )
        }
        _ if is_secret(field) => writeln!(
            code,
            "        out.field({name:?}, &format_args!(\"<hidden>\"));"
        ),
        Kind::Enum(_) if !field.is_list() && !field.supports_presence() => {
            // The getter that prost makes would show a value of a newer caller as the default.
            let known = enum_path(field);
            writeln!(
                code,
                "        match {known}::try_from({value}) {{ \
                 Ok(known) => out.field({name:?}, &known), Err(_) => out.field({name:?}, &{value}) }};"
            )
        }
        _ => writeln!(code, "        out.field({name:?}, &{value});"),
    }
}

fn write_oneof(code: &mut String, oneof: &OneofDescriptor) -> fmt::Result {
    let path = format!(
        "{}::{}",
        module_path(oneof.parent_message()),
        oneof.name().to_upper_camel_case()
    );
    writeln!(code, "impl ::core::fmt::Debug for {path} {{")?;
    writeln!(
        code,
        "    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{"
    )?;
    writeln!(code, "        match self {{")?;
    for field in oneof.fields() {
        let name = field.name().to_upper_camel_case();
        if is_secret(&field) {
            writeln!(
                code,
                "            Self::{name}(_) => f.write_str(\"{name}(<hidden>)\"),"
            )?;
        } else {
            writeln!(
                code,
                "            Self::{name}(value) => f.debug_tuple({name:?}).field(value).finish(),"
            )?;
        }
    }
    writeln!(code, "        }}\n    }}\n}}")
}

/// Whether a field must never be shown: it says so, or it is a map named as one.
///
/// The old packages annotate nothing, and others declare the annotation under a name of their own (`vg_csi_secret`).
fn is_secret(field: &FieldDescriptor) -> bool {
    let annotated = field.options().extensions().any(|(option, value)| {
        option.name().ends_with("csi_secret") && *value == Value::Bool(true)
    });
    let named = field.name().contains("secret") || field.name().contains("credential");
    annotated || (field.is_map() && named)
}

/// The oneof that a field belongs to, unless it only stands for the word `optional`.
fn real_oneof(field: &FieldDescriptor) -> Option<OneofDescriptor> {
    field
        .containing_oneof()
        .filter(|oneof| !oneof.is_synthetic())
}

/// Where prost puts a message, seen from its package.
fn type_path(message: &MessageDescriptor) -> String {
    let name = message.name().to_upper_camel_case();
    match message.parent_message() {
        Some(parent) => format!("{}::{name}", module_path(&parent)),
        None => name,
    }
}

/// Where prost puts what is declared within a message.
fn module_path(message: &MessageDescriptor) -> String {
    let name = format!("r#{}", message.name().to_snake_case());
    match message.parent_message() {
        Some(parent) => format!("{}::{name}", module_path(&parent)),
        None => name,
    }
}

/// Where prost puts the enum of a field, which must be of the same package.
fn enum_path(field: &FieldDescriptor) -> String {
    let Kind::Enum(found) = field.kind() else {
        return String::new();
    };
    let name = found.name().to_upper_camel_case();
    match found.parent_message() {
        Some(parent) => format!("{}::{name}", module_path(&parent)),
        None => name,
    }
}
