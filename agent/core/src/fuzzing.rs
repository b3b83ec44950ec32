//! What reads the bytes of strangers, for fuzzers. No part of what this crate is for.

use std::path::Path;

use crate::{
    backend::lvm,
    host::{self, MountTable},
    types::{AbsolutePath, ClassName, Handle, Name, NodeName, Reference},
};

/// The text of a volume group, as LVM has it on disks.
pub fn lvm_metadata(text: &str) {
    lvm::read_metadata(text);
}

/// Both ends of a device, which belong to whoever has the volume.
pub fn superblocks(head: &[u8], tail: &[u8]) {
    host::probe_bytes(head, tail);
}

/// `/proc/self/mountinfo`, in which tenants choose names.
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

/// Ids, names and paths of callers.
///
/// # Panics
/// When an id is not given out as it was read.
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
