//! How long a class keeps what is deleted.

use std::time::Duration;

use anyhow::{anyhow, bail};
use drumlin_core::ops::TrashPolicy;
use serde::{Deserialize, Serialize};

use super::{super::key::AtKey, values::percent};
use crate::duration::duration;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {keep: 7d, maxFill: 80%}"
)]
pub(super) struct FileTrash {
    /// Such as `7d`: a week, if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_fill: Option<String>,
}

impl FileTrash {
    /// The policy.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(super) fn policy(&self) -> anyhow::Result<TrashPolicy> {
        let usual = TrashPolicy::default();
        let keep = self.keep.as_deref().map(time).transpose();
        let max_fill = self.max_fill.as_deref();
        let max_fill = max_fill.map(|text| percent(text, 1..=99)).transpose();
        Ok(TrashPolicy {
            keep: keep.at_key("trash.keep")?.unwrap_or(usual.keep),
            max_fill: max_fill.at_key("trash.maxFill")?,
        })
    }
}

/// Parses the time for which something is kept.
fn time(text: &str) -> anyhow::Result<Duration> {
    let time = duration(text).map_err(|error| anyhow!(error))?;
    // What has just been deleted must not be gone before anybody notices.
    if !(Duration::from_mins(1)..=Duration::from_hours(3650 * 24)).contains(&time) {
        bail!("{text:?} must be between 1m and 3650d");
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> anyhow::Result<TrashPolicy> {
        drumlin_crd::yaml::from_str::<FileTrash>(text)?.policy()
    }

    #[test]
    fn a_trash_without_settings_keeps_for_a_week() {
        assert_eq!(policy("{}").unwrap(), TrashPolicy::default());
        let given = policy("{keep: 36h, maxFill: 80%}").unwrap();
        assert_eq!(given.keep, Duration::from_hours(36));
        assert_eq!(given.max_fill, Some(80));
        let days = policy("{keep: 3d}").unwrap();
        assert_eq!(days.keep, Duration::from_hours(72));
    }

    #[test]
    fn a_setting_that_is_not_valid_is_named() {
        for (wrong, field) in [
            ("{keep: 7}", "keep"),
            ("{keep: soon}", "trash.keep"),
            ("{keep: -1h}", "trash.keep"),
            ("{keep: 1s}", "trash.keep"),
            ("{keep: 4000d}", "trash.keep"),
            ("{maxFill: 100%}", "trash.maxFill"),
            ("{maxFill: 80}", "maxFill"),
            ("{maxSize: 1Gi}", "maxSize"),
        ] {
            let error = format!("{:#}", policy(wrong).unwrap_err());
            assert!(error.contains(field), "{wrong}: {error}");
        }
    }
}
