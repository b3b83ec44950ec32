//! Segments of logical volumes: their types and parts.

use super::text::Value;

/// Flags that may follow the type, each after a `+`: an LVM that does not know a flag must not touch the segment.
/// These are all that LVM 2.03.11 to 2.03.31 writes (`lib/format_text/flags.c`, `SEGTYPE_FLAG`); they do not affect
/// what is read here.
const FLAGS: [&str; 8] = [
    "CACHE_USES_CACHEVOL",
    "CROP_METADATA",
    "METADATA_FORMAT",
    "REMOVE_AFTER_RESHAPE",
    "RESHAPE",
    "RESHAPE_DATA_OFFSET",
    "RESHAPE_DELTA_DISKS_MINUS",
    "RESHAPE_DELTA_DISKS_PLUS",
];

/// The type of a segment, without its flags.
pub(super) fn kind<'a>(segment: &'a Value<'a>) -> &'a str {
    let whole = segment.get("type").and_then(Value::text);
    whole
        .unwrap_or_default()
        .split('+')
        .next()
        .unwrap_or_default()
}

/// The number of disks or parts that its extents are spread over, or have copies on.
pub(super) fn legs(segment: &Value<'_>) -> u64 {
    let counts = ["stripe_count", "device_count", "mirror_count"];
    let mut counts = counts
        .into_iter()
        .filter_map(|name| segment.get(name).and_then(Value::number));
    counts.next().unwrap_or(0)
}

/// Returns true if the segment has data. A lost leg of a mirror is replaced by an error segment when an administrator
/// removes the disk (`vgreduce --removemissing --force`).
pub(super) fn has_bytes(segment: &Value<'_>) -> bool {
    kind(segment) != "error"
}

/// A flag of a segment that this agent does not know, so that its effect on the data is unknown.
pub(super) fn unknown_flag<'a>(segment: &'a Value<'a>) -> Option<&'a str> {
    let whole = segment.get("type").and_then(Value::text);
    let mut flags = whole.unwrap_or_default().split('+').skip(1);
    flags.find(|flag| !FLAGS.contains(flag))
}

/// The type of a segment that is a layer over a volume: an administrator can add one to any volume.
pub(super) fn layer<'a>(segment: &'a Value<'a>) -> Option<&'a str> {
    Some(kind(segment)).filter(|kind| ["cache", "writecache", "integrity", "vdo"].contains(kind))
}

/// The name of the volume that LVM merges this thin snapshot into. For an old-style snapshot the third volume has it.
pub(super) fn merges_into<'a>(segment: &'a Value<'a>) -> Option<&'a str> {
    segment.get("merge").and_then(Value::text)
}

/// The names of the volumes below a layer, or below its pool. The extents of a volume are counted along its parts,
/// and these are not parts: the extents of a cache are not those that it caches.
pub(super) fn below<'a>(segment: &'a Value<'a>) -> impl Iterator<Item = &'a str> {
    let names: &[&str] = match kind(segment) {
        "cache" => &["origin", "cache_pool"],
        "writecache" => &["origin", "writecache"],
        "integrity" => &["origin", "meta_dev"],
        "vdo" => &["vdo_pool"],
        "vdo-pool" | "cache-pool" => &["data"],
        "thin" => &["external_origin"],
        "mirror" => &["mirror_log"],
        _ => &[],
    };
    names
        .iter()
        .filter_map(|name| segment.get(name).and_then(Value::text))
}
