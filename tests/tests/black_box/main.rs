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

mod access_modes;
mod attach;
mod bad_input;
mod btrfs_thaw;
mod capacity;
mod changed_block_histories;
mod class_changes;
mod class_trouble;
mod classes;
mod clean_copies;
mod colours;
mod concurrency;
mod configuration_file;
mod content;
mod controller_arguments;
mod csi_pre_v1_calls;
mod csi_pre_v1_in_use;
mod csi_pre_v1_spec;
mod csi_v1_node_spec;
mod csi_v1_snapshot_spec;
mod csi_v1_spec;
mod delete_blank_volume;
mod describe_and_events;
mod dialect;
mod dialect_requests;
mod dialects;
mod diff_breaks;
mod diff_command;
mod doctor;
mod empty_requests;
mod examples;
mod external_damage;
mod foreign_files;
mod foreign_fstab;
mod foreign_helpers;
mod get_and_wait;
mod group_consistency;
mod group_snapshots;
mod group_trouble;
mod health;
mod helpers;
mod histories;
mod host;
mod hostile_clients;
mod interruption;
mod interruption_of_manifests;
mod kept;
mod lab_shell;
mod life;
mod list_cache;
mod lost_state;
mod manifest_group_snapshots;
mod manifest_groups;
mod manifest_polling;
mod manifest_power_cut;
mod manifest_schedules;
mod manifests;
mod manifests_in_trouble;
mod manifests_on_another_disk;
mod metrics;
mod mount_conflicts;
mod mount_group;
mod mount_roots;
mod node;
mod node_arguments;
mod node_rename;
mod nomad;
mod outcomes;
mod pending_calls;
mod ping;
mod plan_and_apply;
mod plugin_process;
mod power_cut;
mod process;
mod progress;
mod prune;
mod raw_copies;
mod reclaim;
mod refused_calls;
mod registration;
mod required_fields;
mod restore_command;
mod rollback;
mod rollback_command;
mod rollback_kills;
mod schedule_clocks;
mod service_manager;
mod signals;
mod silent_class;
mod snapshot_metadata;
mod snapshot_topology;
mod snapshot_uuid;
mod stalled_disk;
mod stalled_paths;
mod subject;
mod thaw_watchdog;
mod timed;
mod tour;
mod traces;
mod trash;
mod trash_clock;
mod trash_of_classes;
mod trash_of_manifests;
mod undelete_for_manifests;
mod unstaged_kills;
mod unused_growth;
mod validate_command;
mod volume_groups;
mod volumes;
mod wire;
