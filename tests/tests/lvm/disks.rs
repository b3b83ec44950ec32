//! Disks that fail and stall: their class says so, and no other one is held up.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, GetCapacityRequest, ListVolumesRequest, ProbeRequest,
};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    programs::output,
    requests::{create, delete, mounted, raw, stage},
    storage::lvm,
};
use nix::fcntl::{Flock, FlockArg};
use tonic::Code;

use crate::{
    dm_faults::Bench,
    groups::{condition, group, name_of, names, soon, within},
    helpers::{bytes_of, get, mount, ok, paths, put, refused, unmount, volume},
    processes::keep_to,
};

/// So long at the most anybody is kept who asks for disks that do not answer: 5 s, and what a busy machine adds.
const ANSWER: Duration = Duration::from_secs(15);
/// So long at the most hundreds are, who ask at the same time.
const ANSWERS: Duration = Duration::from_mins(1);
/// So long the agent itself waits for disks that do not answer.
const WAIT: Duration = Duration::from_secs(5);

fn in_class(class: &str, name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..create(name, 4, &raw())
    }
}

/// The classes over other storage do all that they did.
async fn others_serve(agent: &Agent) {
    let mut took = Vec::new();
    for class in ["steady", "files"] {
        let mut controller = agent.controller();
        let made = within(
            ANSWER,
            class,
            controller.create_volume(in_class(class, class)),
        )
        .await;
        let id = ok(made).volume.unwrap().volume_id;
        let begun = Instant::now();
        assert!(!soon("condition", condition(agent, &id)).await.abnormal);
        ok(soon("delete", controller.delete_volume(delete(&id))).await);
        let request = GetCapacityRequest {
            parameters: [("class".to_owned(), class.to_owned())].into(),
            ..GetCapacityRequest::default()
        };
        ok(soon("capacity", controller.get_capacity(request)).await);
        took.push(begun.elapsed());
    }
    // A busy machine may hold up one of them; what waits for disks would hold up both.
    assert!(took.iter().any(|took| *took < WAIT), "{took:?}");
}

/// The class over the disks says that it does not serve, and why; the others do.
async fn only_one_is_bad(agent: &Agent) {
    let group = group(agent);
    let probe = within(ANSWER, "probe", agent.identity().probe(ProbeRequest {})).await;
    let message = refused(probe, Code::FailedPrecondition);
    assert!(
        message.contains("class fast") && message.contains(&group),
        "{message}"
    );
    assert!(
        !message.contains("steady") && !message.contains("files"),
        "{message}"
    );
    let mut controller = agent.controller();
    let request = create("refused", 4, &raw());
    let status = within(ANSWER, "create", controller.create_volume(request))
        .await
        .expect_err("its disks are bad");
    let codes = [Code::FailedPrecondition, Code::Aborted];
    assert!(codes.contains(&status.code()), "{status:?}");
    assert!(status.message().contains(&group), "{status:?}");
    // What is left out of a list would look lost.
    let list = within(
        ANSWER,
        "list",
        controller.list_volumes(ListVolumesRequest::default()),
    )
    .await;
    let status = list.expect_err("it cannot be whole");
    let codes = [Code::FailedPrecondition, Code::Unavailable];
    assert!(codes.contains(&status.code()), "{status:?}");
    assert!(status.message().contains(&group), "{status:?}");
    others_serve(agent).await;
}

/// All classes serve.
async fn all_is_well(agent: &Agent) {
    soon("the answer of the disks", async {
        while let Err(status) = agent.identity().probe(ProbeRequest {}).await {
            assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        }
    })
    .await;
    let mut controller = agent.controller();
    ok(soon(
        "list",
        controller.list_volumes(ListVolumesRequest::default()),
    )
    .await);
    let made = within(
        ANSWER,
        "create",
        controller.create_volume(create("after", 4, &raw())),
    )
    .await;
    let id = ok(made).volume.unwrap().volume_id;
    ok(soon("delete", controller.delete_volume(delete(&id))).await);
    others_serve(agent).await;
}

fn write_at(agent: &Agent, id: &str, bytes: &[u8]) {
    let file = File::options()
        .write(true)
        .open(bytes_of(agent, id))
        .unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test]
async fn a_class_whose_disk_fails_says_so_until_it_works_again() {
    let bench = Bench::new((1, 400), "thick: {volumeGroup: GROUP}", |_| {}).await;
    let agent = &bench.agent;
    let id = volume(agent, "v", 64, &raw()).await;
    write_at(agent, &id, b"precious");
    let path = bytes_of(agent, &id);
    for _ in 0..2 {
        bench.disk(0).fails();
        assert!(
            output(
                "dd",
                &[
                    "if=/dev/zero",
                    "oflag=direct",
                    "bs=4k",
                    "count=1",
                    "seek=9",
                    &format!("of={}", path.display())
                ]
            )
            .status
            .code()
                != Some(0)
        );
        only_one_is_bad(agent).await;
        bench.disk(0).works();
        all_is_well(agent).await;
        assert!(!condition(agent, &id).await.abnormal);
    }
    assert!(fs::read(&path).unwrap().starts_with(b"precious"));
}

#[tokio::test]
async fn a_disk_that_fails_now_and_then_loses_nothing_that_was_acknowledged() {
    let bench = Bench::new((1, 400), "thick: {volumeGroup: GROUP}", |_| {}).await;
    let agent = &bench.agent;
    volume(agent, "first", 4, &raw()).await;
    bench.disk(0).flickers();
    let (mut made, mut unsure) = (BTreeMap::new(), BTreeSet::new());
    let mut controller = agent.controller();
    let begun = Instant::now();
    let mut number = 0;
    while begun.elapsed() < Duration::from_secs(12) {
        number += 1;
        let name = format!("v{number}");
        let answer = controller.create_volume(create(&name, 4, &raw())).await;
        match answer {
            Ok(answer) => {
                made.insert(name, answer.into_inner().volume.unwrap().volume_id);
            }
            Err(_) => {
                unsure.insert(name);
            }
        }
        if made.len() > 4 {
            let (name, id) = made.pop_first().unwrap();
            if controller.delete_volume(delete(&id)).await.is_err() {
                unsure.insert(name);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        !made.is_empty() && !unsure.is_empty(),
        "{made:?} {unsure:?}"
    );
    bench.disk(0).works();
    all_is_well(agent).await;
    for id in made.values() {
        assert!(!condition(agent, id).await.abnormal);
        assert!(
            fs::read(bytes_of(agent, id))
                .unwrap()
                .iter()
                .all(|byte| *byte == 0)
        );
    }
    for name in unsure {
        made.insert(name.clone(), volume(agent, &name, 4, &raw()).await);
    }
    for id in made.into_values() {
        ok(controller.delete_volume(delete(&id)).await);
    }
    assert_eq!(names(agent).len(), 1, "{:?}", names(agent));
}

#[tokio::test]
async fn a_pool_that_has_failed_says_what_repairs_it() {
    let bench = Bench::new(
        (1, 400),
        "thin: {volumeGroup: GROUP, pool: pool}",
        |group| {
            lvm("lvcreate", &["-L", "200M", "-T", &format!("{group}/pool")]);
        },
    )
    .await;
    let agent = &bench.agent;
    let id = volume(agent, "v", 64, &raw()).await;
    write_at(agent, &id, b"precious");
    bench.disk(0).fails();
    // A change of its metadata that it cannot write down.
    let pool = format!("{}-pool-tpool", group(agent).replace('-', "--"));
    output("dmsetup", &["message", &pool, "0", "create_thin 100"]);
    output("dmsetup", &["status", &pool]);
    only_one_is_bad(agent).await;
    bench.disk(0).works();
    let probe = soon("probe", agent.identity().probe(ProbeRequest {})).await;
    let message = refused(probe, Code::FailedPrecondition);
    assert!(
        message.contains("class fast") && message.contains("lvconvert --repair"),
        "{message}"
    );
    let seen = soon("condition", condition(agent, &id)).await;
    assert!(seen.abnormal && seen.message.contains("/pool"), "{seen:?}");
    let made = agent
        .controller()
        .create_volume(create("new", 4, &raw()))
        .await;
    refused(made, Code::FailedPrecondition);
    others_serve(agent).await;
    let group = group(agent);
    lvm(
        "lvchange",
        &[
            "-an",
            &format!("{group}/{}", name_of(&id)),
            &format!("{group}/pool"),
        ],
    );
    lvm("lvconvert", &["-y", "--repair", &format!("{group}/pool")]);
    lvm("lvchange", &["-ay", &format!("{group}/pool")]);
    all_is_well(agent).await;
    assert!(!condition(agent, &id).await.abnormal);
    assert!(
        fs::read(bytes_of(agent, &id))
            .unwrap()
            .starts_with(b"precious")
    );
}

#[tokio::test]
async fn a_volume_goes_on_with_one_leg_of_its_mirror() {
    let class = "thick: {volumeGroup: GROUP, layout: raid1}";
    let bench = Bench::new((2, 300), class, |_| {}).await;
    let agent = &bench.agent;
    let capability = mounted("ext4");
    let id = volume(agent, "v", 64, &capability).await;
    let at = mount(agent, "v", &id, &capability).await;
    put(&at.1, "before", b"precious");
    let path = format!("{}/{}", group(agent), name_of(&id));
    let synced = || lvm("lvs", &["--noheadings", "-o", "sync_percent", &path]);
    eventually(synced, |synced| synced.trim().starts_with("100")).await;
    bench.disk(1).fails();
    put(&at.1, "during", b"precious too");
    let seen = soon("condition", condition(agent, &id)).await;
    assert!(
        seen.abnormal && seen.message.contains("a leg of its mirror is lost"),
        "{seen:?}"
    );
    assert!(seen.message.contains("lvchange --refresh"), "{seen:?}");
    assert_eq!(get(&at.1, "before"), b"precious");
    let made = agent
        .controller()
        .create_volume(create("new", 4, &raw()))
        .await;
    let message = refused(made, Code::FailedPrecondition);
    assert!(message.contains(&group(agent)), "{message}");
    // It can be let go and taken again, too.
    unmount(agent, &id, &at).await;
    let at = mount(agent, "v", &id, &capability).await;
    others_serve(agent).await;

    bench.disk(1).works();
    lvm("lvchange", &["--refresh", &path]);
    eventually(synced, |synced| synced.trim().starts_with("100")).await;
    assert!(!condition(agent, &id).await.abnormal);
    all_is_well(agent).await;
    // What it has written meanwhile is on both.
    unmount(agent, &id, &at).await;
    lvm("lvchange", &["-an", &path]);
    bench.disk(0).fails();
    let at = mount(agent, "v", &id, &capability).await;
    assert_eq!(get(&at.1, "during"), b"precious too");
    unmount(agent, &id, &at).await;
}

#[tokio::test]
async fn a_disk_that_is_gone_takes_only_the_volumes_that_are_on_it() {
    let bench = Bench::new((2, 100), "thick: {volumeGroup: GROUP}", |_| {}).await;
    let agent = &bench.agent;
    let capability = mounted("ext4");
    let mut ids = Vec::new();
    for name in ["first", "second"] {
        ids.push(volume(agent, name, 90, &capability).await);
        let id = &ids[ids.len() - 1];
        let at = mount(agent, name, id, &capability).await;
        put(&at.1, "file", b"precious");
        unmount(agent, id, &at).await;
    }
    lvm("vgchange", &["-an", &group(agent)]);
    bench.disk(1).fails();
    let mut conditions = Vec::new();
    for id in &ids {
        conditions.push(soon("condition", condition(agent, id)).await);
    }
    assert_eq!(
        conditions.iter().filter(|one| one.abnormal).count(),
        1,
        "{conditions:?}"
    );
    let lost = usize::from(conditions[1].abnormal);
    assert!(
        conditions[lost].message.contains("a disk of volume group"),
        "{conditions:?}"
    );
    let (staging, _) = paths(agent, "lost");
    let mut node = agent.node();
    let staged = node.node_stage_volume(stage(&ids[lost], &staging, &capability));
    let message = refused(soon("stage", staged).await, Code::FailedPrecondition);
    assert!(message.contains("a disk of volume group"), "{message}");
    let at = mount(agent, "kept", &ids[1 - lost], &capability).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(agent, &ids[1 - lost], &at).await;
    bench.disk(1).works();
    let at = mount(agent, "back", &ids[lost], &capability).await;
    assert_eq!(get(&at.1, "file"), b"precious");
    unmount(agent, &ids[lost], &at).await;
    all_is_well(agent).await;
}

/// How many threads the agent has.
fn threads(agent: &Agent) -> usize {
    fs::read_dir(format!("/proc/{}/task", agent.pid()))
        .unwrap()
        .count()
}

/// Takes the lock by which LVM's programs keep each other out of a group.
fn lock(group: &str) -> Flock<File> {
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true);
    let file = options.open(format!("/run/lock/lvm/V_{group}")).unwrap();
    Flock::lock(file, FlockArg::LockExclusive).unwrap()
}

/// The programs that the agent has started and that have not ended.
fn programs(agent: &Agent) -> Vec<i32> {
    let pid = agent.pid();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children =
        tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children = children.collect::<Vec<_>>().join(" ");
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

#[tokio::test]
async fn disks_that_do_not_answer_hold_up_nobody_else() {
    let bench = Bench::new(
        (1, 400),
        "thin: {volumeGroup: GROUP, pool: pool}",
        |group| {
            lvm("lvcreate", &["-L", "200M", "-T", &format!("{group}/pool")]);
        },
    )
    .await;
    let agent = &bench.agent;
    let id = volume(agent, "v", 64, &raw()).await;
    let before = threads(agent);
    bench.disk(0).stalls();
    only_one_is_bad(agent).await;
    // More of them than the agent has threads, over fewer connections than it lets in.
    let clients: Vec<_> = (0..70).map(|_| agent.controller()).collect();
    let calls = (0..700).map(|number| {
        let (mut controller, id) = (clients[number % clients.len()].clone(), id.clone());
        tokio::spawn(async move {
            match number % 3 {
                0 => {
                    let request = create(&format!("n{number}"), 4, &raw());
                    let answer = controller.create_volume(request).await;
                    (Code::Aborted, answer.map(drop))
                }
                1 => {
                    let answer = controller.delete_volume(delete(&id)).await;
                    (Code::Aborted, answer.map(drop))
                }
                _ => {
                    let request = ListVolumesRequest::default();
                    let answer = controller.list_volumes(request).await;
                    (Code::Unavailable, answer.map(drop))
                }
            }
        })
    });
    let calls = futures::future::join_all(calls.collect::<Vec<_>>());
    for answer in within(ANSWERS, "an answer", calls).await {
        let (code, answer) = answer.unwrap();
        let status = answer.expect_err("nothing can be read");
        assert_eq!(status.code(), code, "{status:?}");
    }
    only_one_is_bad(agent).await;
    let now = threads(agent);
    // A few that the runtime keeps for a while, and none for each of the 700 calls: 12 and 13 were seen.
    assert!(now <= before + 24, "{before} threads became {now}");
    // One that waits for the next change, and one that looks.
    assert!(programs(agent).len() <= 2, "{:?}", programs(agent));
    bench.disk(0).works();
    all_is_well(agent).await;
    assert!(!condition(agent, &id).await.abnormal);
}

#[tokio::test]
async fn an_agent_starts_beside_disks_that_do_not_answer() {
    let mut bench = Bench::new((1, 400), "thick: {volumeGroup: GROUP}", |_| {}).await;
    volume(&bench.agent, "v", 4, &raw()).await;
    bench.agent.kill();
    bench.disk(0).stalls();
    bench.agent.restart().await;
    only_one_is_bad(&bench.agent).await;
    bench.disk(0).works();
    all_is_well(&bench.agent).await;
}

/// LVM reads all disks that are in it, whatever filters say, and complains of those.
#[tokio::test]
async fn disks_of_a_devices_file_that_do_not_answer_hold_up_nobody_else() {
    let mut bench = Bench::new((1, 400), "thick: {volumeGroup: GROUP}", |_| {}).await;
    volume(&bench.agent, "v", 4, &raw()).await;
    let all = lvm("pvs", &["--noheadings", "-o", "pv_name"]);
    let all: Vec<String> = all.lines().map(|line| line.trim().to_owned()).collect();
    let all: Vec<&String> = all.iter().collect();
    let says = "use_devicesfile=1 filter=[\"a|.*|\"]";
    let _kept = keep_to(says, &all);
    all_is_well(&bench.agent).await;
    bench.disk(0).stalls();
    only_one_is_bad(&bench.agent).await;
    bench.disk(0).works();
    // The same program of LVM's goes on with all disks.
    all_is_well(&bench.agent).await;
    bench.agent.kill();
    bench.disk(0).stalls();
    bench.agent.restart().await;
    only_one_is_bad(&bench.agent).await;
    bench.disk(0).works();
    all_is_well(&bench.agent).await;
}

#[tokio::test]
async fn what_a_kill_left_is_repaired_beside_disks_that_do_not_answer() {
    let mut bench = Bench::new((1, 400), "thick: {volumeGroup: GROUP}", |_| {}).await;
    volume(&bench.agent, "v", 4, &raw()).await;
    bench.agent.kill();
    let options = Options::default().killed_at("lvm.create.made");
    bench.agent.restart_with(options).await;
    let mut controller = bench.agent.controller();
    let answer = controller.create_volume(in_class("steady", "half-made"));
    answer.await.unwrap_err();
    bench.agent.wait_until_killed().await;
    bench.disk(0).stalls();
    bench.agent.restart_with(Options::default()).await;
    only_one_is_bad(&bench.agent).await;
    bench.disk(0).works();
    all_is_well(&bench.agent).await;
}

#[tokio::test]
async fn a_change_that_stalls_goes_on_when_it_can_and_is_never_killed() {
    let bench = Bench::new((1, 400), "thick: {volumeGroup: GROUP}", |_| {}).await;
    let agent = &bench.agent;
    volume(agent, "v", 4, &raw()).await;
    let before = names(agent);
    // What waits for the next change has ended.
    eventually(|| programs(agent).len(), |count| *count == 0).await;
    // It waits for its turn until the disk has stalled, so that it cannot be done before.
    let turn = lock(&group(agent));
    let mut controller = agent.controller();
    let first =
        tokio::spawn(async move { controller.create_volume(create("slow", 4, &raw())).await });
    let [program] = eventually(|| programs(agent), |all| all.len() == 1).await[..] else {
        panic!("it is one program")
    };
    bench.disk(0).stalls();
    drop(turn);
    // Its caller goes away.
    assert!(!first.is_finished());
    first.abort();
    let mut controller = agent.controller();
    for _ in 0..3 {
        let again = soon("again", controller.create_volume(create("slow", 4, &raw()))).await;
        refused(again, Code::Aborted);
    }
    only_one_is_bad(agent).await;
    let now = programs(agent);
    assert!(now.contains(&program), "it is still the same");
    bench.disk(0).works();
    eventually(|| programs(agent).len(), |count| *count == 0).await;
    let request = || create("slow", 4, &raw());
    while let Err(status) = controller.create_volume(request()).await {
        assert_eq!(status.code(), Code::Aborted, "{status:?}");
    }
    assert_eq!(names(agent).len(), before.len() + 1);
    assert!(
        !agent.log().contains("an incomplete volume"),
        "nothing was interrupted"
    );
    all_is_well(agent).await;
}
