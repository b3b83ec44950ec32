//! dmeventd grows the stores of snapshots where the host's settings say so.

use std::{fs::File, os::unix::fs::FileExt, time::Duration};

use drumlin_tests::{
    agent::{Agent, Volumes},
    does_not_apply,
    requests::{raw, snapshot},
    storage::lvm,
};

use crate::{
    group_snapshots::take,
    groups::{group, thick, within},
    helpers::{bytes_of, ok, volume},
    processes::Settings,
};

/// dmeventd looks at the stores every ten seconds.
const LOOKS: Duration = Duration::from_mins(1);

/// Of each snapshot: its name, the mebibytes of its store, and whether that holds still.
fn stores(agent: &Agent) -> Vec<(String, u64, bool)> {
    let columns = "lv_name,lv_size,lv_snapshot_invalid";
    let words = ["--noheadings", "--units", "m", "--nosuffix", "-o", columns];
    let listed = lvm(
        "lvs",
        &[
            &words[..],
            &[
                "-S",
                "lv_role=snapshot && lv_role=thicksnapshot",
                &group(agent),
            ],
        ]
        .concat(),
    );
    let lines = listed.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mebibytes = words[1].split('.').next().unwrap().parse().unwrap();
        (words[0].to_owned(), mebibytes, words.len() == 2)
    });
    lines.collect()
}

#[tokio::test]
async fn the_store_of_a_member_of_a_group_snapshot_grows_as_that_of_a_single_one() {
    if Volumes::asked() != Volumes::Thin {
        return does_not_apply!("it asks for its pool itself");
    }
    let _settings = Settings::say(
        "/etc/lvm/lvm.conf",
        "activation { monitoring=1 snapshot_autoextend_threshold=70 snapshot_autoextend_percent=100 }",
    );
    let agent = thick(512, "snapshotSize: 25%").await;
    let id = volume(&agent, "v", 64, &raw()).await;
    ok(agent
        .controller()
        .create_snapshot(snapshot("single", &id))
        .await);
    take(&agent, "g", &[id.clone()]).await;
    let before = stores(&agent);
    assert_eq!(before.len(), 2, "{before:?}");
    let device = File::options()
        .write(true)
        .open(bytes_of(&agent, &id))
        .unwrap();
    device.write_all_at(&vec![1; 13 << 20], 0).unwrap();
    device.sync_all().unwrap();
    let grown = within(LOOKS, "a store that dmeventd has grown", async {
        loop {
            let now = stores(&agent);
            let mut pairs = now.iter().zip(&before);
            if pairs.all(|(now, before)| now.1 > before.1) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    grown.await;
    device.write_all_at(&vec![2; 10 << 20], 16 << 20).unwrap();
    device.sync_all().unwrap();
    let after = stores(&agent);
    assert!(after.iter().all(|(_, _, holds)| *holds), "{after:?}");
}
