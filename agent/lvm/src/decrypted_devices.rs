//! Decrypted devices: how LVM is kept from what their users write.
//!
//! LVM does not search logical volumes for physical ones, but it does search a dm-crypt device over a logical volume, or over
//! an image file. A raw volume belongs to its user, who may write a copy of the header of the host's own disks into it: LVM
//! would take it for one of them. So LVM's commands of this agent do not look at them.

use std::fs;

use tokio::sync::OnceCell;

use crate::{host::crypt_mapping, unresponsive_disks};

/// The filter pattern that rejects the decrypted devices of this host; none while it has none.
pub(crate) async fn pattern() -> Option<String> {
    static HOSTS_FILTER: OnceCell<()> = OnceCell::const_new();
    if !exist() {
        return None;
    }
    HOSTS_FILTER
        .get_or_init(unresponsive_disks::keep_hosts_filter)
        .await;
    Some(format!("\"r|^/dev/mapper/{}|\"", crypt_mapping::NAME))
}

/// Whether there are any, also of an earlier process or of another agent: a look at a directory in memory.
fn exist() -> bool {
    let mut names = fs::read_dir("/dev/mapper").into_iter().flatten().flatten();
    names.any(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes()
            .starts_with(crypt_mapping::NAME.as_bytes())
    })
}
