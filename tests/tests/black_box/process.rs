//! The process: how it starts, what it refuses, how it ends.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    process::Output,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, CreateVolumeRequest, GetPluginInfoRequest,
    ListVolumesRequest, ProbeRequest,
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE},
    programs::{drumlin, output, program},
    requests::{create, mounted, raw, snapshot},
    storage::Scratch,
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::empty_requests::empty;
use crate::helpers::{ok, text, volume};

/// Starts an agent that must refuse to; what it printed.
fn fails(arguments: &[&str]) -> String {
    let output: Output = program("timeout")
        .arg("10")
        .arg(drumlin())
        .arg("agent")
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_signal_ends_it_in_order_and_the_next_start_goes_on() {
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 1, &raw()).await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let begun = Instant::now();
        agent.signal(signal);
        assert_eq!(agent.wait().await.code(), Some(0));
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(!agent.socket().exists(), "the socket is removed");
        agent.restart().await;
        assert_eq!(id, volume(&agent, "v", 1, &raw()).await);
    }
}

#[tokio::test]
async fn a_running_change_ends_before_the_process_does() {
    let mut agent = Agent::start().await;
    let id = volume(&agent, "v", 96, &mounted("ext4")).await;
    let image = crate::helpers::home(&agent, &id).join("image");
    // Data that takes a while to copy where there are no reflinks.
    fs::write(&image, vec![7; 64 << 20]).unwrap();
    fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(96 << 20)
        .unwrap();
    let mut controller = agent.controller();
    let taking = tokio::spawn(async move { controller.create_snapshot(snapshot("s", &id)).await });
    drumlin_tests::agent::eventually(
        || {
            fs::read_dir(agent.path("state/images/snapshots"))
                .unwrap()
                .count()
        },
        |entries| *entries > 0,
    )
    .await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait().await.code(), Some(0));
    let _ = taking.await.unwrap();
    let names: Vec<String> = fs::read_dir(agent.path("state/images/snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 1);
    assert!(!names[0].starts_with('.'), "it was finished: {names:?}");
}

#[tokio::test]
async fn two_agents_share_neither_socket_nor_state() {
    let agent = Agent::start().await;
    let (socket, state) = (text(agent.socket()), text(agent.path("state")));
    let other_state = text(agent.path("other"));
    let pid = format!("pid {}", agent.pid());
    let message = fails(&[
        "--endpoint",
        &socket,
        "--state-dir",
        &other_state,
        "--node",
        "n",
    ]);
    assert!(
        message.contains(&pid) && message.contains("csi.sock"),
        "{message}"
    );
    let other_socket = text(agent.path("other.sock"));
    let message = fails(&[
        "--endpoint",
        &other_socket,
        "--state-dir",
        &state,
        "--node",
        "n",
    ]);
    assert!(
        message.contains(&pid) && message.contains("state"),
        "{message}"
    );
    assert!(
        ok(agent.identity().probe(ProbeRequest {}).await)
            .ready
            .unwrap()
    );
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_the_new_one_is_its_owners_alone() {
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.path().join("csi.sock")).unwrap());
    let agent = Agent::with(scratch, Options::default()).await;
    let mode = fs::metadata(agent.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn wrong_endpoints_and_configurations_are_named() {
    let scratch = Scratch::new();
    let state = text(scratch.path().join("state"));
    let long = format!("unix:///tmp/{}.sock", "x".repeat(100));
    for (endpoint, part) in [
        (long.as_str(), "107"),
        ("tcp://localhost:1", "endpoint"),
        ("relative.sock", "endpoint"),
        ("", "endpoint"),
    ] {
        let message = fails(&["--endpoint", endpoint, "--state-dir", &state, "--node", "n"]);
        assert!(message.contains(part), "{message}");
    }
    let config = scratch.path().join("config.yaml");
    for (file, parts) in [
        ("node: n\nattatch: true\n", ["line 2", "attatch"]),
        (
            "classes:\n- name: a\n  directory: {path: /a, alloc: thin}\n",
            ["line 3", "alloc"],
        ),
        (
            "node: n\nmaxVolumesPerNode: many\n",
            ["line 2", "maxVolumesPerNode"],
        ),
        ("node: [n\n", ["line", "config.yaml"]),
        ("node: a/b\n", ["line 1 column 1: node: ", "a/b"]),
        (
            "tracing: {otlpEndpoint: collector}\n",
            [
                "line 1 column 11: tracing.otlpEndpoint: ",
                "http://host:port",
            ],
        ),
        (
            "driverName: csi_example\n",
            ["line 1 column 1: driverName: ", "domain"],
        ),
        ("driverName: csi..example\n", ["driverName", "domain"]),
        ("driverName: csi.example-\n", ["driverName", "domain"]),
    ] {
        fs::write(&config, file).unwrap();
        let message = fails(&["--config", &config.to_string_lossy(), "--state-dir", &state]);
        for part in parts {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    // A value that an argument has precedence over is not blamed.
    fs::write(&config, "endpoint: /run/a.sock\n").unwrap();
    let message = fails(&["--config", &config.to_string_lossy(), "--endpoint=tcp://b"]);
    assert!(message.contains("endpoint: "), "{message}");
    assert!(!message.contains("line 1"), "{message}");
    let message = fails(&["--otlp-endpoint=https://a:4317", "--state-dir", &state]);
    assert!(
        message.contains("--otlp-endpoint") && message.contains("TLS"),
        "{message}"
    );
    let message = fails(&["--config", "/nonexistent.yaml"]);
    assert!(message.contains("/nonexistent.yaml"), "{message}");
    assert!(!Path::new(&state).exists(), "nothing was made");
}

#[tokio::test]
async fn flags_environment_and_file_come_in_this_order() {
    let scratch = Scratch::new();
    let options = Options {
        config: Some("node: from-file\ndriverName: org.example.test\nattach: true\n".to_owned()),
        environment: vec![
            ("DRUMLIN_NODE".to_owned(), "from-environment".to_owned()),
            ("DRUMLIN_ATTACH".to_owned(), "no".to_owned()),
        ],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    // The harness gives --node node-a.
    assert!(volume(&agent, "v", 1, &raw()).await.starts_with("node-a/"));
    let capabilities = ok(agent
        .controller()
        .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
        .await);
    let shown = format!("{capabilities:?}");
    assert!(
        shown.contains("CreateDeleteVolume") && !shown.contains("PublishUnpublishVolume"),
        "the environment wins over the file: {shown}"
    );
    let info = ok(agent
        .identity()
        .get_plugin_info(GetPluginInfoRequest {})
        .await);
    assert_eq!(info.name, "org.example.test");
    assert!(!info.vendor_version.is_empty());
    let output = program(drumlin())
        .args(["status"])
        .env("DRUMLIN_STATE_DIR", agent.path("state"))
        .output()
        .unwrap();
    assert!(output.status.success());
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "agent",
        "reconcile",
        "validate",
        "status",
        "crds",
        "completions",
    ] {
        let help = output(&drumlin().to_string_lossy(), &[command, "--help"]);
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(
            help.status.success() && text.contains("Example"),
            "{command}: {text}"
        );
    }
    let run = |arguments: &[&str]| {
        String::from_utf8(output(&drumlin().to_string_lossy(), arguments).stdout).unwrap()
    };
    assert!(run(&["--version"]).starts_with("drumlin 0."));
    assert!(run(&["completions", "bash"]).contains("complete"));
    let crds = run(&["crds"]);
    assert!(crds.contains("volumes.drumlin.dev") && crds.contains("snapshots.drumlin.dev"));
}

#[tokio::test]
async fn a_secret_is_in_no_log_and_a_call_is_in_one_line() {
    let options = Options {
        arguments: vec![
            "--log-level=trace".to_owned(),
            "--log-format=json".to_owned(),
        ],
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let request = CreateVolumeRequest {
        secrets: [("passphrase".to_owned(), "open sesame".to_owned())].into(),
        ..create("named", 1, &raw())
    };
    ok(agent.controller().create_volume(request).await);
    let log = agent.log();
    assert!(!log.contains("sesame") && !log.contains("passphrase"));
    let line = log
        .lines()
        .find(|line| line.contains("csi.v1.Controller/CreateVolume"))
        .unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["object"], "named");
    assert_eq!(line["rpc.code"], "Ok");
    assert!(line["elapsed_ms"].is_number());
}

#[tokio::test]
async fn an_idle_agent_says_and_writes_nothing() {
    let agent = Agent::start().await;
    volume(&agent, "v", 1, &raw()).await;
    ok(agent
        .controller()
        .list_volumes(ListVolumesRequest::default())
        .await);
    let written = || {
        let io = fs::read_to_string(format!("/proc/{}/io", agent.pid())).unwrap();
        io.lines()
            .find(|line| line.starts_with("syscw"))
            .unwrap()
            .to_owned()
    };
    // The last frames of the call, and the wakes of its threads, come after its answer.
    let deadline = Instant::now() + PATIENCE;
    let mut before = (agent.log(), written());
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = (agent.log(), written());
        if now == before {
            return;
        }
        assert!(Instant::now() < deadline, "{before:?} {now:?}");
        before = now;
    }
}

#[tokio::test]
async fn an_unknown_method_and_one_that_is_not_offered_are_unimplemented() {
    let agent = Agent::start().await;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    for method in ["csi.v1.Controller/NoSuchCall", "csi.v1.NoSuchService/Call"] {
        let status = empty(&channel, method).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{method}");
        assert!(status.message().contains("no such method"), "{status}");
    }
}
