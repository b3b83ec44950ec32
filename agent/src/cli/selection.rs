//! Which objects a command is about, by the flags of kubectl.

use clap::Args;

/// The namespace that a command is about.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NamespaceArguments {
    /// Namespace of a name that has none before it [default: default], or of all that is shown where nothing is named [default: all].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

/// Which of all objects of a kind are shown.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SelectionArguments {
    #[command(flatten)]
    pub(crate) namespace: NamespaceArguments,
    /// Show the objects of all namespaces, as is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Show objects with these labels alone, such as `app=pg,tier=db`.
    #[arg(
        short = 'l',
        long,
        value_name = "KEY=VALUE",
        value_delimiter = ',',
        value_parser = label,
        conflicts_with = "name"
    )]
    pub(crate) selector: Vec<(String, String)>,
}

/// A label that objects are selected by.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            // As kubectl writes it, too.
            let value = value.strip_prefix('=').unwrap_or(value);
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("a label is KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_key_and_a_value() {
        for text in ["app=pg", "app==pg"] {
            assert_eq!(label(text), Ok(("app".to_owned(), "pg".to_owned())));
        }
        assert_eq!(label("app="), Ok(("app".to_owned(), String::new())));
        for wrong in ["app", "=pg", ""] {
            label(wrong).unwrap_err();
        }
    }
}
