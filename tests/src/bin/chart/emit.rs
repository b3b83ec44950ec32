//! The text of a template.

use crate::node::{Member, Node};

/// A document as a template.
///
/// # Errors
/// If its conditions leave a map or a list of which nothing is certain.
pub(crate) fn document(node: &Node) -> Result<String, String> {
    let mut text = String::new();
    match node {
        Node::Map(all) => members(&mut text, all, 0)?,
        _ => return Err("a document that is no map".to_owned()),
    }
    Ok(text)
}

/// What is there where a value is true, or not empty.
pub(crate) fn conditional(when: Option<&str>, text: &str) -> String {
    match when {
        Some(value) => format!("{{{{- if .Values.{value} }}}}\n{text}{{{{- end }}}}\n"),
        None => text.to_owned(),
    }
}

fn members(text: &mut String, all: &[Member], indent: usize) -> Result<(), String> {
    for group in all.chunk_by(|one, next| one.when == next.when) {
        let mut lines = String::new();
        for member in group {
            if member.key.is_empty() {
                element(&mut lines, &member.node, indent)?;
            } else {
                let pad = " ".repeat(indent);
                lines.push_str(&format!("{pad}{}:", member.key));
                behind_key(&mut lines, &member.node, indent)?;
            }
        }
        let when = group.first().and_then(|member| member.when.as_deref());
        text.push_str(&conditional(when, &lines));
    }
    Ok(())
}

/// What is behind the colon of a key with this indentation.
fn behind_key(text: &mut String, node: &Node, indent: usize) -> Result<(), String> {
    match node {
        Node::Scalar(scalar) => text.push_str(&format!(" {scalar}\n")),
        Node::Text(lines) => block(text, lines, indent + 2),
        Node::Map(all) if all.is_empty() => text.push_str(" {}\n"),
        Node::List(all) if all.is_empty() => text.push_str(" []\n"),
        Node::Value(path) => {
            let indent = indent + 2;
            text.push_str(&format!(
                " {{{{- toYaml .Values.{path} | nindent {indent} }}}}\n"
            ));
        }
        Node::Map(all) => {
            text.push('\n');
            members(text, all, indent + 2)?;
        }
        Node::List(all) if all.iter().any(|member| member.when.is_none()) => {
            text.push('\n');
            members(text, all, indent)?;
        }
        Node::List(all) => {
            let when = all.first().and_then(|member| member.when.clone());
            if all.iter().any(|member| member.when != when) {
                return Err("a list that may be empty for several reasons".to_owned());
            }
            text.push('\n');
            members(text, all, indent)?;
            // Without any of them it is an empty list, and not nothing.
            let otherwise = format!(
                "{{{{- else }}}}\n{}[]\n{{{{- end }}}}\n",
                " ".repeat(indent + 2)
            );
            text.truncate(text.len() - "{{- end }}\n".len());
            text.push_str(&otherwise);
        }
    }
    Ok(())
}

fn element(text: &mut String, node: &Node, indent: usize) -> Result<(), String> {
    let pad = " ".repeat(indent);
    let mut lines = String::new();
    match node {
        Node::Map(all) if !all.is_empty() => members(&mut lines, all, indent + 2)?,
        // The dash is as good as a key, but for its blank.
        other => {
            behind_key(&mut lines, other, indent)?;
            text.push_str(&format!("{pad}-{lines}"));
            return Ok(());
        }
    }
    let first = lines.strip_prefix(&format!("{pad}  "));
    let first = first.ok_or("an element whose first member is not certain")?;
    text.push_str(&format!("{pad}- {first}"));
    Ok(())
}

/// A text of several lines.
fn block(text: &mut String, lines: &str, indent: usize) {
    let head = if lines.ends_with('\n') { " |" } else { " |-" };
    text.push_str(&format!("{head}\n"));
    for line in lines.lines() {
        let pad = if line.is_empty() { 0 } else { indent };
        text.push_str(&format!("{}{line}\n", " ".repeat(pad)));
    }
}
