//! How far a wipe or a rollback of a thick volume is: in the status, in the log, and as a bar on a terminal.

use std::{fs::File, os::unix::fs::FileExt};

use drumlin_tests::{
    agent::{Options, Volumes, eventually},
    does_not_apply,
    programs::{drumlin, output},
    storage::Scratch,
};
use serde_json::Value;

use crate::{
    helpers::{bytes_of, text},
    host::{Host, group, object, volume},
};

impl Host {
    async fn thick(mebibytes: u64) -> Self {
        let scratch = Scratch::new();
        let group = scratch.volume_group(mebibytes);
        let class = format!("thick: {{volumeGroup: {group}, snapshotSize: 50%}}");
        let options = Options {
            config: Some(format!("classes: [{{name: default, {class}}}]\n")),
            ..Options::default()
        };
        Self::over(scratch, options).await
    }

    fn progress(&self, name: &str) -> Value {
        self.find("Volume", name).unwrap_or_default()["status"]["lastOperation"]["progress"].clone()
    }

    /// What a command shows on a terminal, until it ends or a time is over.
    fn on_a_terminal(&self, seconds: &str, command: &str) -> String {
        let program = text(drumlin());
        let state = text(self.agent.path("state"));
        let command = format!("timeout {seconds} {program} {command} --state-dir {state}");
        let seen = output("script", &["-qec", &command, "/dev/null"]);
        String::from_utf8_lossy(&seen.stdout).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wipe_says_how_far_it_is_in_status_log_and_bar() {
    if Volumes::asked() != Volumes::Linear {
        return does_not_apply!("thin volumes are not wiped");
    }
    let mut host = Host::thick(1 << 10).await;
    // A second for each of the steps, of which the reconciler waits for ten.
    let made = volume("v", "1600Mi", "volumeMode: Block\ndeletionPolicy: Delete");
    host.write("v.yaml", std::slice::from_ref(&made));
    host.until("v", &["Created"]).await;
    host.restart_with(Options::default().pausing_at("thick.wipe.step"))
        .await;
    let absent = "metadata:\n  annotations: {drumlin.dev/state: absent}\n";
    host.write("v.yaml", &[made.replace("metadata:\n", absent)]);
    let told = eventually(
        || host.progress("v"),
        |progress| progress["percent"].as_u64() > Some(0),
    )
    .await;
    assert_eq!(told["operation"], "wiping", "{told}");
    assert!(told["percent"].as_u64() < Some(100), "{told}");
    let seen = host.on_a_terminal("3", "wait dv/v --timeout 2s");
    assert!(seen.contains("Volume/default/v ["), "{seen:?}");
    assert!(seen.contains("% wiping"), "{seen:?}");
    let log = eventually(
        || host.agent.log(),
        |log| log.contains("operation in progress"),
    )
    .await;
    assert!(log.contains("wiping, "), "{log}");
    host.until("v", &["Deleted"]).await;
    assert_eq!(host.counts().await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_says_how_far_it_is_in_log_and_bar() {
    if Volumes::asked() != Volumes::Linear {
        return does_not_apply!("LVM rolls thin volumes back at once");
    }
    let mut host = Host::thick(256).await;
    let made = volume("v", "64Mi", "volumeMode: Block");
    host.write("v.yaml", &[made, group("pg", "v")]);
    host.until("pg", &["True"]).await;
    host.write(
        "s.yaml",
        &[object("GroupSnapshot", "before", "", "groupName: pg")],
    );
    host.until("before", &["True"]).await;
    let handle = host.object("Volume", "v")["status"]["volumeHandle"].clone();
    let device = bytes_of(&host.agent, handle.as_str().unwrap());
    let device = File::options().write(true).open(device).unwrap();
    // A mebibyte at each second, the last one first: positions are no measure of what is done.
    for at in (0..14).rev() {
        device.write_all_at(&vec![7; 1 << 20], at << 22).unwrap();
        device.sync_all().unwrap();
    }
    drop(device);
    host.restart_with(Options::default().pausing_at("thick.rollback.step"))
        .await;
    host.until("before", &["True"]).await;
    let endpoint = text(host.agent.socket());
    let command = format!("rollback dgsnap before --endpoint {endpoint}");
    let seen = host.on_a_terminal("60", &command);
    let percents = percents(&seen, "% rolling back");
    assert!(percents.len() > 5, "{seen:?}");
    assert!(percents.is_sorted(), "{percents:?}");
    assert!(percents.last() > Some(&80), "{percents:?}");
    assert!(seen.contains("B/s, "), "{seen:?}");
    assert!(seen.contains("rolled back to before"), "{seen:?}");
    assert!(host.agent.log().contains("rolling back, "));
}

/// The percents before these words.
fn percents(seen: &str, words: &str) -> Vec<u64> {
    let mut parts: Vec<&str> = seen.split(words).collect();
    parts.pop();
    let last = parts
        .into_iter()
        .filter_map(|part| part.split_whitespace().last());
    last.filter_map(|number| number.parse().ok()).collect()
}
