//! Speed and memory of a release build beside the bare programs that do the same, in one run.
//!
//! Every ratio is of two medians, measured in turns on the same file system, so that neither gets the better moment.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::as_conversions,
    reason = "a benchmark ends at the first thing that goes wrong, and prints what it found"
)]

mod calls;
mod changed;
mod cluster;
mod driver;
mod encryption;
mod groups;
mod idle;
mod kubernetes;
mod lvm;
mod manifests;
mod measure;
mod metadata;
mod node_calls;
mod peer;
mod process;
mod snapshot_metadata;
mod traces;

use measure::Table;

#[tokio::main]
async fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    let mut table = Table::default();
    // In the lab, where nothing can be built: the binary is told.
    let mut names = only.iter().map(String::as_str);
    if let Some(section) = names.find(|name| name.ends_with("lvm")) {
        match section {
            "lvm" => lvm::thin(&mut table).await,
            "groups-lvm" => groups::thin(&mut table).await,
            "encryption-lvm" => encryption::thin(&mut table).await,
            "changed-lvm" => snapshot_metadata::thin(&mut table).await,
            other => panic!("there is no section {other}"),
        }
        println!("\n{}", table.render());
        return;
    }
    if wanted("changed") {
        changed::shared_blocks(&mut table);
        changed::memory(&mut table);
        snapshot_metadata::directory(&mut table).await;
    }
    if only == ["changed"] {
        println!("\n{}", table.render());
        return;
    }
    if let [name, arguments @ ..] = only.as_slice()
        && name == metadata::WALK
    {
        metadata::walk(arguments);
        return;
    }
    // It takes minutes, and 4 GiB of disk.
    if only.iter().any(|one| one == "metadata") {
        metadata::changed_blocks(&mut table);
        println!("\n{}", table.render());
        return;
    }
    process::build();
    // In the other labs.
    if only
        .iter()
        .any(|one| one == "kubernetes" || one == "cluster")
    {
        beside_kubernetes(&mut table, &only).await;
        println!("\n{}", table.render());
        return;
    }
    if wanted("groups") {
        groups::directory(&mut table).await;
    }
    if wanted("calls") {
        calls::creation(&mut table).await;
        calls::mount(&mut table).await;
        calls::snapshots(&mut table).await;
        calls::small(&mut table).await;
    }
    if wanted("process") {
        process::start_and_memory(&mut table).await;
    }
    if wanted("traces") {
        traces::creation(&mut table).await;
    }
    if wanted("peer") {
        peer::host_path_beside_ours(&mut table).await;
    }
    if wanted("manifests") {
        manifests::manifests(&mut table).await;
    }
    println!("\n{}", table.render());
}

/// Beside an API server, or in a whole cluster: all of it, or the parts that are named.
async fn beside_kubernetes(table: &mut Table, only: &[String]) {
    let part = |name: &str| only.len() == 1 || only.iter().any(|one| one == name);
    if only.iter().any(|one| one == "cluster") {
        return cluster::cluster(table, part).await;
    }
    if part("latency") {
        kubernetes::latency(table).await;
    }
    if part("memory") {
        kubernetes::memory(table).await;
    }
    if part("fleet") {
        kubernetes::fleet(table).await;
    }
    if part("calls") {
        node_calls::node_calls(table).await;
    }
    if part("quiet") {
        kubernetes::quiet(table).await;
    }
}
