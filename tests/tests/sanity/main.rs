//! The upstream conformance tool finds nothing wrong.
//!
//! Image directories on ext4 and on xfs with reflinks × volumes with ext4 and xfs × mounted and raw, with everything
//! switched on; the defaults; and three random orders. Only what is not offered may be skipped, by name.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::format_collect,
    reason = "tests fail by panicking"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use drumlin_tests::{
    agent::{Agent, Options},
    programs::{program, workspace},
    storage::{Kind, Scratch},
};
use serde_json::Value;

/// The specs that are skipped with everything switched on: those of capabilities that are not advertised yet.
const NOT_OFFERED: &str = include_str!("skipped.txt");

/// With everything switched on, so many specs run: all 103 but the 13 listed and the one that upstream has pending.
const ALL: usize = 89;

/// Builds the tool from its pinned module, once.
fn tool() -> &'static Path {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let lab = workspace().join("tests/lab");
        let tool = lab.join(".cache/csi-sanity");
        let built = program("go")
            .current_dir(lab.join("sanity"))
            .args(["build", "-mod=readonly", "-o"])
            .arg(&tool)
            .arg("github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
            .output()
            .expect("go is installed: the conformance tool is built with it");
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        tool
    })
}

struct Outcome {
    passed: usize,
    skipped: Vec<String>,
}

/// Runs the tool against an agent; every spec that fails is an error.
fn run(agent: &Agent, arguments: &[&str]) -> Outcome {
    let report = agent.path("report.json");
    // A leftover of an earlier run fails every spec, so the directories are the run's own.
    let output = program(tool())
        .arg(format!(
            "--csi.endpoint=unix://{}",
            agent.socket().display()
        ))
        .arg(format!("--csi.mountdir={}", agent.path("mnt").display()))
        .arg(format!(
            "--csi.stagingdir={}",
            agent.path("stage").display()
        ))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .args([
            "--csi.testvolumesize=1073741824",
            "--csi.testvolumeexpandsize=2147483648",
            "--ginkgo.no-color",
        ])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", agent.log());
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let mut outcome = Outcome {
        passed: 0,
        skipped: Vec::new(),
    };
    for spec in report[0]["SpecReports"].as_array().unwrap() {
        if spec["LeafNodeType"] != "It" {
            continue;
        }
        let containers = spec["ContainerHierarchyTexts"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let words: Vec<&str> = containers.iter().filter_map(Value::as_str).collect();
        let name = format!(
            "{} {}",
            words.join(" "),
            spec["LeafNodeText"].as_str().unwrap_or_default()
        );
        match spec["State"].as_str() {
            Some("passed") => outcome.passed += 1,
            Some("skipped") => outcome.skipped.push(name),
            Some("pending") => assert!(name.contains("pagination"), "{name} is pending"),
            state => panic!("{name}: {state:?}"),
        }
    }
    tell(&outcome, arguments);
    outcome
}

#[expect(clippy::print_stdout, reason = "who runs the tests sees what was run")]
fn tell(outcome: &Outcome, arguments: &[&str]) {
    println!(
        "{} passed, {} skipped: {}",
        outcome.passed,
        outcome.skipped.len(),
        arguments.join(" ")
    );
}

fn assert_complete(outcome: &Outcome) {
    let mut skipped: Vec<&str> = outcome.skipped.iter().map(String::as_str).collect();
    skipped.sort_unstable();
    let mut expected: Vec<&str> = NOT_OFFERED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    expected.sort_unstable();
    assert_eq!(skipped, expected, "what is skipped");
    assert_eq!(outcome.passed, ALL);
}

/// An agent with everything switched on, whose images are on `storage` and whose volumes get `fs_type`.
async fn full(storage: Kind, fs_type: &str) -> Agent {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", storage, 16 << 10);
    let config = format!(
        "attach: true\nmaxVolumesPerNode: 5\nclasses:\n- name: default\n  directory: {{path: {}, fsType: {fs_type}}}\n",
        images.display()
    );
    fs::write(
        scratch.path().join("mutable.yaml"),
        "protected: \"false\"\nlabel.tier: gold\n",
    )
    .unwrap();
    let secrets = [
        "CreateVolume",
        "DeleteVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "ControllerValidateVolumeCapabilities",
        "NodeStageVolume",
        "NodePublishVolume",
        "CreateSnapshot",
        "DeleteSnapshot",
        "ControllerExpandVolume",
        "ControllerModifyVolume",
        "ListSnapshots",
        "GetSnapshot",
    ];
    let secrets: String = secrets
        .iter()
        .map(|name| format!("{name}Secret: {{key: hidden-word}}\n"))
        .collect();
    fs::write(scratch.path().join("secrets.yaml"), secrets).unwrap();
    let options = Options {
        config: Some(config),
        arguments: vec!["--log-level=trace".to_owned()],
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

fn arguments(agent: &Agent) -> Vec<String> {
    vec![
        format!(
            "--csi.testvolumemutableparameters={}",
            agent.path("mutable.yaml").display()
        ),
        format!("--csi.secrets={}", agent.path("secrets.yaml").display()),
        "--csi.testnodevolumeattachlimit".to_owned(),
    ]
}

async fn check(storage: Kind, fs_type: &str, access: &str, more: &[&str]) {
    let agent = full(storage, fs_type).await;
    let mut arguments = arguments(&agent);
    arguments.push(format!("--csi.testvolumeaccesstype={access}"));
    arguments.extend(more.iter().map(|&one| one.to_owned()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert_complete(&run(&agent, &arguments));
    assert!(
        !agent.log().contains("hidden-word"),
        "a secret is in the log"
    );
    assert!(
        agent.log().contains("CreateVolume"),
        "the log says what was called"
    );
}

macro_rules! combinations {
    ($($name:ident: $storage:ident, $fs_type:literal, $access:literal;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                check(Kind::$storage, $fs_type, $access, &[]).await;
            }
        )*
    };
}

combinations! {
    mounted_ext4_volumes_on_ext4: Ext4, "ext4", "mount";
    mounted_xfs_volumes_on_ext4: Ext4, "xfs", "mount";
    mounted_ext4_volumes_on_xfs: Xfs, "ext4", "mount";
    mounted_xfs_volumes_on_xfs: Xfs, "xfs", "mount";
    raw_ext4_volumes_on_ext4: Ext4, "ext4", "block";
    raw_xfs_volumes_on_ext4: Ext4, "xfs", "block";
    raw_ext4_volumes_on_xfs: Xfs, "ext4", "block";
    raw_xfs_volumes_on_xfs: Xfs, "xfs", "block";
}

#[tokio::test]
async fn three_random_orders() {
    for seed in ["1", "4711", "20261121"] {
        let seed = format!("--ginkgo.seed={seed}");
        check(
            Kind::Xfs,
            "ext4",
            "mount",
            &["--ginkgo.randomize-all", &seed],
        )
        .await;
    }
}

#[tokio::test]
async fn the_defaults() {
    let agent = Agent::start().await;
    let outcome = run(&agent, &[]);
    // Without attach nothing of publishing runs.
    let more: Vec<&String> = outcome
        .skipped
        .iter()
        .filter(|name| !NOT_OFFERED.contains(name.as_str()))
        .collect();
    let is_switched_off = |name: &String| {
        [
            "ControllerPublishVolume",
            "ControllerUnpublishVolume",
            "[Controller Server] volume lifecycle",
        ]
        .iter()
        .any(|call| name.contains(call))
    };
    assert!(more.iter().all(|name| is_switched_off(name)), "{more:#?}");
    assert_eq!(outcome.passed + more.len(), ALL);
}
