//! Programs of LVM's that an administrator started and that were killed: the next start of the agent mends what they left.

use std::{
    thread,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::ProbeRequest;
use drumlin_tests::{
    agent::{Agent, Options},
    programs::{output, program, run},
    requests::{create, delete, delete_snapshot, raw, snapshot},
    state::{assert_devices_work, assert_pool_is_known},
    storage::{Scratch, lvm},
};

use crate::{
    groups::{name_of, names, thin},
    helpers::{bytes_of, ok, volume},
};

/// How often each program is killed at the least, at instants that are spread over how long it takes.
const KILLS: u32 = 8;

/// How often until a kill has met something: what is to be mended is there for some milliseconds of a second.
const PATIENCE: u32 = 50;

/// Where in its course the program is killed: the golden ratio's multiples are spread evenly, however many there are.
fn share(kill: u32) -> f64 {
    (f64::from(kill) * 0.618_034).fract()
}

/// Starts a program of LVM's and kills it.
fn killed(arguments: &[String], after: Duration) {
    let mut program = program("lvm").args(arguments).spawn().unwrap();
    thread::sleep(after);
    let _ = program.kill();
    program.wait().unwrap();
}

/// Every device of the group runs, and has the length that LVM's record says.
fn check(group: &str) {
    let name = group.replace('-', "--");
    assert_devices_work(group);
    let told = output("lvs", &["-a", group]);
    let complaints = String::from_utf8_lossy(&told.stderr);
    assert!(
        told.status.success() && !complaints.contains("thin segment"),
        "{complaints}"
    );
    let sectors = run("dmsetup", &["table", &format!("{name}-pool_tmeta")]);
    let sectors: u64 = sectors
        .lines()
        .map(|line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap())
        .sum();
    let columns = [
        "-a",
        "--noheadings",
        "--units",
        "s",
        "--nosuffix",
        "-o",
        "lv_size",
    ];
    let recorded = lvm(
        "lvs",
        &[&columns[..], &[&format!("{group}/pool_tmeta")]].concat(),
    );
    assert_eq!(sectors.to_string(), recorded.trim());
}

async fn mends(grow: impl Fn(u32, &str) -> Vec<String>) {
    let scratch = Scratch::new();
    let group = scratch.volume_group(2 << 10);
    let pool = format!("{group}/pool");
    lvm(
        "lvcreate",
        &["-L", "400M", "--poolmetadatasize", "4M", "-T", &pool],
    );
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, thin: {{volumeGroup: {group}, pool: pool, overcommit: 5}}}}]\n"
        )),
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    let id = volume(&agent, "v", 16, &raw()).await;
    let device = bytes_of(&agent, &id);
    std::fs::write(&device, b"kept").unwrap();
    let mut length = Duration::MAX;
    // The first one finds nothing in any cache and takes longer than those that are to be met.
    for first in 0..2 {
        let growth = grow(first, &pool);
        let growth: Vec<&str> = growth.iter().map(String::as_str).collect();
        let begun = Instant::now();
        run("lvm", &growth);
        length = length.min(begun.elapsed());
    }
    for kill in 1..=PATIENCE {
        if kill > KILLS && agent.log().contains("WARN") {
            break;
        }
        agent.kill();
        killed(&grow(kill + 1, &pool), length.mul_f64(share(kill)));
        agent.restart().await;
        ok(agent.identity().probe(ProbeRequest {}).await);
        let other = ok(agent
            .controller()
            .create_volume(create("other", 16, &raw()))
            .await);
        let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await);
        let request = delete_snapshot(&taken.snapshot.unwrap().snapshot_id);
        ok(agent.controller().delete_snapshot(request).await);
        let other = other.volume.unwrap().volume_id;
        ok(agent.controller().delete_volume(delete(&other)).await);
        assert_eq!(&std::fs::read(&device).unwrap()[..4], b"kept");
        check(&group);
    }
    assert!(
        agent.log().contains("WARN"),
        "no kill met anything in {length:?}"
    );
}

#[tokio::test]
async fn the_growth_of_a_pool() {
    mends(|number, pool| {
        let size = format!("{}M", 410 + 10 * number);
        ["lvextend", "-q", "-L", &size, pool]
            .map(str::to_owned)
            .into()
    })
    .await;
}

#[tokio::test]
async fn the_growth_of_a_pools_metadata() {
    mends(|number, pool| {
        let size = format!("{}M", 5 + number);
        ["lvextend", "-q", "--poolmetadatasize", &size, pool]
            .map(str::to_owned)
            .into()
    })
    .await;
}

/// Notes in the group's record what the pool is to do, which it has done: LVM was killed just then.
fn note_what_was_done(agent: &Agent, group: &str, note: &str) {
    let path = agent.path("record");
    let path = path.to_str().unwrap();
    lvm("vgcfgbackup", &["-f", path, group]);
    let record = std::fs::read_to_string(path).unwrap();
    let last = "zero_new_blocks = 1";
    assert!(record.contains(last), "{record}");
    let noted = format!("{last}\nmessage1 {{\n{note}\n}}");
    std::fs::write(path, record.replacen(last, &noted, 1)).unwrap();
    lvm("vgcfgrestore", &["-y", "--force", "-f", path, group]);
}

#[tokio::test]
async fn a_note_that_a_pool_has_followed() {
    for (is_active, has_made) in [(true, false), (false, false), (true, true)] {
        let mut agent = thin(400, &["-L", "600M"], "overcommit: 10").await;
        let group = agent.scratch.group().unwrap();
        let mut ids = Vec::new();
        for name in ["a", "b", "c"] {
            ids.push(volume(&agent, name, 16, &raw()).await);
        }
        agent.kill();
        lvm("vgchange", &["-an", &group]);
        if is_active {
            lvm("lvchange", &["-ay", &format!("{group}/pool")]);
        }
        let note = if has_made {
            format!("create = {:?}", name_of(&ids[2]))
        } else {
            "delete = 99".to_owned()
        };
        note_what_was_done(&agent, &group, &note);
        agent.restart().await;
        for id in &ids[..2] {
            ok(agent.controller().delete_volume(delete(id)).await);
            assert_pool_is_known(&group, "pool");
        }
        assert_eq!(names(&agent), [&name_of(&ids[2]), "pool"]);
        std::fs::write(bytes_of(&agent, &ids[2]), b"kept").unwrap();
        volume(&agent, "d", 16, &raw()).await;
        assert_pool_is_known(&group, "pool");
    }
}
