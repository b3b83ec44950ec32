//! Limits of reads and writes: what a process in a cgroup really gets, through a file system and from the device.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    ControllerModifyVolumeRequest,
    volume_capability::{AccessMode, access_mode::Mode},
};
use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    programs::run,
    requests::{create, create_group_snapshot, delete, mounted, publish, raw, unpublish, unstage},
    storage::Scratch,
};
use nix::sys::signal::Signal;
use tonic::{Code, Response, Status};

use crate::{
    encryption::setup::encryption,
    helpers::{mount, ok, refused, unmount, volume},
    place::{Place, places},
    subject::ending_at,
};

const MIB: f64 = 1_048_576.0;

/// The cgroup v2 hierarchy of this machine, with one cgroup more, which ends with the test.
struct Hierarchy {
    root: PathBuf,
    top: PathBuf,
}

impl Hierarchy {
    /// Buffered writes are those of their cgroup only with the memory controller. systemd turns that on by itself.
    fn with(name: &str) -> Self {
        let root = PathBuf::from("/run/hierarchy");
        fs::create_dir_all(&root).unwrap();
        if !root.join("cgroup.controllers").exists() {
            run("mount", &["-t", "cgroup2", "none", "/run/hierarchy"]);
        }
        fs::write(root.join("cgroup.subtree_control"), "+memory").unwrap();
        let top = root.join(name);
        // The users of a volume are deeper down: pods in slices.
        fs::create_dir_all(top.join("inner")).unwrap();
        Self { root, top }
    }

    /// The setting of an agent that is to use it.
    fn setting(&self) -> String {
        format!("cgroups: {}\n", self.root.display())
    }

    /// What is limited in the cgroup.
    fn limits(&self) -> String {
        fs::read_to_string(self.top.join("io.max")).unwrap_or_default()
    }

    /// Bytes per second of `dd` in a cgroup.
    fn rate_in(cgroup: &Path, words: &str) -> f64 {
        let line = format!(
            "echo $$ > {}/cgroup.procs && exec dd {words} 2>&1",
            cgroup.display()
        );
        let begun = Instant::now();
        let said = run("sh", &["-c", &line]);
        let bytes = said.lines().find_map(|line| {
            let (bytes, _) = line.split_once(" bytes")?;
            bytes.parse::<f64>().ok()
        });
        bytes.unwrap_or_else(|| panic!("{said}")) / begun.elapsed().as_secs_f64()
    }

    fn rate(&self, words: &str) -> f64 {
        Self::rate_in(&self.top.join("inner"), words)
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        for cgroup in [self.top.join("inner"), self.top.clone()] {
            let _ = fs::remove_dir(cgroup);
        }
    }
}

/// An agent with one class that has these limits.
async fn agent(place: Place, hierarchy: &Hierarchy, limits: &str) -> Agent {
    let scratch = Scratch::new();
    let config = config(place, hierarchy, &scratch, limits);
    Agent::with(scratch, options(config, Vec::new())).await
}

fn config(place: Place, hierarchy: &Hierarchy, scratch: &Scratch, limits: &str) -> String {
    let limits = format!(", limits: {{{limits}}}");
    hierarchy.setting() + &place.config(scratch, &limits)
}

fn options(config: String, environment: Vec<(String, String)>) -> Options {
    Options {
        config: Some(config),
        environment,
        ..Options::default()
    }
}

async fn modify(
    agent: &Agent,
    id: &str,
    parameters: &[(&str, &str)],
) -> Result<Response<()>, Status> {
    let parameters = parameters.iter();
    let parameters: BTreeMap<_, _> = parameters
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let request = ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: parameters,
        ..ControllerModifyVolumeRequest::default()
    };
    let answer = agent.controller().controller_modify_volume(request).await;
    answer.map(|answer| answer.map(drop))
}

fn writing(target: &str, mebibytes: u32) -> String {
    format!("if=/dev/zero of={target}/file bs=1M count={mebibytes} conv=fsync")
}

/// Far above every limit here, and far below what a disk in memory does.
const UNLIMITED: f64 = 16.0 * MIB;

fn is_held_to(rate: f64, limit: f64) {
    // The file system's own blocks count too, and the kernel lets the first moment pass.
    assert!(
        (0.3 * limit..1.3 * limit).contains(&rate),
        "{rate} of {limit}"
    );
}

#[tokio::test]
async fn a_writer_and_a_reader_are_held_to_the_limits_of_their_class() {
    for place in places() {
        let hierarchy = Hierarchy::with("users.slice");
        let agent = agent(
            *place,
            &hierarchy,
            "writeBytesPerSecond: 4MiB, readIops: 50",
        )
        .await;
        let id = volume(&agent, "v", 64, &mounted("ext4")).await;
        assert_eq!(hierarchy.limits(), "", "nobody uses it yet");
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        is_held_to(hierarchy.rate(&writing(&at.1, 12)), 4.0 * MIB);
        // One page a read, past the cache.
        let reading = format!("if={}/file of=/dev/null bs=4k count=150 iflag=direct", at.1);
        is_held_to(hierarchy.rate(&reading), 50.0 * 4096.0);
        // What is in no cgroup is not limited, as the documentation says. (The blocks of a file are written for the cgroup that
        // wrote it first, whoever writes it now: another file.)
        let writing = format!("if=/dev/zero of={}/other bs=1M count=24 conv=fsync", at.1);
        assert!(Hierarchy::rate_in(&hierarchy.root, &writing) > UNLIMITED);
        unmount(&agent, &id, &at).await;
        assert_eq!(
            hierarchy.limits(),
            "",
            "whoever gets the device next is not limited"
        );

        // The device itself.
        let id = volume(&agent, "raw", 64, &raw()).await;
        let at = mount(&agent, "raw", &id, &raw()).await;
        let writing = format!("if=/dev/zero of={} bs=1M count=12 oflag=direct", at.1);
        is_held_to(hierarchy.rate(&writing), 4.0 * MIB);
        unmount(&agent, &id, &at).await;
        assert_eq!(hierarchy.limits(), "");
    }
}

#[tokio::test]
async fn a_volume_is_limited_and_freed_while_it_is_used() {
    for place in places() {
        let hierarchy = Hierarchy::with("users.slice");
        let mut agent = agent(*place, &hierarchy, "writeIops: 5000").await;
        let id = volume(&agent, "v", 64, &mounted("ext4")).await;
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        assert!(hierarchy.rate(&writing(&at.1, 24)) > UNLIMITED);
        ok(modify(
            &agent,
            &id,
            &[("writeBytesPerSecond", "3145728"), ("writeIops", "4000")],
        )
        .await);
        is_held_to(hierarchy.rate(&writing(&at.1, 9)), 3.0 * MIB);
        assert!(
            hierarchy.limits().contains("wiops=4000"),
            "{}",
            hierarchy.limits()
        );

        // An agent that is killed takes nothing away, and the next one sets it where it is gone.
        agent.kill();
        let set = hierarchy.limits();
        let device = set.split(' ').next().unwrap();
        let gone = format!("{device} rbps=max wbps=max riops=max wiops=max");
        fs::write(hierarchy.top.join("io.max"), gone).unwrap();
        let config = config(*place, &hierarchy, &agent.scratch, "writeIops: 5000");
        agent.restart_with(options(config, Vec::new())).await;
        eventually(|| hierarchy.limits(), |now| *now == set).await;

        let why = refused(
            modify(&agent, &id, &[("writeIops", "5001")]).await,
            Code::InvalidArgument,
        );
        assert!(
            why.contains(
                "mutable_parameters.writeIops: 5001 is above the limit of the class, 5000"
            ),
            "{why}"
        );
        for wrong in ["0", "1", "-1", "many", "1e3"] {
            let why = refused(
                modify(&agent, &id, &[("readIops", wrong)]).await,
                Code::InvalidArgument,
            );
            assert!(why.contains("mutable_parameters.readIops"), "{why}");
        }
        assert_eq!(hierarchy.limits(), set);
        // An empty one leaves that of the class.
        ok(modify(
            &agent,
            &id,
            &[("writeBytesPerSecond", ""), ("writeIops", "")],
        )
        .await);
        assert!(
            hierarchy.limits().contains("wbps=max riops=max wiops=5000"),
            "{}",
            hierarchy.limits()
        );
        assert!(hierarchy.rate(&writing(&at.1, 24)) > UNLIMITED);
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn another_limit_of_the_class_holds_for_volumes_in_use_and_in_cgroups_that_come_later() {
    for place in places() {
        let hierarchy = Hierarchy::with("users.slice");
        let mut agent = agent(*place, &hierarchy, "writeIops: 500").await;
        let mut shared = mounted("ext4");
        shared.access_mode = Some(AccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        });
        let id = volume(&agent, "v", 64, &shared).await;
        let at = mount(&agent, "v", &id, &shared).await;
        assert!(hierarchy.limits().contains("wiops=500"));
        let reload = |limits: &str| {
            let config = config(*place, &hierarchy, &agent.scratch, limits);
            write(&agent.path("config.yaml"), &config);
            agent.signal(Signal::SIGHUP);
        };
        reload("writeBytesPerSecond: 2MiB");
        eventually(
            || hierarchy.limits(),
            |now| now.contains("wbps=2097152 riops=max wiops=max"),
        )
        .await;
        is_held_to(hierarchy.rate(&writing(&at.1, 6)), 2.0 * MIB);
        reload("");
        eventually(|| hierarchy.limits(), String::is_empty).await;
        reload("writeBytesPerSecond: 2MiB");
        eventually(|| hierarchy.limits(), |now| !now.is_empty()).await;

        // The next user of a volume may be in a cgroup that was not there.
        let later = Hierarchy::with("later.slice");
        let second = agent.path("targets/second").to_string_lossy().into_owned();
        let again = publish(&id, (&at.0, &second), &shared);
        ok(agent.node().node_publish_volume(again).await);
        assert_eq!(later.limits(), hierarchy.limits());
        // And so may one that the agent is not told of; systemd takes the controller away from all.
        agent.kill();
        let config = config(
            *place,
            &hierarchy,
            &agent.scratch,
            "writeBytesPerSecond: 2MiB",
        );
        let lapse = vec![("DRUMLIN_TIME_LAPSE".to_owned(), "30".to_owned())];
        agent.restart_with(options(config, lapse)).await;
        fs::write(hierarchy.root.join("cgroup.subtree_control"), "-io").unwrap();
        let last = Hierarchy::with("last.slice");
        for cgroup in [&hierarchy, &later, &last] {
            eventually(|| cgroup.limits(), |now| now.contains("wbps=2097152")).await;
        }
    }
}

#[tokio::test]
async fn no_device_is_left_limited_by_an_agent_that_was_killed() {
    for place in places() {
        let hierarchy = Hierarchy::with("users.slice");
        let mut agent = agent(*place, &hierarchy, "writeIops: 500").await;
        let id = volume(&agent, "v", 64, &mounted("ext4")).await;
        let (staging, target) = mount(&agent, "v", &id, &mounted("ext4")).await;
        let config = config(*place, &hierarchy, &agent.scratch, "writeIops: 500");
        agent.kill();
        let ending = ending_at(&["unstage.unlimited".to_owned()]);
        agent.restart_with(options(config.clone(), ending)).await;
        eventually(|| hierarchy.limits(), |now| now.contains("wiops=500")).await;
        ok(agent
            .node()
            .node_unpublish_volume(unpublish(&id, &target))
            .await);
        let ended = agent
            .node()
            .node_unstage_volume(unstage(&id, &staging))
            .await;
        assert!(ended.is_err(), "the agent ended");
        agent.restart_with(options(config, Vec::new())).await;
        ok(agent
            .node()
            .node_unstage_volume(unstage(&id, &staging))
            .await);
        eventually(|| hierarchy.limits(), String::is_empty).await;
        ok(agent.controller().delete_volume(delete(&id)).await);

        // Limits that the configuration has lost meanwhile are gone; what nobody uses has none.
        let id = volume(&agent, "u", 64, &mounted("ext4")).await;
        let at = mount(&agent, "u", &id, &mounted("ext4")).await;
        assert!(hierarchy.limits().contains("wiops=500"));
        agent.kill();
        let none = self::config(*place, &hierarchy, &agent.scratch, "");
        agent.restart_with(options(none, Vec::new())).await;
        eventually(|| hierarchy.limits(), String::is_empty).await;
        unmount(&agent, &id, &at).await;
        agent.kill();
        let config = self::config(*place, &hierarchy, &agent.scratch, "writeIops: 500");
        agent.restart_with(options(config, Vec::new())).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(hierarchy.limits(), "", "it is not mounted");

        // A parameter that the agent did not live to set is set by the same call again.
        let id = volume(&agent, "w", 64, &mounted("ext4")).await;
        let at = mount(&agent, "w", &id, &mounted("ext4")).await;
        agent.kill();
        let ending = ending_at(&["modify-volume.recorded".to_owned()]);
        let config = self::config(*place, &hierarchy, &agent.scratch, "");
        agent.restart_with(options(config.clone(), ending)).await;
        let limit = [("writeIops", "77")];
        assert!(
            modify(&agent, &id, &limit).await.is_err(),
            "the agent ended"
        );
        agent.restart_with(options(config, Vec::new())).await;
        ok(modify(&agent, &id, &limit).await);
        assert!(
            hierarchy.limits().contains("wiops=77"),
            "{}",
            hierarchy.limits()
        );
        unmount(&agent, &id, &at).await;
    }
}

#[tokio::test]
async fn without_cgroups_a_volume_works_and_what_cannot_be_limited_is_said() {
    for place in places() {
        let scratch = Scratch::new();
        let config = place.config(&scratch, ", limits: {writeIops: 5}");
        let config = format!("cgroups: /nonexistent\n{config}");
        let agent = Agent::with(scratch, options(config, Vec::new())).await;
        let id = volume(&agent, "v", 64, &mounted("ext4")).await;
        let at = mount(&agent, "v", &id, &mounted("ext4")).await;
        let log = agent.log();
        assert!(
            log.contains("limits of reads and writes are not in force"),
            "{log}"
        );
        let limit = [("writeIops", "4")];
        let why = refused(modify(&agent, &id, &limit).await, Code::FailedPrecondition);
        assert!(
            why.contains("/nonexistent is no cgroup v2 hierarchy"),
            "{why}"
        );
        let mut asked = create("w", 64 << 20, &mounted("ext4"));
        asked
            .mutable_parameters
            .insert("writeIops".to_owned(), "4".to_owned());
        refused(
            agent.controller().create_volume(asked).await,
            Code::FailedPrecondition,
        );
        // Who asks for no limit is not refused.
        ok(modify(&agent, &id, &[("writeIops", ""), ("protected", "false")]).await);
        unmount(&agent, &id, &at).await;
    }
}

/// What is buffered is written at the limit, before writers are held.
#[tokio::test]
async fn a_group_snapshot_holds_writers_no_longer_for_a_limit() {
    let hierarchy = Hierarchy::with("users.slice");
    let agent = agent(Place::Lvm, &hierarchy, "writeBytesPerSecond: 4MiB").await;
    let id = volume(&agent, "v", 128, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    let buffered = format!("if=/dev/zero of={}/file bs=1M count=20", at.1);
    assert!(hierarchy.rate(&buffered) > UNLIMITED);
    let begun = Instant::now();
    let request = create_group_snapshot("g", vec![id.clone()]);
    let mut groups = agent.group_controller();
    ok(groups.create_volume_group_snapshot(request).await);
    assert!(
        begun.elapsed() > Duration::from_secs(3),
        "nothing was buffered"
    );
    let log = agent.log();
    let held = log.split("quiesced_us=").nth(1).unwrap();
    let held: u64 = held.split_whitespace().next().unwrap().parse().unwrap();
    assert!(held < 1_000_000, "writers were held for {held} us");
}

#[tokio::test]
async fn an_encrypted_volume_is_limited_where_it_is_opened() {
    let hierarchy = Hierarchy::with("users.slice");
    let scratch = Scratch::new();
    let key = encryption(&scratch.key("key"), &[]);
    let config = Place::Lvm.config(
        &scratch,
        &format!("{key}, limits: {{writeBytesPerSecond: 4MiB}}"),
    );
    let config = hierarchy.setting() + &config;
    let agent = Agent::with(scratch, options(config, Vec::new())).await;
    let id = volume(&agent, "v", 320, &mounted("xfs")).await;
    let at = mount(&agent, "v", &id, &mounted("xfs")).await;
    is_held_to(hierarchy.rate(&writing(&at.1, 12)), 4.0 * MIB);
    unmount(&agent, &id, &at).await;
}
