//! Converts requests to validated values, and results to messages. Sizes are unsigned.

use drumlin_core::{
    Error, Kind, Result,
    ops::{PageRequest, Volume},
    types::{Size, SizeRange},
};
use drumlin_proto::csi::v0_1;

use crate::rpc::csi_v1::convert;

/// Converts a size range; none for any size.
///
/// # Errors
/// `OutOfRange` if the size exceeds the largest possible volume size.
pub(super) fn size_range(range: Option<&v0_1::CapacityRange>) -> Result<SizeRange> {
    let Some(range) = range else {
        return Ok(SizeRange::default());
    };
    let required = i64::try_from(range.required_bytes).map_err(|_| {
        Error::new(
            Kind::OutOfRange,
            format!(
                "capacity_range.required_bytes {} exceeds the largest possible volume size",
                range.required_bytes
            ),
        )
    })?;
    let limit = range.limit_bytes.min(Size::MAX.bytes());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    SizeRange::from_wire("capacity_range", required, limit)
}

/// Converts the page request of a list.
pub(super) fn page(max_entries: u32, token: String) -> Result<PageRequest> {
    let most = i32::try_from(max_entries).unwrap_or(i32::MAX);
    convert::page(most, token)
}

/// Converts a volume to its message.
pub(super) fn volume(volume: &Volume) -> v0_1::VolumeInfo {
    let new = convert::volume(volume);
    v0_1::VolumeInfo {
        capacity_bytes: volume.size.bytes(),
        id: new.volume_id,
        attributes: new.volume_context,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_without_sign_are_not_taken_for_negative_ones() {
        let range = |required_bytes, limit_bytes| {
            size_range(Some(&v0_1::CapacityRange {
                required_bytes,
                limit_bytes,
            }))
        };
        let error = range(1 << 63, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfRange, "{error}");
        let open = range(1 << 20, u64::MAX).unwrap();
        assert_eq!(open.required().map(Size::bytes), Some(1 << 20));
        assert_eq!(range(2, 1).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(size_range(None).unwrap(), SizeRange::default());
        let page = page(u32::MAX, String::new()).unwrap();
        assert!(page.max_entries.is_some_and(|most| most > 1 << 30));
    }
}
