//! Entry points for fuzzers: the parsers of untrusted input. Not part of the API.

use std::path::Path;

use crate::{
    backend::lvm,
    host::{self, MountTable},
    types::{AbsolutePath, ClassName, Handle, Name, NodeName, Reference},
};

/// The metadata text of an LVM volume group.
pub fn lvm_metadata(text: &str) {
    lvm::read_metadata(text);
}

/// Both ends of a device, whose contents the user of the volume controls.
pub fn superblocks(head: &[u8], tail: &[u8]) {
    host::probe_bytes(head, tail);
}

/// `/proc/self/mountinfo`, in which tenants control names.
pub fn mount_table(text: &[u8]) {
    let Ok(table) = MountTable::parse(text) else {
        return;
    };
    for mount in table.iter() {
        let _ = (table.at(&mount.target), table.holding(&mount.target));
        let _ = table.below(&mount.target).count();
        let _ = (table.by_id(mount.id), table.has_on(mount.id));
    }
    let _ = table.holding(Path::new("/"));
}

/// Handles, names and paths of callers.
///
/// # Panics
/// If a handle is not formatted as it was parsed.
pub fn ids(text: &str) {
    if let Some(handle) = Handle::parse(text) {
        assert_eq!(handle.to_string(), text);
    }
    let _ = Reference::parse("volume_id", text);
    let _ = Name::parse("name", text);
    let _ = AbsolutePath::parse("target_path", text);
    if let Ok(node) = text.parse::<NodeName>() {
        assert_eq!(node.as_str(), text);
    }
    let _ = text.parse::<ClassName>();
}
