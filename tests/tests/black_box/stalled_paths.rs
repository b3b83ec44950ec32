//! Paths on a file system that no longer answers: the calls that look at them wait, and all other calls are answered.

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, ProbeRequest};
use drumlin_tests::{
    agent::{Agent, PATIENCE, eventually},
    programs::waiting,
    requests::{mounted, node_expand, publish, stage, unpublish, unstage},
};
use nix::{
    mount::{MntFlags, MsFlags, mount as mount_in, umount2},
    sys::signal::Signal,
};
use tonic::Code;

use crate::{
    helpers::{mount, ok, paths, refused, text, two_classes, unmount, volume},
    host::{Host, small},
    stalled_disk::probes_are_prompt,
};

/// So many calls about one volume stall: more than the agent has threads.
const CALLS: usize = 1_000;
/// So many of them one connection takes at a time.
const STREAMS: usize = 100;

/// A file system whose server never answers: whoever looks up a name in it waits in the kernel until this is dropped.
pub(crate) struct Silent {
    path: PathBuf,
    server: Option<File>,
}

impl Silent {
    pub(crate) fn new(path: PathBuf) -> Self {
        let server = File::options().read(true).write(true).open("/dev/fuse");
        let server = server.unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let options = Some(options.as_str());
        mount_in(
            Some("silent"),
            &path,
            Some("fuse"),
            MsFlags::empty(),
            options,
        )
        .unwrap();
        Self {
            path,
            server: Some(server),
        }
    }

    /// A path that is looked for in vain.
    fn path(&self, name: &str) -> String {
        text(self.path.join("directory").join(name))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Without its server the kernel tells all who wait that it is gone.
        self.server.take();
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

fn stats(volume_id: &str, path: &str) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest {
        volume_id: volume_id.to_owned(),
        volume_path: path.to_owned(),
        ..NodeGetVolumeStatsRequest::default()
    }
}

fn expand(volume_id: &str, path: &str) -> NodeExpandVolumeRequest {
    node_expand(volume_id, path)
}

#[tokio::test]
async fn calls_are_answered_while_the_paths_of_others_stall() {
    let agent = Agent::start().await;
    let ext4 = mounted("ext4");
    let mut volumes = Vec::new();
    for name in [
        "staged",
        "unstaged",
        "published",
        "unpublished",
        "measured",
        "grown",
    ] {
        let id = volume(&agent, name, 32, &ext4).await;
        let at = paths(&agent, name);
        ok(agent
            .node()
            .node_stage_volume(stage(&id, &at.0, &ext4))
            .await);
        volumes.push((id, at));
    }
    let [staged, unstaged, published, unpublished, measured, grown] = volumes.as_slice() else {
        unreachable!("{volumes:?}");
    };
    let silent = Silent::new(agent.scratch.directory("silent"));
    let path = |name: &str| silent.path(name);
    let calls = [
        tokio::spawn({
            let (mut node, request) = (agent.node(), stage(&staged.0, &path("staged"), &ext4));
            async move { node.node_stage_volume(request).await.map(drop) }
        }),
        tokio::spawn({
            let (mut node, request) = (agent.node(), unstage(&unstaged.0, &path("unstaged")));
            async move { node.node_unstage_volume(request).await.map(drop) }
        }),
        tokio::spawn({
            let request = publish(&published.0, (&published.1.0, &path("published")), &ext4);
            let mut node = agent.node();
            async move { node.node_publish_volume(request).await.map(drop) }
        }),
        tokio::spawn({
            let (mut node, request) = (
                agent.node(),
                unpublish(&unpublished.0, &path("unpublished")),
            );
            async move { node.node_unpublish_volume(request).await.map(drop) }
        }),
        tokio::spawn({
            let (mut node, request) = (agent.node(), stats(&measured.0, &path("measured")));
            async move { node.node_get_volume_stats(request).await.map(drop) }
        }),
        tokio::spawn({
            let (mut node, request) = (agent.node(), expand(&grown.0, &path("grown")));
            async move { node.node_expand_volume(request).await.map(drop) }
        }),
    ];
    // As many as the agent has threads that answer calls.
    eventually(|| waiting(agent.pid()), |waiting| *waiting >= 2).await;
    probes_are_prompt(&agent).await;
    assert_eq!(waiting(agent.pid()), calls.len(), "they stall still");

    drop(silent);
    for call in calls {
        // What such a path leads to is not known, but none of it is there.
        let _ = call.await.unwrap();
    }
    for (id, at) in &volumes {
        let request = publish(id, (&at.0, &at.1), &ext4);
        ok(agent.node().node_publish_volume(request).await);
        unmount(&agent, id, at).await;
    }
}

#[tokio::test]
async fn a_thousand_calls_that_stall_leave_others_their_threads() {
    let agent = Agent::start().await;
    let ext4 = mounted("ext4");
    let id = volume(&agent, "stalls", 32, &ext4).await;
    let at = mount(&agent, "stalls", &id, &ext4).await;
    let silent = Silent::new(agent.scratch.directory("silent"));
    let mut calls = Vec::new();
    for _ in 0..CALLS / STREAMS {
        let node = agent.node();
        for _ in 0..STREAMS {
            let (mut node, request) = (node.clone(), stats(&id, &silent.path("stalls")));
            calls.push(tokio::spawn(async move {
                node.node_get_volume_stats(request).await
            }));
        }
    }
    eventually(|| waiting(agent.pid()), |waiting| *waiting >= 1).await;
    probes_are_prompt(&agent).await;
    let other = volume(&agent, "goes-on", 32, &ext4).await;
    let others = mount(&agent, "goes-on", &other, &ext4).await;
    let request = stats(&other, &others.1);
    ok(agent.node().node_get_volume_stats(request).await);
    unmount(&agent, &other, &others).await;
    let held = waiting(agent.pid());
    assert!(held <= 2, "{held} threads wait for one volume");
    // All but the first are told to come again, before callers that are known give up.
    let last = calls.pop().unwrap().await.unwrap();
    let message = refused(last, Code::Aborted);
    assert!(message.contains("does not respond"), "{message}");

    drop(silent);
    for call in calls {
        call.await.unwrap().unwrap_err();
    }
    ok(agent.node().node_get_volume_stats(stats(&id, &at.1)).await);
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_class_whose_directory_does_not_answer_is_named_by_probe() {
    let agent = two_classes().await;
    let silent = Silent::new(agent.scratch.directory("a"));
    let probe = || async {
        let mut identity = agent.identity();
        let answer = tokio::time::timeout(PATIENCE, identity.probe(ProbeRequest {})).await;
        let answer = answer.expect("Probe is not answered at all");
        answer.map_err(|status| status.message().to_owned())
    };
    let answers = futures::future::join_all((0..4).map(|_| probe())).await;
    for answer in answers {
        let message = answer.unwrap_err();
        assert!(
            message.contains("class a: ") && message.contains("has not answered"),
            "{message}"
        );
    }
    let begun = Instant::now();
    probe().await.unwrap_err();
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "it is known by now"
    );
    assert_eq!(waiting(agent.pid()), 1);

    drop(silent);
    let deadline = Instant::now() + PATIENCE;
    while let Err(message) = probe().await {
        assert!(Instant::now() < deadline, "{message}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn manifests_that_do_not_answer_hold_up_neither_the_agent_nor_its_stop() {
    let mut host = Host::start().await;
    host.write("v.yaml", &[small("v")]);
    host.until("v", &["True"]).await;
    let silent = Silent::new(host.manifests.clone());
    host.agent.signal(Signal::SIGHUP);
    let told = |(table, _): &(String, i32)| table.contains("has taken more than");
    let (table, code) = eventually(|| host.agent.status(), told).await;
    assert!(code == 3 && table.contains("True"), "{table}");
    volume(&host.agent, "by-a-call", 16, &mounted("ext4")).await;
    host.agent.signal(Signal::SIGTERM);
    assert_eq!(host.agent.wait().await.code(), Some(0));

    // Nor do they hold up a start.
    host.agent.spawn();
    let answers = || async {
        let asked = host.agent.identity().probe(ProbeRequest {}).await;
        asked.is_ok()
    };
    let deadline = Instant::now() + PATIENCE;
    while !answers().await {
        assert!(Instant::now() < deadline, "{}", host.agent.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually(|| host.agent.status(), told).await;
    drop(silent);
    let is_read = |(table, code): &(String, i32)| *code == 0 && table.contains("True");
    eventually(|| host.agent.status(), is_read).await;
}
