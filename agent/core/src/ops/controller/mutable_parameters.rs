//! Mutable parameters: `protected` and `label.<name>` (CSI, `ControllerModifyVolume`).

use crate::ops::labels;
use crate::{Error, Result, backend::LabelChange, types::Map};

/// Refuses parameters that are not mutable, naming them.
pub(crate) fn check(mutable: &Map) -> Result<()> {
    for (key, value) in mutable {
        let wrong = |why: &str| Err(Error::invalid(format!("mutable_parameters.{key}: {why}")));
        if key == labels::PROTECTED {
            if value != "true" && value != "false" {
                return wrong("must be \"true\" or \"false\"");
            }
        } else if let Some(name) = key.strip_prefix(labels::USER) {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
            if name.is_empty() || name.len() > 63 || !name.bytes().all(allowed) {
                return wrong(
                    "the name of a label must be 1 to 63 letters, digits, '-', '_', '.' or '/'",
                );
            }
            if value.len() > 255 || value.chars().any(char::is_control) {
                return wrong(
                    "the value of a label must have at most 255 bytes and no control characters",
                );
            }
        } else {
            return wrong(
                "unknown parameter; the mutable parameters are protected and label.<name>",
            );
        }
    }
    Ok(())
}

/// The changes of the labels of an image for these parameters.
pub(crate) fn change(mutable: &Map) -> LabelChange {
    let mut change = LabelChange::default();
    for (key, value) in mutable {
        let gone = if key == labels::PROTECTED {
            value == "false"
        } else {
            value.is_empty()
        };
        if gone {
            change.remove.push(key.clone());
        } else {
            change.set.insert(key.clone(), value.clone());
        }
    }
    change
}
