//! The whole agent through its socket and its files, and in no other way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cloned_ref_to_slice_refs,
    clippy::format_collect,
    clippy::items_after_statements,
    clippy::too_many_lines,
    reason = "tests fail by panicking, and are read more than they are run"
)]

mod attach;
mod bad_input;
mod mount_roots;
mod clean_copies;
mod concurrency;
mod content;
mod external_damage;
mod dialect;
mod dialect_requests;
mod dialects;
mod examples;
mod group_snapshots;
mod group_trouble;
mod thaw_watchdog;
mod histories;
mod host;
mod hostile_clients;
mod interruption;
mod interruption_of_manifests;
mod kept;
mod helpers;
mod list_cache;
mod lost_state;
mod manifest_group_snapshots;
mod manifest_groups;
mod manifests;
mod manifests_in_trouble;
mod node;
mod nomad;
mod csi_pre_v1_calls;
mod csi_pre_v1_spec;
mod group_consistency;
mod power_cut;
mod process;
mod raw_copies;
mod reclaim;
mod node_rename;
mod restore_command;
mod rollback;
mod rollback_kills;
mod rollback_command;
mod capacity;
mod signals;
mod stalled_disk;
mod stalled_paths;
mod subject;
mod plugin_process;
mod btrfs_thaw;
mod unstaged_kills;
mod access_modes;
mod volume_groups;
mod volumes;
mod wire;
