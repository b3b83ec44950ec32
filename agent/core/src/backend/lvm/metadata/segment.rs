//! Segments of logical volumes: of which type they are, and what they are made of.

use super::text::Value;

/// What may follow the type, each behind a `+`: what an LVM that does not know it must not touch. These are all that LVM
/// 2.03.11 to 2.03.31 writes (`lib/format_text/flags.c`, `SEGTYPE_FLAG`); they change nothing of what is read here.
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

/// Whether there is something below a segment. What a lost leg of a mirror was on is replaced by errors, where an
/// administrator has LVM forget the disk (`vgreduce --removemissing --force`).
pub(super) fn has_bytes(segment: &Value<'_>) -> bool {
    kind(segment) != "error"
}

/// A flag of a segment that nothing is known of: what it means for its bytes cannot be told.
pub(super) fn unknown_flag<'a>(segment: &'a Value<'a>) -> Option<&'a str> {
    let whole = segment.get("type").and_then(Value::text);
    let mut flags = whole.unwrap_or_default().split('+').skip(1);
    flags.find(|flag| !FLAGS.contains(flag))
}

/// What a segment is, when it is a layer that LVM lays over a volume: an administrator can do so with any one.
pub(super) fn layer<'a>(segment: &'a Value<'a>) -> Option<&'a str> {
    Some(kind(segment)).filter(|kind| ["cache", "writecache", "integrity", "vdo"].contains(kind))
}

/// The name of the volume that LVM merges this thin snapshot into. That of an old-style one is told by its third volume.
pub(super) fn merges_into<'a>(segment: &'a Value<'a>) -> Option<&'a str> {
    segment.get("merge").and_then(Value::text)
}

/// The names of what a layer, or a pool of one, is made of. Extents of a volume are counted along its parts, and these are
/// none: those of a cache are others than those that it caches.
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
