//! The examples for Nomad, as far as they can be looked at without it: their form, and that the agent takes what they say.
//! `tests/tests/nomad` has a real one.

use drumlin_proto::csi::v1::CapacityRange;
use drumlin_tests::{
    agent::Agent,
    programs::{drumlin, output, workspace},
    requests::{create, mounted},
};
use hcl::{Body, Expression};

use crate::helpers::ok;

fn example(name: &str) -> Body {
    let path = workspace().join("examples/nomad").join(name);
    hcl::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The attribute at the end of a path of blocks.
fn attribute(body: &Body, path: &[&str]) -> Expression {
    let (last, blocks) = path.split_last().unwrap();
    let mut body = body;
    for name in blocks {
        let mut found = body.blocks().filter(|block| block.identifier() == *name);
        body = found.next().unwrap_or_else(|| panic!("no {name}")).body();
    }
    let mut found = body.attributes().filter(|one| one.key() == *last);
    found
        .next()
        .unwrap_or_else(|| panic!("no {last}"))
        .expr()
        .clone()
}

fn text(body: &Body, path: &[&str]) -> String {
    match attribute(body, path) {
        Expression::String(text) => text,
        other => panic!("{path:?} is {other:?}"),
    }
}

/// A path in the task of the job.
fn of_task(path: &[&'static str]) -> Vec<&'static str> {
    [&["job", "group", "task"], path].concat()
}

/// The arguments of the agent, which it takes; each node is a plugin of its own.
fn arguments(job: &Body) -> Vec<String> {
    let Expression::Array(arguments) = attribute(job, &of_task(&["config", "args"])) else {
        panic!("arguments are a list");
    };
    let arguments = arguments.into_iter().map(|argument| match argument {
        Expression::String(text) => text,
        other => panic!("{other:?}"),
    });
    let arguments: Vec<String> = arguments.collect();
    let node = text(job, &["job", "constraint", "value"]);
    assert!(
        arguments.contains(&format!("--node={node}")),
        "{arguments:?}"
    );
    let plugin = text(job, &of_task(&["csi_plugin", "id"]));
    assert_eq!(plugin, format!("drumlin-{node}"));
    assert_eq!(text(&example("volume.hcl"), &["plugin_id"]), plugin);
    assert_eq!(text(job, &of_task(&["csi_plugin", "type"])), "monolith");
    let words = arguments.iter().map(String::as_str);
    let words: Vec<&str> = words.chain(["--help"]).collect();
    let told = output(&drumlin().to_string_lossy(), &words);
    assert!(told.status.success(), "{told:?}");
    arguments
}

#[test]
fn the_job_starts_an_agent_where_nomad_looks_for_it() {
    let job = example("plugin.nomad.hcl");
    let words = arguments(&job);
    let told = format!(
        "--endpoint=unix://{}/csi.sock",
        text(&job, &of_task(&["csi_plugin", "mount_dir"]))
    );
    assert!(words.contains(&told), "{words:?}");
    // Nomad itself mounts the host's /dev: named again it would be a mount point twice.
    let Expression::Array(volumes) = attribute(&job, &of_task(&["config", "volumes"])) else {
        panic!("volumes are a list");
    };
    let state = Expression::String("/var/lib/drumlin:/var/lib/drumlin".to_owned());
    assert_eq!(volumes, [state]);
}

#[test]
fn without_a_container_the_agent_is_told_where_the_clients_own_directory_is() {
    let job = example("plugin-raw-exec.nomad.hcl");
    arguments(&job);
    let plugin = text(&job, &of_task(&["csi_plugin", "id"]));
    assert_eq!(
        text(&job, &of_task(&["csi_plugin", "stage_publish_base_dir"])),
        format!("/opt/nomad/data/client/csi/monolith/{plugin}")
    );
}

#[tokio::test]
async fn the_volume_is_made_as_nomad_asks_for_it() {
    let volume = example("volume.hcl");
    assert_eq!(
        text(&volume, &["capability", "access_mode"]),
        "single-node-writer"
    );
    assert_eq!(
        text(&volume, &["capability", "attachment_mode"]),
        "file-system"
    );
    let bytes = |key| match text(&volume, &[key]).strip_suffix("GiB") {
        Some(count) => count.parse::<i64>().unwrap() << 30,
        None => panic!("{key} is in GiB"),
    };
    let mut request = create(
        &text(&volume, &["name"]),
        1024,
        &mounted(&text(&volume, &["mount_options", "fs_type"])),
    );
    request.capacity_range = Some(CapacityRange {
        required_bytes: bytes("capacity_min"),
        limit_bytes: bytes("capacity_max"),
    });
    let class = text(&volume, &["parameters", "class"]);
    request.parameters = [("class".to_owned(), class)].into();
    let agent = Agent::start().await;
    let made = ok(agent.controller().create_volume(request).await);
    assert_eq!(made.volume.unwrap().capacity_bytes, 1 << 30);
}
