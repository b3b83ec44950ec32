//! Times, as a person writes them.

use std::time::Duration;

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Parses days, such as `7d`, or a time as in Kubernetes, such as `36h`, `1h30m` or `500ms`.
///
/// # Errors
/// What is wrong with the text.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let days = text
        .strip_suffix('d')
        .and_then(|days| days.parse::<u32>().ok());
    if let Some(days) = days {
        return Ok(Duration::from_secs(u64::from(days) * DAY));
    }
    match text.parse::<kube::core::Duration>() {
        // Kubernetes takes no text at all for no time.
        Ok(_) if text.is_empty() => Err("a time is missing, such as 30s, 5m or 7d".to_owned()),
        Ok(time) if time.is_negative() => Err(format!("{text:?}: a time cannot be negative")),
        Ok(time) => Ok(time.into()),
        Err(_) => Err(format!("{text:?} must be a time, such as 30s, 5m or 7d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_days_or_what_kubernetes_takes() {
        for (text, seconds) in [
            ("7d", 7 * DAY),
            ("36h", 129_600),
            ("1h30m", 5400),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(duration("-1h").unwrap_err().contains("negative"));
        assert!(duration("").unwrap_err().contains("missing"));
        for wrong in ["7", "soon", "1d12h", "d"] {
            assert!(
                duration(wrong).unwrap_err().contains("must be a time"),
                "{wrong}"
            );
        }
    }
}
