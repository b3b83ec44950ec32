//! Settings, the environment and permissions.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    doctor::Diagnosis,
    programs::run,
    requests::raw,
    storage::Scratch,
};

use crate::{
    helpers::{text, volume},
    host::{Host, small},
};

fn configured(config: &str) -> Options {
    Options {
        config: Some(config.to_owned()),
        ..Options::default()
    }
}

#[tokio::test]
async fn a_configuration_that_is_not_valid_is_told_with_its_line() {
    let mut agent = Agent::with(Scratch::new(), configured("node: n\n")).await;
    agent.kill();
    write(&agent.path("config.yaml"), "node: n\nclases: []\n");
    let found = Diagnosis::of(&agent);
    let message = found.text("invalid-configuration", "config.yaml", "message");
    assert!(
        message.contains("line 2") && message.contains("clases"),
        "{message}"
    );
    found.finds("not-checked", "classes");
    write(&agent.path("config.yaml"), "node: n\n");
    Diagnosis::of(&agent).lacks("invalid-configuration");
}

#[tokio::test]
async fn a_change_that_needs_a_restart_is_found_until_it_is_taken_back() {
    let agent = Agent::with(Scratch::new(), configured("node: n\n")).await;
    let found = |config: &str| {
        write(&agent.path("config.yaml"), config);
        Diagnosis::until(&agent, "change-not-applied", "config.yaml")
    };
    let message =
        found("node: n\nattach: true\n").text("change-not-applied", "config.yaml", "message");
    assert!(message.ends_with(": attach"), "{message}");
    write(&agent.path("config.yaml"), "node: n\n");
    let found = || Diagnosis::of(&agent).all("change-not-applied").len();
    eventually(found, |count| *count == 0).await;
}

#[tokio::test]
async fn what_others_can_write_is_insecure() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("v")]);
    host.until("v", &["True"]).await;
    let (state, socket) = (host.agent.path("state"), host.agent.socket());
    let manifest = host.manifests.join("v.yaml");
    Diagnosis::of(&host.agent).lacks("insecure-permissions");
    for path in [&state, &socket, &manifest] {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o022)).unwrap();
    }
    let found = Diagnosis::of(&host.agent);
    for path in [&state, &socket] {
        let object = text(path.clone());
        let command = format!("chmod go-w {object}");
        let insecure = found.all("insecure-permissions").into_iter();
        let mut of = insecure.filter(|one| one["object"] == object.as_str());
        assert_eq!(of.next().unwrap()["command"], command.as_str());
        run("sh", &["-c", &command]);
    }
    found.finds("insecure-permissions", "v.yaml");
    run("chmod", &["go-w", &text(manifest)]);
    Diagnosis::of(&host.agent).lacks("insecure-permissions");
}

#[tokio::test]
async fn variables_and_settings_without_effect_are_told() {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let options = Options {
        environment: vec![
            variable("DRUMLIN_MANIFEST", "/etc/drumlin/manifests.d"),
            variable("DRUMLIN_START_JITTER", "5"),
        ],
        ..configured(
            "node: other\nmaxVolumesPerNode: 5\nlog: {level: info}\nprune: {mode: auto}\nmanifestOwner: root\n",
        )
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let found = Diagnosis::of(&agent);
    found.finds("unknown-variable", "DRUMLIN_MANIFEST");
    found.finds("setting-without-effect", "maxVolumesPerNode");
    found.finds("setting-without-effect", "DRUMLIN_START_JITTER");
    found.finds("setting-without-effect", "--prune");
    found.finds("setting-without-effect", "--manifest-owner");
    // The tests start agents with `--node`.
    let message = found.text("overridden-setting", "config.yaml: node", "message");
    assert!(message.contains("--node is given"), "{message}");
    assert_eq!(found.all("overridden-setting").len(), 1);
}

#[tokio::test]
async fn a_directory_of_another_node_is_told() {
    let mut agent = Agent::start().await;
    volume(&agent, "v", 16, &raw()).await;
    agent.kill();
    Diagnosis::of(&agent).lacks("other-node");
    let state = format!("--state-dir={}", agent.path("state").display());
    let output = agent.command(&["doctor", &state, "--node=node-b", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = Diagnosis {
        report,
        code: output.status.code().unwrap(),
    };
    let advice = found.text("other-node", "state/images", "advice");
    assert!(advice.contains("adoptNode: node-a"), "{advice}");
    assert_eq!(found.code, 2);
}

#[tokio::test]
async fn limits_that_cannot_be_set_are_found() {
    let scratch = Scratch::new();
    let (images, cgroups) = (scratch.directory("images"), scratch.directory("cgroups"));
    let config = format!(
        "cgroups: {}\nclasses: [{{name: a, directory: {{path: {}}}, limits: {{readIops: 5}}}}]\n",
        cgroups.display(),
        images.display()
    );
    let agent = Agent::with(scratch, configured(&config)).await;
    let said = |why: &str| {
        let found = Diagnosis::of(&agent);
        let message = found.text("limits-not-in-force", "class a", "message");
        assert!(message.contains(why), "{message}");
    };
    said("is no cgroup v2 hierarchy");
    // As a kernel has it; the lab has a real one.
    fs::create_dir(cgroups.join("system.slice")).unwrap();
    fs::write(cgroups.join("cgroup.controllers"), "cpu io\n").unwrap();
    fs::write(cgroups.join("cgroup.subtree_control"), "cpu\n").unwrap();
    said("off below the root");
    fs::write(cgroups.join("cgroup.subtree_control"), "cpu io\n").unwrap();
    Diagnosis::of(&agent).lacks("limits-not-in-force");
}

#[tokio::test]
async fn a_key_that_is_none_or_that_others_can_read_is_found() {
    let scratch = Scratch::new();
    let images = scratch.directory("images");
    let (key, keys) = (scratch.key("key"), scratch.directory("keys"));
    let short = keys.join("short");
    let modes = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    modes(scratch.path(), 0o755);
    modes(&keys, 0o755);
    fs::write(&short, "short").unwrap();
    modes(&short, 0o644);
    let config = format!(
        "classes: [{{name: a, directory: {{path: {}}}, encryption: {{type: luks2, key: {{file: {}}}, previousKeys: [{{file: {}}}]}}}}]\n",
        images.display(),
        key.display(),
        short.display()
    );
    let agent = Agent::with(scratch, configured(&config)).await;
    let found = Diagnosis::of(&agent);
    let message = found.text("key-unusable", "class a", "message");
    assert!(message.contains("5 bytes"), "{message}");
    let command = found.text("exposed-key", &text(short.clone()), "command");
    assert_eq!(command, format!("chmod go= {}", short.display()));
    // The kernel of the test decides.
    assert!(found.all("no-dm-crypt").len() <= 1);
    modes(&short, 0o600);
    Diagnosis::of(&agent).lacks("exposed-key");
    // Nobody gets there.
    modes(&short, 0o644);
    modes(&keys, 0o700);
    Diagnosis::of(&agent).lacks("exposed-key");
    modes(&keys, 0o710);
    Diagnosis::of(&agent).finds("exposed-key", &text(short));
}
