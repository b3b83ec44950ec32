//! Mutable parameters: `protected`, the limits and `label.<name>` (CSI, `ControllerModifyVolume`).

use crate::ops::labels;
use crate::{
    Error, Result,
    backend::LabelChange,
    host::io_limits::{IoLimits, LOWEST_BYTES, LOWEST_IOPS},
    types::Map,
};

/// Refuses parameters that are not mutable, naming them.
pub(crate) fn check(mutable: &Map) -> Result<()> {
    for (key, value) in mutable {
        let wrong = |why: &str| Err(Error::invalid(format!("mutable_parameters.{key}: {why}")));
        if key == labels::PROTECTED {
            if value != "true" && value != "false" {
                return wrong("must be \"true\" or \"false\"");
            }
        } else if labels::LIMITS.contains(&key.as_str()) {
            let is_bytes = [labels::READ_BYTES, labels::WRITE_BYTES].contains(&key.as_str());
            let lowest = if is_bytes { LOWEST_BYTES } else { LOWEST_IOPS };
            let rate = value.parse::<u64>();
            if !value.is_empty() && !rate.is_ok_and(|rate| rate >= lowest) {
                return wrong(&format!(
                    "{value:?} must be a whole number of at least {lowest}, or empty for no limit but that of the class"
                ));
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
                "unknown parameter; the mutable parameters are protected, readIops, writeIops, readBytesPerSecond, writeBytesPerSecond and label.<name>",
            );
        }
    }
    Ok(())
}

/// Refuses limits above those of the class, which nobody exceeds by a parameter.
pub(crate) fn check_limits(mutable: &Map, class: &IoLimits) -> Result<()> {
    let of_class = [
        class.read_iops,
        class.write_iops,
        class.read_bytes,
        class.write_bytes,
    ];
    for (key, limit) in labels::LIMITS.iter().zip(of_class) {
        let wanted = mutable
            .get(*key)
            .and_then(|value| value.parse::<u64>().ok());
        if let (Some(wanted), Some(limit)) = (wanted, limit)
            && wanted > limit
        {
            return Err(Error::invalid(format!(
                "mutable_parameters.{key}: {wanted} is above the limit of the class, {limit}"
            )));
        }
    }
    Ok(())
}

/// Returns true if these parameters say anything of limits, also that there are none.
pub(crate) fn names_limits(mutable: &Map) -> bool {
    labels::LIMITS.iter().any(|key| mutable.contains_key(*key))
}

/// Returns true if these parameters limit anything.
pub(crate) fn limits_anything(mutable: &Map) -> bool {
    labels::LIMITS
        .iter()
        .any(|key| mutable.get(*key).is_some_and(|value| !value.is_empty()))
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
