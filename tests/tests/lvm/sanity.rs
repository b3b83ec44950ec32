//! The upstream conformance tool over thin pools.

use drumlin_tests::{agent::thin_classes, storage::Scratch};

use crate::tool::check;

async fn over_thin(access: &str, more: &[&str]) {
    let scratch = Scratch::new();
    let classes = thin_classes(&scratch);
    check(scratch, &classes, access, more).await;
}

#[tokio::test]
async fn mounted_thin_volumes() {
    over_thin("mount", &[]).await;
}

#[tokio::test]
async fn raw_thin_volumes() {
    over_thin(
        "block",
        &["--ginkgo.randomize-all", "--ginkgo.seed=20261121"],
    )
    .await;
}
