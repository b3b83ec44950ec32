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
mod beneath;
mod clean_copies;
mod concurrency;
mod content;
mod damage;
mod dialect;
mod dialect_requests;
mod dialects;
mod examples;
mod group_snapshots;
mod group_trouble;
mod guard;
mod histories;
mod host;
mod hostile_clients;
mod interruption;
mod interruption_of_manifests;
mod kept;
mod kit;
mod lists;
mod lost_state;
mod manifest_group_snapshots;
mod manifest_groups;
mod manifests;
mod manifests_in_trouble;
mod node;
mod nomad;
mod old_calls;
mod old_texts;
mod one_moment;
mod power_cut;
mod process;
mod raw_copies;
mod reclaim;
mod renamed;
mod restoring;
mod rollback;
mod rollback_kills;
mod rolling_back;
mod room;
mod signals;
mod stalled_disk;
mod stalled_paths;
mod subject;
mod surroundings;
mod thawing;
mod unstaged_kills;
mod uses;
mod volume_groups;
mod volumes;
mod wire;
