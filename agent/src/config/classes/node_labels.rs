//! The labels of this node, by which classes select their nodes.

use anyhow::{Context, bail};
pub(crate) use drumlin_cluster::Labels;
use drumlin_crd::names;

use super::super::key::AtKey;

/// The labels that the arguments name, as `key=value`, else those of the file.
///
/// # Errors
/// If one is not a label as in Kubernetes.
pub(in crate::config) fn node_labels(
    arguments: &[String],
    file: Option<Labels>,
) -> anyhow::Result<Labels> {
    let pair = |text: &String| {
        let pair = text.split_once('=');
        let pair = pair.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pair.with_context(|| format!("--node-labels: {text:?} must be a label such as disk=nvme"))
    };
    let labels = if arguments.is_empty() {
        file.unwrap_or_default()
    } else {
        arguments.iter().map(pair).collect::<anyhow::Result<_>>()?
    };
    for (key, value) in &labels {
        check_key(key).at_key_without(arguments.first(), "nodeLabels")?;
        let key = format!("nodeLabels.{key}");
        check_value(value).at_key_without(arguments.first(), &key)?;
    }
    Ok(labels)
}

/// Checks the key of a label.
pub(super) fn check_key(key: &str) -> anyhow::Result<()> {
    if !names::is_label_key(key) {
        bail!(
            "{key:?} is not a key of a label: at most 63 letters, digits, '-', '_' and '.', which begin and end with a letter or digit, perhaps after a domain and '/'"
        );
    }
    Ok(())
}

/// Checks the value of a label.
pub(super) fn check_value(value: &str) -> anyhow::Result<()> {
    if !names::is_label_value(value) {
        bail!(
            "{value:?} is not a value of a label: at most 63 letters, digits, '-', '_' and '.', which begin and end with a letter or digit"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_arguments_replace_those_of_the_file_and_are_checked() {
        let file = Labels::from([("disk".to_owned(), "hdd".to_owned())]);
        let read = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
            node_labels(&arguments, Some(file.clone()))
        };
        assert_eq!(read(&[]).unwrap(), file);
        let labels = read(&["example.com/disk=nvme", "rack="]).unwrap();
        assert_eq!(labels.get("example.com/disk").unwrap(), "nvme");
        assert_eq!(labels.get("rack").unwrap(), "");
        assert_eq!(labels.len(), 2);
        let long = format!("a={}", "x".repeat(64));
        for wrong in [
            "disk", "=a", "a/=b", "a b=c", "-a=b", "a=b c", "/a=b", &long,
        ] {
            assert!(read(&[wrong]).is_err(), "{wrong}");
        }
    }
}
