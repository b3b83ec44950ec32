//! What encryption costs: calls over a thin pool in turns with a class that does not encrypt, over the same pool. Runs in
//! the lab.

use std::{
    fs::File,
    io::Write,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options},
    requests::{create, delete, mounted, stage, unstage},
    storage::{Scratch, lvm},
};

use crate::measure::{Table, median, sized, timed};

/// The classes: the encrypted one first.
const CLASSES: [&str; 2] = ["encrypted", "plain"];

async fn subject() -> Agent {
    let scratch = Scratch::new();
    let (group, key) = (scratch.volume_group(1 << 10), scratch.key("key"));
    lvm("lvcreate", &["-L", "1500M", "-T", &format!("{group}/pool")]);
    let class = format!("thin: {{volumeGroup: {group}, pool: pool, overcommit: 10}}");
    let encryption = format!(
        "encryption: {{type: luks2, key: {{file: {}}}}}",
        key.display()
    );
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: encrypted, default: true, {class}, {encryption}}}\n- {{name: plain, {class}}}\n"
        )),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// What one volume took, call by call.
#[derive(Default)]
struct Times {
    created: Vec<Duration>,
    first_staged: Vec<Duration>,
    unstaged: Vec<Duration>,
    staged: Vec<Duration>,
    written: Vec<Duration>,
    deleted: Vec<Duration>,
}

pub(crate) async fn thin(table: &mut Table) {
    let agent = subject().await;
    let mut times = [Times::default(), Times::default()];
    for pair in 0..sized(10, 2) {
        // They take turns at being first.
        let mut order = [0, 1];
        order.rotate_left(pair % 2);
        for class in order {
            volume(&agent, CLASSES[class], pair, &mut times[class]).await;
        }
    }
    let [encrypted, plain] = times;
    for (figure, ours, theirs, wanted) in [
        ("create", encrypted.created, plain.created, 1.5),
        (
            "stage the first time (ext4)",
            encrypted.first_staged,
            plain.first_staged,
            10.0,
        ),
        ("unstage", encrypted.unstaged, plain.unstaged, 10.0),
        ("stage again", encrypted.staged, plain.staged, 10.0),
        (
            "write and sync 16 MiB",
            encrypted.written,
            plain.written,
            20.0,
        ),
        ("delete", encrypted.deleted, plain.deleted, 5.0),
    ] {
        let figure = format!("{figure}: encrypted beside not");
        table.ratio(&figure, (median(ours), median(theirs)), wanted);
    }
}

async fn volume(agent: &Agent, class: &str, number: usize, times: &mut Times) {
    let ext4 = mounted("ext4");
    let name = format!("{class}-{number}");
    let staging = agent.scratch.directory(&name);
    let staging = staging.to_string_lossy().into_owned();
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..create(&name, 64, &ext4)
    };
    let (made, time) = timed(agent.controller().create_volume(request)).await;
    times.created.push(time);
    let id = made.unwrap().into_inner().volume.unwrap().volume_id;
    let (staged, time) = timed(agent.node().node_stage_volume(stage(&id, &staging, &ext4))).await;
    staged.unwrap();
    times.first_staged.push(time);
    let begun = Instant::now();
    let mut file = File::create(format!("{staging}/file")).unwrap();
    file.write_all(&vec![7; 16 << 20]).unwrap();
    file.sync_all().unwrap();
    times.written.push(begun.elapsed());
    drop(file);
    let (unstaged, time) = timed(agent.node().node_unstage_volume(unstage(&id, &staging))).await;
    unstaged.unwrap();
    times.unstaged.push(time);
    let (staged, time) = timed(agent.node().node_stage_volume(stage(&id, &staging, &ext4))).await;
    staged.unwrap();
    times.staged.push(time);
    agent
        .node()
        .node_unstage_volume(unstage(&id, &staging))
        .await
        .unwrap();
    let (deleted, time) = timed(agent.controller().delete_volume(delete(&id))).await;
    deleted.unwrap();
    times.deleted.push(time);
}
