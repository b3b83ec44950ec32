//! The agent over thin, linear or mirrored volumes (`DRUMLIN_VOLUMES`), in the lab: what is tested over image files, and
//! what only LVM has.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cloned_ref_to_slice_refs,
    clippy::format_collect,
    clippy::items_after_statements,
    clippy::too_many_lines,
    dead_code,
    reason = "tests fail by panicking, and are read more than they are run"
)]

#[path = "../black_box/access_modes.rs"]
mod access_modes;
mod adoption;
#[path = "../black_box/attach.rs"]
mod attach;
#[path = "../black_box/changed_block_histories/mod.rs"]
mod changed_block_histories;
mod class_states;
#[path = "../black_box/classes.rs"]
mod classes;
#[path = "../black_box/clean_copies.rs"]
mod clean_copies;
#[path = "../black_box/concurrency.rs"]
mod concurrency;
mod concurrent_tools;
#[path = "../black_box/content.rs"]
mod content;
mod copies;
mod cow_stores;
mod device_health;
#[path = "../black_box/dialect.rs"]
mod dialect;
#[path = "../black_box/dialects.rs"]
mod dialects;
mod discard;
mod disks;
mod dm_faults;
mod doctor;
mod encryption;
mod example;
mod external_changes;
mod foreign_doubt;
#[path = "../black_box/foreign_helpers.rs"]
mod foreign_helpers;
mod foreign_taken;
mod full;
#[path = "../black_box/group_consistency.rs"]
mod group_consistency;
#[path = "../black_box/group_snapshots.rs"]
mod group_snapshots;
#[path = "../black_box/group_trouble.rs"]
mod group_trouble;
mod groups;
#[path = "../black_box/health.rs"]
mod health;
#[path = "../black_box/helpers.rs"]
mod helpers;
#[path = "../black_box/host.rs"]
mod host;
#[path = "../black_box/interruption.rs"]
mod interruption;
mod io_latency;
mod layers;
#[path = "../black_box/life.rs"]
mod life;
#[path = "../black_box/lost_state.rs"]
mod lost_state;
mod lvm_killed;
mod merges;
mod mirror_legs;
mod monitoring;
#[path = "../black_box/node.rs"]
mod node;
#[path = "../black_box/node_arguments.rs"]
mod node_arguments;
#[path = "../black_box/node_rename.rs"]
mod node_rename;
mod place;
mod placement;
mod pools;
mod processes;
mod progress;
mod quiesce;
mod rate_limits;
#[path = "../black_box/reclaim.rs"]
mod reclaim;
mod refusals;
mod repairs;
#[path = "../black_box/rollback.rs"]
mod rollback;
#[path = "../black_box/rollback_kills.rs"]
mod rollback_kills;
mod same_name;
mod sanity;
#[path = "../black_box/snapshot_metadata.rs"]
mod snapshot_metadata;
#[path = "../black_box/snapshot_uuid.rs"]
mod snapshot_uuid;
#[path = "../black_box/subject.rs"]
mod subject;
#[path = "../black_box/thaw_watchdog.rs"]
mod thaw_watchdog;
mod thick_copies;
#[path = "../sanity/tool.rs"]
mod tool;
#[path = "../black_box/trash.rs"]
mod trash;
#[path = "../black_box/trash_clock.rs"]
mod trash_clock;
mod trash_ends;
mod trash_room;
mod udev;
#[path = "../black_box/unstaged_kills.rs"]
mod unstaged_kills;
#[path = "../black_box/volume_groups.rs"]
mod volume_groups;
#[path = "../black_box/volumes.rs"]
mod volumes;
