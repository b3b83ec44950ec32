//! Thin pools that a class asks for, and that are made when they are first needed.

use std::{fs, iter, time::Duration};

use drumlin_proto::csi::v1::{GetCapacityRequest, ListVolumesRequest, ProbeRequest};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::programs_of,
    requests::{MIB, create, delete, raw},
    storage::{Scratch, lvm},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::Code;

use crate::{
    groups::stop_at,
    helpers::{ok, refused, volume},
    thaw_watchdog::until_stopped,
};

fn asking(group: &str, create: &str) -> Options {
    Options {
        config: Some(format!(
            "classes: [{{name: fast, thin: {{volumeGroup: {group}, pool: pool, create: {create}}}}}]\n"
        )),
        ..Options::default()
    }
}

/// An agent over two disks of 200 MiB, and the group's name.
async fn start(create: &str) -> (Agent, String) {
    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    let options = asking(&group, create);
    (Agent::with(scratch, options).await, group)
}

/// What volumes there are, the hidden ones too.
fn names(group: &str) -> Vec<String> {
    let text = lvm("lvs", &["-a", "--noheadings", "-o", "lv_name", group]);
    let names = text.lines().map(|line| line.trim().to_owned());
    let mut names: Vec<String> = names.filter(|name| !name.contains("dl-v-")).collect();
    names.sort();
    names
}

fn report(command: &str, column: &str, of: &str) -> String {
    let common = ["--noheadings", "--units", "k", "--nosuffix", "-o", column];
    let text = lvm(command, &[&common[..], &[of]].concat());
    text.trim().trim_end_matches(".00").to_owned()
}

async fn capacity(agent: &Agent) -> i64 {
    let request = GetCapacityRequest::default();
    let answer = agent.controller().get_capacity(request).await;
    ok(answer).available_capacity
}

const WHOLE_POOL: [&str; 4] = ["[lvol0_pmspare]", "[pool_tdata]", "[pool_tmeta]", "pool"];

#[tokio::test]
async fn a_pool_that_is_asked_for_is_made_with_the_first_volume_and_once() {
    let (mut agent, group) = start("{size: 80%VG, chunk: 128KiB, metadata: 4MiB}").await;
    ok(agent.identity().probe(ProbeRequest {}).await);
    // All of it is 320 MiB, of which twice its metadata is no room for volumes.
    assert_eq!(capacity(&agent).await, 312 * MIB);
    ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(names(&group), [""; 0], "nothing was made yet");

    let id = volume(&agent, "v", 12, &raw()).await;
    assert_eq!(names(&group), WHOLE_POOL);
    let pool = format!("{group}/pool");
    assert_eq!(report("lvs", "lv_size", &pool), (312 << 10).to_string());
    assert_eq!(report("lvs", "lv_metadata_size", &pool), "4096");
    assert_eq!(report("lvs", "chunk_size", &pool), "128");
    assert_eq!(report("lvs", "zero", &pool), "zero");
    assert_eq!(capacity(&agent).await, 300 * MIB);

    // Again, by a process that knows nothing of it.
    let changes = report("vgs", "vg_seqno", &group);
    agent.kill();
    agent.restart().await;
    assert_eq!(volume(&agent, "v", 12, &raw()).await, id);
    assert_eq!(report("vgs", "vg_seqno", &group), changes);

    // Removed by hand while the agent runs: it is not made again behind that hand's back.
    let other = volume(&agent, "other", 12, &raw()).await;
    for id in [id, other] {
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
    lvm("lvremove", &["-y", &pool]);
    let mut controller = agent.controller();
    let answer = controller.create_volume(create("w", 12, &raw()));
    let message = refused(answer.await, Code::FailedPrecondition);
    assert!(message.contains("has no thin pool pool"), "{message}");
}

#[tokio::test]
async fn a_pool_can_have_all_that_is_free() {
    let (agent, group) = start("{size: 100%FREE}").await;
    volume(&agent, "v", 12, &raw()).await;
    assert_eq!(report("vgs", "vg_free", &group), "0");
    // 2 MiB of metadata and as much to spare.
    let size = report("lvs", "lv_size", &format!("{group}/pool"));
    assert_eq!(size, (396 << 10).to_string());
}

#[tokio::test]
async fn a_pool_for_which_there_is_no_room_is_refused_and_nothing_is_left() {
    for size in ["10GiB", "400Mi", "100%VG"] {
        let scratch = Scratch::new();
        let group = scratch.volume_group(201);
        lvm("lvcreate", &["-L", "1M", "-n", "theirs", &group]);
        let options = asking(&group, &format!("{{size: {size}}}"));
        let agent = Agent::with(scratch, options).await;
        let mut controller = agent.controller();
        let answer = controller.create_volume(create("v", 4, &raw()));
        let message = refused(answer.await, Code::ResourceExhausted);
        assert!(
            message.contains("thin.create.size") && message.contains("vgextend"),
            "{message}"
        );
        assert_eq!(capacity(&agent).await, 0);
        let answer = agent.identity().probe(ProbeRequest {}).await;
        refused(answer, Code::FailedPrecondition);
        assert_eq!(names(&group), ["theirs"]);
        // Room is made: nothing else has to be done.
        if size == "100%VG" {
            lvm("lvremove", &["-y", &format!("{group}/theirs")]);
            volume(&agent, "v", 4, &raw()).await;
            assert_eq!(names(&group), WHOLE_POOL);
        }
    }
}

#[tokio::test]
async fn what_has_the_name_of_the_pool_is_used_if_it_is_one_and_else_left_alone() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    lvm("lvcreate", &["-L", "100M", "-T", &format!("{group}/pool")]);
    let options = asking(&group, "{size: 80%VG, chunk: 1MiB}");
    let agent = Agent::with(scratch, options).await;
    volume(&agent, "v", 12, &raw()).await;
    let pool = format!("{group}/pool");
    assert_eq!(report("lvs", "lv_size", &pool), (100 << 10).to_string());
    assert_eq!(report("lvs", "chunk_size", &pool), "64");
    assert_eq!(report("lvs", "lv_tags", &pool), "");

    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    lvm("lvcreate", &["-L", "4M", "-n", "pool", &group]);
    let agent = Agent::with(scratch, asking(&group, "{size: 80%VG}")).await;
    let mut controller = agent.controller();
    let answer = controller.create_volume(create("v", 4, &raw()));
    let message = refused(answer.await, Code::FailedPrecondition);
    assert!(message.contains("is not a thin pool"), "{message}");
    assert_eq!(names(&group), ["pool"]);
}

#[tokio::test]
async fn classes_that_share_a_pool_make_it_once() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    let class = |name: &str| {
        format!(
            "- {{name: {name}, default: {}, thin: {{volumeGroup: {group}, pool: pool, overcommit: 2, create: {{size: 80%VG}}}}}}\n",
            name == "a"
        )
    };
    let options = Options {
        config: Some(format!("classes:\n{}{}", class("a"), class("b"))),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let calls = (0..8).map(|number| {
        let mut controller = agent.controller();
        tokio::spawn(async move {
            let mut request = create(&format!("v{number}"), 4, &raw());
            let class = if number % 2 == 0 { "a" } else { "b" };
            request.parameters = [("class".to_owned(), class.to_owned())].into();
            ok(controller.create_volume(request).await);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(names(&group), WHOLE_POOL);
    assert_eq!(agent.log().matches("thin pool created").count(), 1);
}

/// The running `lvm` that makes a pool, or is about to.
fn maker(agent: i32) -> Option<i32> {
    programs_of(agent).into_iter().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.strip_suffix(&[0])
            .is_some_and(|name| name.ends_with(b"lvm"))
    })
}

#[tokio::test]
async fn a_pool_whose_making_was_killed_is_made_by_the_next_call() {
    let (mut agent, group) = start("{size: 300Mi}").await;
    let mut begun = 0;
    // LVM takes 40 to 100 ms in the lab; sometimes it dies with the agent, sometimes alone.
    let usual = (0_u64..=114).step_by(12);
    // It takes longer on a machine that is slow or busy.
    let later = iter::successors(Some(140_u64), |after| Some(after * 5 / 4));
    let later = later.take_while(|after| *after < 2500);
    for (round, after) in usual.chain(later).enumerate() {
        if begun > 0 && after > 114 {
            break;
        }
        let pid = agent.pid();
        let mut controller = agent.controller();
        let call = tokio::spawn(async move {
            let _ = controller.create_volume(create("v", 12, &raw())).await;
        });
        let maker = loop {
            match maker(pid) {
                Some(maker) => break maker,
                None => assert!(!call.is_finished(), "{}", agent.log()),
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        };
        tokio::time::sleep(Duration::from_millis(after)).await;
        let _ = kill(Pid::from_raw(maker), Signal::SIGKILL);
        if round % 2 == 0 {
            agent.kill();
            agent.restart().await;
        }
        call.await.unwrap();
        begun += usize::from(names(&group).contains(&"pool".to_owned()));
        let id = volume(&agent, "v", 12, &raw()).await;
        assert_eq!(names(&group), WHOLE_POOL, "{after} ms\n{}", agent.log());
        assert_eq!(report("vgs", "vg_tags", &group), "", "{after} ms");
        let size = report("lvs", "lv_size", &format!("{group}/pool"));
        assert_eq!(size, (300 << 10).to_string(), "{after} ms");
        ok(agent.controller().delete_volume(delete(&id)).await);
        lvm("lvremove", &["-y", &format!("{group}/pool")]);
        agent.kill();
        agent.restart().await;
    }
    assert!(begun > 0, "no kill came late enough");
}

#[tokio::test]
async fn an_agent_that_is_killed_after_it_made_the_pool_finds_it_again() {
    let (mut agent, group) = start("{size: 300Mi}").await;
    let options = Options::default().killed_at("lvm.pool.made");
    agent.kill();
    agent.restart_with(options).await;
    let mut controller = agent.controller();
    let answer = controller.create_volume(create("v", 12, &raw()));
    answer.await.unwrap_err();
    agent.wait_until_killed().await;
    assert_eq!(names(&group), WHOLE_POOL);
    agent.restart_with(Options::default()).await;
    volume(&agent, "v", 12, &raw()).await;
    assert_eq!(names(&group), WHOLE_POOL);
    assert_eq!(report("vgs", "vg_tags", &group), "");
}

#[tokio::test]
async fn what_lvm_left_of_a_pool_goes_unless_it_can_be_somebodys() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    let mark = |group: &str| {
        let number: u64 = report("vgs", "vg_seqno", group).parse().unwrap();
        let mark = format!("drumlin.making-pool={}.2", number + 1);
        lvm("vgchange", &["--addtag", &mark, group]);
    };
    // What LVM does first for a pool, and is killed then.
    mark(&group);
    lvm("lvcreate", &["-l", "2", &group]);
    assert_eq!(names(&group), ["lvol0"]);
    let agent = Agent::with(scratch, asking(&group, "{size: 300Mi}")).await;
    volume(&agent, "v", 12, &raw()).await;
    assert_eq!(names(&group), WHOLE_POOL);
    drop(agent);

    // The same, and something else has happened since.
    let scratch = Scratch::new();
    let group = scratch.volume_group(201);
    mark(&group);
    lvm("lvcreate", &["-l", "2", &group]);
    lvm("vgchange", &["--addtag", "theirs", &group]);
    let agent = Agent::with(scratch, asking(&group, "{size: 300Mi}")).await;
    volume(&agent, "v", 12, &raw()).await;
    assert!(names(&group).contains(&"lvol0".to_owned()));
    assert_eq!(report("vgs", "vg_tags", &group), "theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_makes_while_a_pool_is_planned_stays_his() {
    let (mut agent, group) = start("{size: 100%FREE}").await;
    stop_at(&mut agent, "lvm.pool.planned").await;
    let mut controller = agent.controller();
    let mut call =
        tokio::spawn(async move { controller.create_volume(create("v", 12, &raw())).await });
    until_stopped(&agent, &mut call).await;
    // As large as the spare metadata, and the room that was planned with.
    lvm("lvcreate", &["-l", "2", &group]);
    agent.signal(Signal::SIGCONT);
    ok(call.await.unwrap());
    let there = names(&group);
    for name in ["lvol0", "pool"] {
        assert!(there.contains(&name.to_owned()), "{there:?}");
    }
    assert_eq!(report("vgs", "vg_tags", &group), "");
    assert_eq!(report("vgs", "vg_free", &group), "0");
}
