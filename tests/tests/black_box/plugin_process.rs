//! What the texts say of a plugin's process, and of what it announces.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::{v0, v1},
    identity::{
        GetCapabilitiesRequest, GetIdentityRequest,
        capability::{Type, volume_group::Type as Groups},
        identity_client::IdentityClient,
    },
    volumegroup::{ControllerGetVolumeGroupRequest, DeleteVolumeGroupRequest},
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE},
    programs::{drumlin, output, process_state, program, programs_of, run},
    requests::{MIB, create, expand, mounted, publish, raw, snapshot, stage},
    state::State,
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::{
    group_snapshots::together,
    helpers::{mount, ok, put, refused, text, unmount, volume},
    thaw_watchdog::eventually,
};

/// The bytes of the file system at `path`.
fn space(path: &str) -> u64 {
    let found = nix::sys::statvfs::statvfs(path).unwrap();
    found.blocks() * found.fragment_size()
}

/// The variables that a command takes: `[env: NAME=]` in its help.
fn variables() -> Vec<String> {
    let help = output(&drumlin().to_string_lossy(), &["agent", "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let behind = help.split("[env: ").skip(1);
    let names = behind.filter_map(|rest| rest.split('=').next());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn the_endpoint_comes_from_the_environment_and_nothing_is_put_beside_it() {
    let names = variables();
    assert!(names.iter().any(|name| name == "CSI_ENDPOINT"), "{names:?}");
    for name in &names {
        assert!(
            // Collectors are named by the variable that all programs read.
            name == "CSI_ENDPOINT"
                || name == "OTEL_EXPORTER_OTLP_ENDPOINT"
                || name.starts_with("DRUMLIN_"),
            "{name} has a prefix that is the specification's"
        );
    }
    let scratch = Scratch::new();
    let (run, work) = (scratch.directory("run"), scratch.directory("work"));
    let socket = run.join("csi.sock");
    let mut child = program(drumlin())
        .args(["agent", "--node", "node-a", "--log-level", "debug"])
        .arg("--state-dir")
        .arg(scratch.path().join("state"))
        .env("CSI_ENDPOINT", format!("unix://{}", socket.display()))
        .current_dir(&work)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let channel = drumlin_proto::connect(&socket).unwrap();
    let mut controller = v1::controller_client::ControllerClient::new(channel);
    let deadline = Instant::now() + PATIENCE;
    while controller
        .create_volume(create("v", 1, &raw()))
        .await
        .is_err()
    {
        assert!(Instant::now() < deadline, "it does not answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let beside = |directory| {
        let entries = fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| text(entry.unwrap().path()));
        names.collect::<Vec<String>>()
    };
    assert_eq!(beside(&run), [text(socket)]);
    assert_eq!(beside(&work), [""; 0], "no log and nothing else either");
    child.kill().unwrap();
    let printed = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(log.contains("csi.v1.Controller/CreateVolume"), "{log}");
}

/// As a container has it: only what is mounted below the shared directory is seen by both.
#[tokio::test]
async fn an_agent_in_namespaces_of_its_own_serves_a_caller_outside() {
    let scratch = Scratch::new();
    let root = text(scratch.path().to_owned());
    run("mount", &["--bind", &root, &root]);
    run("mount", &["--make-shared", &root]);
    let within = [
        "unshare",
        "--mount",
        "--propagation",
        "unchanged",
        "--net",
        "--uts",
        "--ipc",
        "--cgroup",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let options = Options {
        within: within.map(str::to_owned).into(),
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    let namespaces = |pid: &str| {
        let kinds = ["cgroup", "ipc", "mnt", "net", "pid_for_children", "uts"];
        kinds.map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap())
    };
    let theirs = namespaces(&agent.pid().to_string());
    let ours = namespaces("self");
    assert!(theirs.iter().zip(&ours).all(|(one, other)| one != other));
    for (how, name) in [(mounted("ext4"), "m"), (raw(), "r")] {
        let id = volume(&agent, name, 32, &how).await;
        let at = mount(&agent, name, &id, &how).await;
        if how == raw() {
            fs::write(&at.1, "what the caller writes").unwrap();
        } else {
            put(&at.1, "file", b"what the caller writes");
            let taken = agent.controller().create_snapshot(snapshot("s", &id)).await;
            assert!(ok(taken).snapshot.unwrap().ready_to_use);
        }
        end_with_all(&mut agent).await;
        agent.restart().await;
        mount(&agent, name, &id, &how).await;
        unmount(&agent, &id, &at).await;
        assert!(!std::path::Path::new(&at.1).exists());
    }
    end_with_all(&mut agent).await;
    // Its mounts go some instants after it.
    eventually("the directory stays busy", || {
        output("umount", &[&root]).status.success().then_some(())
    })
    .await;
}

/// Kills an agent that another program has started, and waits for the end of both.
async fn end_with_all(agent: &mut Agent) {
    let started = programs_of(agent.pid());
    assert_eq!(started.len(), 1, "{started:?}");
    agent.kill();
    // Who should wait for its end may take its time; it has given all back by then.
    let threads = |pid: &i32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        threads.map_or(0, Iterator::count)
    };
    let is_there =
        |pid: &i32| process_state(*pid).is_some_and(|state| state != 'Z') || threads(pid) > 1;
    eventually("the agent does not end", || {
        (!started.iter().any(is_there)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_topology_comes_with_the_capability_that_announces_it() {
    let agent = Agent::start().await;
    let channel = || drumlin_proto::connect(&agent.socket()).unwrap();
    let mut newest = agent.identity();
    let mut older = v0::identity_client::IdentityClient::new(channel());
    for _ in 0..2 {
        let request = v1::GetPluginCapabilitiesRequest {};
        let shown = ok(newest.get_plugin_capabilities(request).await);
        assert!(format!("{shown:?}").contains("VolumeAccessibilityConstraints"));
        let request = v0::GetPluginCapabilitiesRequest {};
        let shown = ok(older.get_plugin_capabilities(request).await);
        assert!(format!("{shown:?}").contains("AccessibilityConstraints"));
    }
    let at = |node: &str| v0::TopologyRequirement {
        requisite: vec![v0::Topology {
            segments: [("topology.drumlin.dev/node".to_owned(), node.to_owned())].into(),
        }],
        preferred: vec![],
    };
    let request = |node: &str| v0::CreateVolumeRequest {
        name: "v".to_owned(),
        volume_capabilities: vec![v0::VolumeCapability {
            access_type: Some(v0::volume_capability::AccessType::Block(
                v0::volume_capability::BlockVolume {},
            )),
            access_mode: Some(v0::volume_capability::AccessMode { mode: 1 }),
        }],
        accessibility_requirements: Some(at(node)),
        ..Default::default()
    };
    let mut controller = v0::controller_client::ControllerClient::new(channel());
    let elsewhere = controller.create_volume(request("node-b")).await;
    refused(elsewhere, Code::ResourceExhausted);
    let made = ok(controller.create_volume(request("node-a")).await);
    assert_eq!(
        made.volume.unwrap().accessible_topology,
        at("node-a").requisite
    );
}

#[tokio::test]
async fn groups_are_announced_and_their_calls_want_an_id() {
    let agent = Agent::start().await;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let mut others = IdentityClient::new(channel);
    let who = ok(others.get_identity(GetIdentityRequest {}).await);
    assert_eq!(who.name, "csi.drumlin.dev");
    let answer = ok(others.get_capabilities(GetCapabilitiesRequest {}).await);
    let said: Vec<Groups> = answer
        .capabilities
        .into_iter()
        .filter_map(|one| match one.r#type {
            Some(Type::VolumeGroup(group)) => Some(group.r#type()),
            _ => None,
        })
        .collect();
    for wanted in [
        Groups::VolumeGroup,
        Groups::ModifyVolumeGroup,
        Groups::GetVolumeGroup,
        Groups::ListVolumeGroups,
        Groups::DoNotAllowVgToDeleteVolumes,
    ] {
        assert!(said.contains(&wanted), "{wanted:?}: {said:?}");
    }
    let mut groups = agent.groups();
    let request = DeleteVolumeGroupRequest::default();
    let message = refused(
        groups.delete_volume_group(request).await,
        Code::InvalidArgument,
    );
    assert!(message.starts_with("volume_group_id "), "{message}");
    let request = ControllerGetVolumeGroupRequest::default();
    let answer = groups.controller_get_volume_group(request).await;
    let message = refused(answer, Code::InvalidArgument);
    assert!(message.starts_with("volume_group_id "), "{message}");
}

#[tokio::test]
async fn a_volume_grows_to_what_it_has_already() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let mut controller = agent.controller();
    for mebibytes in [32, 32, 16, 1] {
        let answer = ok(controller
            .controller_expand_volume(expand(&id, mebibytes))
            .await);
        assert_eq!(answer.capacity_bytes, 32 * MIB);
    }
    let within = |id: &str, required_bytes, limit_bytes| v1::ControllerExpandVolumeRequest {
        capacity_range: Some(v1::CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        ..expand(id, 0)
    };
    for (request, code) in [
        (within(&id, 0, 16 * MIB), Code::OutOfRange),
        (within(&id, i64::MAX, 0), Code::OutOfRange),
        (within(&id, 0, 0), Code::InvalidArgument),
        (within("", 64 * MIB, 0), Code::InvalidArgument),
    ] {
        refused(controller.controller_expand_volume(request).await, code);
    }
    // One that grows while it is mounted whatever rights there are.
    let xfs = mounted("xfs");
    let id = volume(&agent, "x", 320, &xfs).await;
    let at = mount(&agent, "x", &id, &xfs).await;
    let at_node = |required_bytes| v1::NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: at.1.clone(),
        capacity_range: within(&id, required_bytes, 0).capacity_range,
        ..Default::default()
    };
    let mut node = agent.node();
    refused(
        node.node_expand_volume(at_node(i64::MAX)).await,
        Code::OutOfRange,
    );
    let before = space(&at.1);
    for _ in 0..2 {
        // Whoever grows volumes for a cluster asks no controller.
        let answer = ok(node.node_expand_volume(at_node(640 * MIB)).await);
        assert_eq!(answer.capacity_bytes, 640 * MIB);
    }
    assert!(space(&at.1) > before * 3 / 2, "of {before} bytes");
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn a_long_path_is_taken_and_one_for_staging_is_needed() {
    let agent = Agent::start().await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let long = agent
        .scratch
        .directory(&format!("{}/{}", "d".repeat(200), "s".repeat(200)));
    let staging = text(long.clone());
    let target = text(long.with_file_name("t".repeat(200)));
    assert!(staging.len() > 400 && target.len() > 400);
    let unknown = "node-a/default/00000000-0000-5000-8000-00000000000a";
    let mut node = agent.node();
    let request = stage(unknown, &staging, &plain);
    refused(node.node_stage_volume(request).await, Code::NotFound);
    let request = publish(unknown, (&staging, &target), &plain);
    refused(node.node_publish_volume(request).await, Code::NotFound);
    let staged = agent
        .node()
        .node_stage_volume(stage(&id, &staging, &plain))
        .await;
    ok(staged);
    let without = publish(&id, ("", &target), &plain);
    let message = refused(
        agent.node().node_publish_volume(without).await,
        Code::FailedPrecondition,
    );
    assert!(message.contains("staging_target_path"), "{message}");
    let request = publish(&id, (&staging, &target), &plain);
    ok(agent.node().node_publish_volume(request).await);
    unmount(&agent, &id, &(staging, target)).await;
}

#[tokio::test]
async fn a_group_snapshot_for_which_there_is_no_room_is_exhausted() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 128);
    let class = format!(
        "{{name: default, directory: {{path: {}}}}}",
        images.display()
    );
    let options = Options {
        config: Some(format!("classes: [{class}]\n")),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let id = volume(&agent, name, 40, &raw()).await;
        let key = id.rsplit('/').next().unwrap();
        let image = images.join("volumes").join(key).join("image");
        fs::write(image, vec![7; 40 << 20]).unwrap();
        ids.push(id);
    }
    let before = State::of(agent.scratch.path());
    let mut groups = agent.group_controller();
    let taken = groups
        .create_volume_group_snapshot(together("g", &ids))
        .await;
    refused(taken, Code::ResourceExhausted);
    assert_eq!(State::of(agent.scratch.path()), before);
}

#[tokio::test]
async fn a_ping_says_who_answers_or_that_nobody_does() {
    let mut agent = Agent::start().await;
    let endpoint = agent.socket().to_string_lossy().into_owned();
    let ping = || {
        output(
            &drumlin().to_string_lossy(),
            &["ping", "--endpoint", &endpoint],
        )
    };
    let answered = ping();
    let said = String::from_utf8(answered.stdout).unwrap();
    assert!(
        answered.status.success() && said.starts_with("csi.drumlin.dev "),
        "{said}"
    );
    agent.kill();
    let alone = ping();
    let said = String::from_utf8(alone.stderr).unwrap();
    assert_eq!(alone.status.code(), Some(1));
    assert!(said.contains(&endpoint), "{said}");
}
