//! How often a call has LVM do something, and how many programs are started for that.

use std::{fs, path::Path};

use drumlin_proto::{
    csi::v1::{
        ControllerModifyVolumeRequest, CreateVolumeRequest, GetCapacityRequest, ListVolumesRequest,
        ProbeRequest,
    },
    volumegroup::CreateVolumeGroupRequest,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::{programs_of, run},
    requests::{
        create, delete, delete_group, delete_snapshot, expand, from_snapshot, mounted, node_expand,
        raw, set_members, snapshot,
    },
    storage::Scratch,
};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::Signal,
};
use tonic::Code;

use crate::{
    group_snapshots::together,
    groups::{group, stop_at},
    helpers::{mount, ok, refused, unbind_all, unmount, volume},
    thaw_watchdog,
};

/// What LVM was told to do since the last time, as the log has it: by a program of its own, or one that goes on running.
struct Turns(usize);

impl Turns {
    fn since(&mut self, agent: &Agent) -> Vec<String> {
        let all = lines(agent, |line| {
            let is_lvms = line.contains("command=\"lvm");
            line.contains("program ended") && is_lvms || line.contains("commands carried out")
        });
        let new = all.get(self.0..).unwrap_or_default().to_vec();
        self.0 = all.len();
        new
    }

    /// Since the last time it was told this often.
    #[track_caller]
    fn cost(&mut self, agent: &Agent, what: &str, most: usize) {
        let done = self.since(agent);
        assert_eq!(done.len(), most, "{what}: {done:#?}");
    }
}

/// How many programs of LVM's were started.
pub(crate) fn started(agent: &Agent) -> usize {
    let lines = lines(agent, |line| {
        let is_lvms = line.contains("command=\"lvm");
        line.contains("program ended") && is_lvms || line.contains("interactive program started")
    });
    lines.len()
}

fn lines(agent: &Agent, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let log = agent.log();
    let lines = log.lines().filter(|line| is_wanted(line));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_change_costs_one_program_and_an_answer_none() {
    let options = Options {
        arguments: vec!["--log-level=debug".to_owned()],
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let mut controller = agent.controller();
    let before = started(&agent);
    let mut turns = Turns(0);
    turns.since(&agent);
    let mut costs = |what: &str, most: usize| turns.cost(&agent, what, most);
    let capability = mounted("ext4");
    let id = ok(controller.create_volume(create("v", 64, &capability)).await)
        .volume
        .unwrap()
        .volume_id;
    // Made, and shown when it was looked at.
    costs("CreateVolume", 2);
    ok(controller.create_volume(create("v", 64, &capability)).await);
    costs("CreateVolume again", 0);
    let at = mount(&agent, "v", &id, &capability).await;
    // The labels that say that it is being formatted, and that it is.
    costs("the first NodeStageVolume, with its format", 2);
    unmount(&agent, &id, &at).await;
    let at = mount(&agent, "v", &id, &capability).await;
    costs("NodeStageVolume, NodePublishVolume and back", 0);
    let taken = ok(controller.create_snapshot(snapshot("s", &id)).await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    costs("CreateSnapshot of a mounted volume", 1);
    for (name, size) in [("same", 64), ("larger", 80)] {
        let request = CreateVolumeRequest {
            volume_content_source: from_snapshot(&taken),
            ..create(name, size, &capability)
        };
        ok(controller.create_volume(request).await);
        costs(name, 1);
    }
    changes_of_a_volume(&agent, &mut turns, &id, &at.1).await;
    changes_of_a_group(&agent, &mut turns, &id).await;
    let mut costs = |what: &str, most: usize| turns.cost(&agent, what, most);
    ok(controller.list_volumes(ListVolumesRequest::default()).await);
    ok(controller.get_capacity(GetCapacityRequest::default()).await);
    ok(agent.identity().probe(ProbeRequest {}).await);
    costs("ListVolumes, GetCapacity and Probe", 0);
    unmount(&agent, &id, &at).await;
    ok(controller.delete_volume(delete(&id)).await);
    costs("DeleteVolume", 1);
    ok(controller.delete_volume(delete(&id)).await);
    costs("DeleteVolume again", 0);
    // More only where more than ten seconds are between two of them.
    let programs = started(&agent) - before;
    assert!(programs <= 4, "{programs} programs");
}

async fn changes_of_a_volume(agent: &Agent, turns: &mut Turns, id: &str, target: &str) {
    let mut controller = agent.controller();
    ok(controller.controller_expand_volume(expand(id, 128)).await);
    turns.cost(agent, "ControllerExpandVolume", 1);
    let request = node_expand(id, target);
    ok(agent.node().node_expand_volume(request).await);
    turns.cost(agent, "NodeExpandVolume", 0);
    let modify = ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: [("label.tier".to_owned(), "gold".to_owned())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    ok(controller.controller_modify_volume(modify.clone()).await);
    turns.cost(agent, "ControllerModifyVolume", 1);
    ok(controller.controller_modify_volume(modify).await);
    turns.cost(agent, "ControllerModifyVolume again", 0);
}

async fn changes_of_a_group(agent: &Agent, turns: &mut Turns, id: &str) {
    let mut groups = agent.groups();
    let group = CreateVolumeGroupRequest {
        name: "g".to_owned(),
        ..CreateVolumeGroupRequest::default()
    };
    let group = ok(groups.create_volume_group(group).await).volume_group;
    turns.cost(agent, "CreateVolumeGroup", 1);
    let members = set_members(&group.unwrap().volume_group_id, vec![id.to_owned()]);
    for (what, most) in [("Modify", 1), ("Modify again", 0)] {
        let request = members.clone();
        ok(groups.modify_volume_group_membership(request).await);
        turns.cost(agent, what, most);
    }
    let request = delete_group(&members.volume_group_id);
    ok(groups.delete_volume_group(request).await);
    turns.cost(agent, "DeleteVolumeGroup", 1);
}

#[tokio::test]
async fn a_thick_change_costs_one_program_and_wiping_one_or_two_more() {
    // What is wiped is made, and shown or removed, before and after. An end is made, removed, and added.
    for (wipe, extra) in [("none", 0), ("zero", 1)] {
        let scratch = Scratch::new();
        let group = scratch.volume_group(1 << 10);
        let options = Options {
            config: Some(format!(
                "classes: [{{name: default, thick: {{volumeGroup: {group}, wipe: {wipe}}}}}]\n"
            )),
            arguments: vec!["--log-level=debug".to_owned()],
            ..Options::default()
        };
        let agent = Agent::with(scratch, options).await;
        let mut controller = agent.controller();
        let mut turns = Turns(0);
        turns.since(&agent);
        let mut costs = |what: &str, most: usize| {
            turns.cost(&agent, &format!("{what}, wipe {wipe}"), most);
        };
        let made = ok(controller.create_volume(create("v", 16, &raw())).await);
        let id = made.volume.unwrap().volume_id;
        costs("CreateVolume", 1 + extra);
        let at = mount(&agent, "v", &id, &raw()).await;
        // Where a raw volume is staged is in its record: nothing else shows it.
        costs("NodeStageVolume and NodePublishVolume, the first time", 1);
        unmount(&agent, &id, &at).await;
        let at = mount(&agent, "v", &id, &raw()).await;
        costs("NodeStageVolume and NodePublishVolume", 0);
        ok(controller.controller_expand_volume(expand(&id, 32)).await);
        costs("ControllerExpandVolume of a staged volume", 1 + 2 * extra);
        let taken = ok(controller.create_snapshot(snapshot("s", &id)).await);
        let taken = taken.snapshot.unwrap().snapshot_id;
        costs("CreateSnapshot", 1);
        let request = CreateVolumeRequest {
            volume_content_source: from_snapshot(&taken),
            ..create("copy", 40, &raw())
        };
        ok(controller.create_volume(request).await);
        costs("a restore, which is begun and shown", 2);
        ok(controller.list_volumes(ListVolumesRequest::default()).await);
        ok(controller.get_capacity(GetCapacityRequest::default()).await);
        ok(agent.identity().probe(ProbeRequest {}).await);
        costs("ListVolumes, GetCapacity and Probe", 0);
        unmount(&agent, &id, &at).await;
        let request = delete_snapshot(&taken);
        ok(controller.delete_snapshot(request).await);
        costs("DeleteSnapshot", 1 + extra);
        ok(controller.delete_volume(delete(&id)).await);
        costs("DeleteVolume", 1 + extra);
    }
}

#[tokio::test]
async fn a_burst_costs_one_program_that_ends_when_it_is_idle() {
    let options = Options {
        arguments: vec!["--log-level=debug".to_owned()],
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let before = started(&agent);
    let calls = (0..40).map(|number| {
        let mut controller = agent.controller();
        tokio::spawn(async move {
            let request = create(&format!("v{number}"), 4, &raw());
            controller.create_volume(request).await.unwrap();
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let list = ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    assert_eq!(list.entries.len(), 40);
    let programs = started(&agent) - before;
    assert!(programs <= 2, "{programs} programs for 40 volumes");
    let has_ended = || !lines(&agent, |line| line.contains("interactive program ended")).is_empty();
    assert!(!has_ended(), "it waits for the next change");
    for _ in 0..300 {
        if has_ended() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it goes on running with nothing to do");
}

/// A file of the lab's own settings of LVM, put back at the end.
pub(crate) struct Settings(&'static str, Option<String>);

impl Settings {
    pub(crate) fn say(name: &'static str, text: &str) -> Self {
        let before = fs::read_to_string(name).unwrap_or_default();
        Self::are(name, &format!("{before}{text}\n"))
    }

    /// The whole of it.
    fn are(name: &'static str, text: &str) -> Self {
        let before = fs::read_to_string(name).ok();
        fs::write(name, text).unwrap();
        Self(name, before)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        match &self.1 {
            Some(before) => fs::write(self.0, before).unwrap(),
            // LVM may have moved it away: a newer one does so with a devices file that it does not use.
            None => drop(fs::remove_file(self.0)),
        }
    }
}

#[tokio::test]
async fn a_running_lvm_follows_the_settings_of_the_host() {
    // As where dmeventd runs: without that it would be started with what is ours. Where it does run, that is a pipe.
    const DMEVENTD: &str = "/run/dmeventd-server";
    let _dmeventd = (!Path::new(DMEVENTD).exists()).then(|| Settings::say(DMEVENTD, ""));
    let agent = Agent::start().await;
    let mut controller = agent.controller();
    let mut number = 0;
    let mut make = async || {
        number += 1;
        let request = create(&format!("v{number}"), 4, &raw());
        controller.create_volume(request).await
    };
    ok(make().await);
    let environment = || {
        let programs = programs_of(agent.pid());
        let [program] = programs[..] else {
            panic!("{programs:?}")
        };
        let text = fs::read(format!("/proc/{program}/environ")).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    };
    assert!(environment().contains("LVM_SYSTEM_DIR=/run/drumlin/lvm"));
    let directory = [
        "LVM_SYSTEM_DIR=/run/drumlin/lvm",
        "lvmconfig",
        "global/use_aio",
    ];
    assert_eq!(run("env", &directory).trim(), "use_aio=0");
    let nothing = "devices { global_filter = [ \"r|.*|\" ] }";
    for file in ["/etc/lvm/lvm.conf", "/etc/lvm/lvmlocal.conf"] {
        let settings = Settings::say(file, nothing);
        let refused = make().await.expect_err(file);
        assert!(refused.message().contains("not found"), "{file}: {refused}");
        drop(settings);
        ok(make().await);
    }
    // What LVM does not know, and says so each time.
    let settings = Settings::say("/etc/lvm/lvm.conf", "activation { no_such_setting = 1 }");
    for _ in 0..3 {
        ok(make().await);
    }
    drop(settings);
    // Who decides himself is asked no more.
    let settings = Settings::say("/etc/lvm/lvmlocal.conf", "global { use_aio = 1 }");
    ok(make().await);
    assert!(!environment().contains("LVM_SYSTEM_DIR"));
    drop(settings);
    ok(make().await);
    assert!(environment().contains("LVM_SYSTEM_DIR"));
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_where_the_host_has_them() {
    const LOCKS: &str = "/run/lock/lvm-elsewhere";
    let setting = format!("global {{ locking_dir = \"{LOCKS}\" }}");
    let _settings = Settings::say("/etc/lvm/lvm.conf", &setting);
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 32, &raw()).await;
    let at = mount(&agent, "v", &id, &raw()).await;
    stop_at(&mut agent, "quiesce.prepared").await;
    let mut groups = agent.group_controller();
    let request = together("g", &[id.clone()]);
    let mut call = tokio::spawn(async move { groups.create_volume_group_snapshot(request).await });
    thaw_watchdog::until_stopped(&agent, &mut call).await;
    let lock = fs::File::create(format!("{LOCKS}/V_{}", group(&agent))).unwrap();
    let locked = Flock::lock(lock, FlockArg::LockExclusiveNonblock);
    agent.signal(Signal::SIGCONT);
    assert!(locked.is_err(), "nobody is kept out");
    drop(locked);
    let taken = ok(call.await.unwrap()).group_snapshot.unwrap();
    unbind_all(&agent, &taken).await;
    unmount(&agent, &id, &at).await;
}

/// Has the host keep LVM to these disks by a devices file, which is used as `says` has it.
pub(crate) fn keep_to(says: &str, disks: &[&String]) -> [Settings; 2] {
    let conf = fs::read_to_string("/etc/lvm/lvm.conf").unwrap();
    let conf = conf.replace("use_devicesfile=0", says);
    fs::create_dir_all("/etc/lvm/devices").unwrap();
    let kept = [
        Settings::are("/etc/lvm/devices/system.devices", ""),
        Settings::are("/etc/lvm/lvm.conf", &conf),
    ];
    for disk in disks {
        let add = ["lvmdevices", "--config", "devices/use_devicesfile=1"];
        run("lvm", &[&add[..], &["-y", "--adddev", disk]].concat());
    }
    kept
}

#[tokio::test]
async fn disks_that_the_host_keeps_out_are_out() {
    let scratch = Scratch::new();
    let groups = ["ours", "others"].map(|name| {
        let disk = scratch.disk(name, 256);
        (scratch.volume_group_over(&[disk.clone()]), disk)
    });
    let [(ours, disk), (others, _)] = &groups;
    // What LVM does of itself is left to it.
    let _kept = keep_to("", &[disk]);
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: ours, default: true, thick: {{volumeGroup: {ours}}}}}\n- {{name: others, thick: {{volumeGroup: {others}}}}}\n"
        )),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    volume(&agent, "v", 4, &raw()).await;
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), "others".to_owned())].into(),
        ..create("w", 4, &raw())
    };
    let message = refused(
        agent.controller().create_volume(request).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains(others), "{message}");
}
