//! The UUID of a snapshot: the version-5 UUID of its handle and of its recorded creation time.

use std::fmt;

use uuid::Uuid;

use super::Handle;

/// The UUID namespace of snapshots.
const NAMESPACE: Uuid = Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a06);

/// The identity of one point in time of a volume.
///
/// A handle is derived from a name, so a snapshot that is deleted and taken again under its name has the handle of the
/// first one; the creation time tells the two apart. It is the time that is recorded with the snapshot itself, in
/// nanoseconds, on every back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotUuid(Uuid);

impl SnapshotUuid {
    /// The UUID of the snapshot with this handle and creation time, in nanoseconds since 1970: that of the text
    /// `<handle>@<nanoseconds>`, in decimal digits.
    pub fn of(handle: &Handle, created: u64) -> Self {
        let name = format!("{handle}@{created}");
        Self(Uuid::new_v5(&NAMESPACE, name.as_bytes()))
    }
}

impl fmt::Display for SnapshotUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(handle: &str, created: u64) -> String {
        SnapshotUuid::of(&Handle::parse(handle).unwrap(), created).to_string()
    }

    /// Other nodes know a snapshot by it: the value changes no more.
    #[test]
    fn the_uuid_of_a_handle_and_a_moment_never_changes() {
        let handle = "host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4";
        let created = 1_764_110_736_123_456_789;
        assert_eq!(
            uuid(handle, created),
            "844e1d3e-3f16-507a-ac11-17b45638acdd"
        );
    }

    #[test]
    fn a_later_moment_another_key_class_or_node_is_another_snapshot() {
        let handle = "host-1/default/0f3c1c52-7d8e-5a2b-9d57-3b1c86d6e0a4";
        let mut uuids = vec![uuid(handle, 1), uuid(handle, 2)];
        for (from, to) in [("host-1", "host-2"), ("default", "fast"), ("0f3c", "0f3d")] {
            uuids.push(uuid(&handle.replace(from, to), 1));
        }
        uuids.sort();
        uuids.dedup();
        assert_eq!(uuids.len(), 5);
    }
}
