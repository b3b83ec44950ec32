//! The upstream conformance tool finds nothing wrong.
//!
//! Image directories on ext4 and on xfs with reflinks × volumes with ext4 and xfs × mounted and raw, with everything
//! switched on; the defaults; and three random orders. Nothing may be skipped.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::format_collect,
    reason = "tests fail by panicking"
)]

mod tool;

use drumlin_tests::{
    agent::Agent,
    storage::{Kind, Scratch},
};

use tool::{ALL, check, run};

/// Runs every spec over images on `storage`, whose volumes get `fs_type`.
async fn over(storage: Kind, fs_type: &str, access: &str, more: &[&str]) {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", storage, 16 << 10);
    let classes = format!(
        "classes:\n- name: default\n  directory: {{path: {}, fsType: {fs_type}}}\n",
        images.display()
    );
    check(scratch, &classes, access, more).await;
}

macro_rules! combinations {
    ($($name:ident: $storage:ident, $fs_type:literal, $access:literal;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                over(Kind::$storage, $fs_type, $access, &[]).await;
            }
        )*
    };
}

combinations! {
    mounted_ext4_volumes_on_ext4: Ext4, "ext4", "mount";
    mounted_xfs_volumes_on_ext4: Ext4, "xfs", "mount";
    mounted_ext4_volumes_on_xfs: Xfs, "ext4", "mount";
    mounted_xfs_volumes_on_xfs: Xfs, "xfs", "mount";
    raw_ext4_volumes_on_ext4: Ext4, "ext4", "block";
    raw_xfs_volumes_on_ext4: Ext4, "xfs", "block";
    raw_ext4_volumes_on_xfs: Xfs, "ext4", "block";
    raw_xfs_volumes_on_xfs: Xfs, "xfs", "block";
}

async fn in_random_order(seed: &str) {
    let seed = format!("--ginkgo.seed={seed}");
    let more = ["--ginkgo.randomize-all", &seed];
    over(Kind::Xfs, "ext4", "mount", &more).await;
}

#[tokio::test]
async fn a_random_order() {
    in_random_order("20261121").await;
}

#[tokio::test]
async fn more_random_orders() {
    in_random_order("1").await;
    in_random_order("4711").await;
}

#[tokio::test]
async fn the_defaults() {
    let agent = Agent::start().await;
    let outcome = run(&agent, &[]);
    // Without attach nothing of publishing runs.
    let more = &outcome.skipped;
    let is_switched_off = |name: &String| {
        [
            "ControllerPublishVolume",
            "ControllerUnpublishVolume",
            "[Controller Server] volume lifecycle",
        ]
        .iter()
        .any(|call| name.contains(call))
    };
    assert!(more.iter().all(is_switched_off), "{more:#?}");
    assert_eq!(outcome.passed + more.len(), ALL);
}
