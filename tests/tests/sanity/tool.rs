//! The conformance tool: built, run, and read.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use drumlin_tests::{
    agent::{Agent, Options, is_over_lvm},
    programs::{program, run as run_program, workspace},
    storage::Scratch,
};
use serde_json::Value;

/// The spec that no driver passes which answers what it asks for: it compares the topology of the response with one that
/// it has sent, by all fields of Go's structure, also by the size that Go's library keeps in what was sent alone.
const COMPARES_SIZES: &str = "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements";

/// With everything switched on, so many specs run: all 103 but the one that upstream has pending.
pub(crate) const ALL: usize = 102;

/// The tool; built from its pinned module once on a machine, and found by the lab, which reaches no registry.
pub(crate) fn tool() -> &'static Path {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    TOOL.get_or_init(|| {
        let setup = workspace().join("tests/lab/programs/setup");
        let programs = run_program(&setup.to_string_lossy(), &["csi-sanity"]);
        Path::new(programs.trim()).join("csi-sanity")
    })
}

pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) skipped: Vec<String>,
}

/// Runs the tool against an agent; every spec that fails is an error.
pub(crate) fn run(agent: &Agent, arguments: &[&str]) -> Outcome {
    let report = agent.path("report.json");
    // A leftover of an earlier run fails every spec, so the directories are the run's own.
    // In the lab every byte costs: what is wiped there is written, on all legs.
    let mebibytes = if is_over_lvm() { 64_u64 } else { 1024 };
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
        .arg(format!("--csi.testvolumesize={}", mebibytes << 20))
        .arg(format!("--csi.testvolumeexpandsize={}", mebibytes << 21))
        .arg("--ginkgo.no-color")
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = || format!("{text}\n{}", agent.log());
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let mut outcome = Outcome {
        passed: 0,
        skipped: Vec::new(),
    };
    let mut is_refused = false;
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
            Some("failed") if name == COMPARES_SIZES => {
                let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
                assert!(differs_by_size_alone(message), "{}", told());
                outcome.passed += 1;
                is_refused = true;
            }
            state => panic!("{name}: {state:?}\n{}", told()),
        }
    }
    assert!(output.status.success() || is_refused, "{}", told());
    tell(&outcome, arguments);
    outcome
}

/// Whether the two structures of a failed comparison are the same but for where they are and the size in one of them.
fn differs_by_size_alone(message: &str) -> bool {
    let told = |line: &&str| !line.contains("0x") && !line.contains("sizeCache: ");
    let Some((found, wanted)) = message.split_once("to equal") else {
        return false;
    };
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.filter(told).map(str::to_owned).collect()
    };
    let mut found = lines(found);
    found.retain(|line| line != "Expected");
    message.contains("Segments") && found == lines(wanted)
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

pub(crate) fn assert_complete(outcome: &Outcome) {
    assert_eq!(outcome.skipped, Vec::<String>::new(), "what is skipped");
    assert_eq!(outcome.passed, ALL);
}

/// An agent with everything switched on, with these classes.
async fn full(scratch: Scratch, classes: &str) -> Agent {
    let config = format!("attach: true\nmaxVolumesPerNode: 5\n{classes}");
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

/// Runs every spec over these classes: all pass, or are of what is not offered yet.
pub(crate) async fn check(scratch: Scratch, classes: &str, access: &str, more: &[&str]) {
    let agent = full(scratch, classes).await;
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
