//! How long ago something was, as kubectl shows it.

use k8s_openapi::jiff::Timestamp;

/// The age of a time in RFC 3339, in the largest unit of which there are at least two: `90s`, `45m`, `30h`, `12d`. `None`
/// for what is no time.
pub(crate) fn age(since: &str) -> Option<String> {
    let since: Timestamp = since.parse().ok()?;
    let seconds = Timestamp::now().as_second() - since.as_second();
    Some(match seconds {
        ..120 => format!("{}s", seconds.max(0)),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    })
}
