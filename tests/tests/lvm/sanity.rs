//! The upstream conformance tool over logical volumes.

use drumlin_tests::{agent::Volumes, storage::Scratch};

use crate::tool::check;

const MIXED: [&str; 2] = ["--ginkgo.randomize-all", "--ginkgo.seed=20261121"];

async fn over(volumes: Volumes, access: &str, more: &[&str]) {
    let scratch = Scratch::new();
    let classes = volumes.classes(&scratch);
    check(scratch, &classes, access, more).await;
}

#[tokio::test]
async fn mounted_thin_volumes() {
    over(Volumes::Thin, "mount", &[]).await;
}

#[tokio::test]
async fn raw_thin_volumes() {
    over(Volumes::Thin, "block", &MIXED).await;
}

#[tokio::test]
async fn mounted_thick_volumes() {
    over(Volumes::Linear, "mount", &MIXED).await;
}

#[tokio::test]
async fn raw_thick_volumes() {
    over(Volumes::Linear, "block", &[]).await;
}

#[tokio::test]
async fn raw_mirrored_volumes() {
    over(Volumes::Raid1, "block", &MIXED).await;
}
