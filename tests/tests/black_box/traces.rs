//! Traces of calls: in the log, and in an OpenTelemetry collector.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options, eventually, is_over_lvm},
    collector::{Collector, attribute},
    requests::mounted,
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use tonic::Code;

use crate::{
    group_snapshots::take,
    helpers::{mount, refused, volume},
};

const CREATE: &str = "csi.v1.Controller/CreateVolume";
const STAGE: &str = "csi.v1.Node/NodeStageVolume";
const GROUP_SNAPSHOT: &str = "csi.v1.GroupController/CreateVolumeGroupSnapshot";

/// An agent that exports to this endpoint every 100 ms, over images that can share blocks.
async fn exporting(endpoint: &str) -> Agent {
    let scratch = Scratch::new();
    let config = (!is_over_lvm()).then(|| {
        let images = scratch.file_system("images", Kind::Xfs, 1 << 10);
        format!(
            "classes: [{{name: default, directory: {{path: {}}}}}]\n",
            images.display()
        )
    });
    let options = Options {
        config,
        environment: [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

async fn logging(arguments: &[&str]) -> Agent {
    let arguments = arguments.iter().map(|&one| one.to_owned()).collect();
    let options = Options {
        arguments,
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

/// The names of a span and of all above it, up to its call.
fn upwards(span: &Span, trace: &[Span]) -> Vec<String> {
    let above = trace.iter().find(|one| one.span_id == span.parent_span_id);
    let names = above.map(|above| upwards(above, trace)).unwrap_or_default();
    [vec![span.name.clone()], names].concat()
}

#[tokio::test]
async fn every_span_of_a_call_leads_up_to_it() {
    let collector = Collector::start().await;
    let agent = exporting(&collector.endpoint()).await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let id = volume(&agent, name, 32, &mounted("ext4")).await;
        mount(&agent, name, &id, &mounted("ext4")).await;
        ids.push(id);
    }
    take(&agent, "groupsnapshot-1", &ids).await;
    let made = if is_over_lvm() { "command" } else { "fsync" };
    let quiesced = if is_over_lvm() {
        "DM_DEV_SUSPEND"
    } else {
        "FIFREEZE"
    };
    for (method, expected) in [
        (CREATE, vec![made]),
        (STAGE, vec!["program", "mount", "ioctl"]),
        (GROUP_SNAPSHOT, vec!["quiesce", "wait", "program"]),
    ] {
        let (root, trace) = collector.trace_of(method).await;
        assert_eq!(root.kind(), SpanKind::Server);
        assert!(root.parent_span_id.is_empty());
        assert_eq!(attribute(&root, "rpc.code"), Some("Ok"));
        for span in &trace {
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
            let names = upwards(span, &trace);
            assert_eq!(names.last().unwrap(), method, "{names:?}");
        }
        for name in expected {
            let found = trace.iter().find(|span| span.name == name);
            let found = found.unwrap_or_else(|| panic!("{name} of {method}: {trace:#?}"));
            let names = upwards(found, &trace);
            assert!(names.iter().any(|name| name == "operation"), "{names:?}");
        }
        if method == GROUP_SNAPSHOT {
            let holds = |span: &&Span| attribute(span, "request") == Some(quiesced);
            let mut within = trace.iter().filter(holds).map(|span| upwards(span, &trace));
            assert!(
                within.all(|names| names[1..3] == ["quiesce", "operation"]),
                "{trace:#?}"
            );
            assert!(trace.iter().any(|span| holds(&span)), "{trace:#?}");
        }
    }
    // The log has its own level.
    assert!(!agent.log().contains("DEBUG"), "{}", agent.log());
}

#[tokio::test]
async fn a_call_that_failed_is_an_error_with_its_code() {
    let collector = Collector::start().await;
    let agent = exporting(&collector.endpoint()).await;
    let nameless = CreateVolumeRequest::default();
    let answer = agent.controller().create_volume(nameless).await;
    refused(answer, Code::InvalidArgument);
    let (root, _) = collector.trace_of(CREATE).await;
    assert_eq!(attribute(&root, "rpc.code"), Some("InvalidArgument"));
    assert_eq!(root.status.unwrap().code(), StatusCode::Error);
}

#[tokio::test]
async fn the_last_spans_are_exported_at_the_end() {
    let collector = Collector::start().await;
    let options = Options {
        // The next regular export would come after a minute.
        environment: vec![("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "60000".to_owned())],
        arguments: vec![format!("--otlp-endpoint={}", collector.endpoint())],
        ..Options::default()
    };
    let mut agent = Agent::with(Scratch::new(), options).await;
    volume(&agent, "a", 1, &mounted("ext4")).await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait().await.code(), Some(0));
    collector.trace_of(CREATE).await;
}

/// The lines of the tree of the first call of a method, once it is in the log.
async fn tree(agent: &Agent, method: &str) -> Vec<String> {
    let lines = || -> Vec<String> {
        let log = agent.log();
        let lines = log.lines().map(str::to_owned);
        let mut lines =
            lines.skip_while(|line| !(line.contains(" ms rpc ") && line.contains(method)));
        let root = lines.next();
        let below = lines.take_while(|line| line.starts_with(' ') && !line.contains(" ms rpc "));
        root.into_iter().chain(below).collect()
    };
    eventually(lines, |lines| !lines.is_empty()).await
}

#[tokio::test]
async fn at_level_debug_a_call_is_a_tree_in_the_log() {
    let agent = logging(&["--log-level=debug"]).await;
    let id = volume(&agent, "a", 32, &mounted("ext4")).await;
    mount(&agent, "a", &id, &mounted("ext4")).await;
    let lines = tree(&agent, STAGE).await;
    let root = &lines[0];
    assert!(root.contains(&id) && root.ends_with(" Ok"), "{root}");
    let depth = |name: &str| {
        let line = lines.iter().find_map(|line| line.split_once(name));
        line.map(|(before, _)| before.len())
    };
    let operation = depth("operation ");
    assert!(operation > depth("rpc "), "{lines:#?}");
    for name in ["program mkfs.ext4 ", "mount ", "ioctl "] {
        assert!(depth(name) > operation, "{name}: {lines:#?}");
    }
    // The number of the call is that of its log line.
    let number = root.split("request.id=").nth(1).unwrap();
    let number = number.split(' ').next().unwrap();
    let log = agent.log();
    let mut line = log.lines().filter(|line| line.contains("rpc.method="));
    let line = line.find(|line| line.contains(STAGE)).unwrap();
    assert!(line.contains(&format!("request.id={number} ")), "{line}");
}

#[tokio::test]
async fn with_json_a_tree_is_one_line() {
    let agent = logging(&["--log-level=debug", "--log-format=json"]).await;
    volume(&agent, "a", 32, &mounted("ext4")).await;
    let trees = || -> Vec<serde_json::Value> {
        let log = agent.log();
        let values = log.lines().map(|line| serde_json::from_str(line).unwrap());
        let is_tree = |value: &serde_json::Value| {
            value["message"] == "trace" && value["rpc.method"] == CREATE
        };
        values.filter(is_tree).collect()
    };
    let trees = eventually(trees, |trees| !trees.is_empty()).await;
    assert_eq!(trees.len(), 1);
    assert_eq!(trees[0]["object"], "a");
    let spans = trees[0]["spans"].as_array().unwrap();
    let operation = spans.iter().find(|span| span["name"] == "operation");
    let operation = operation.unwrap_or_else(|| panic!("{trees:#?}"));
    assert!(operation["elapsed_ms"].as_f64().unwrap() <= trees[0]["elapsed_ms"].as_f64().unwrap());
    assert!(!operation["spans"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn a_collector_that_is_away_or_silent_is_one_warning_and_holds_up_nothing() {
    // Connections are accepted by the kernel, and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (silent.local_addr().unwrap(), Some(silent));
    // The port is free again.
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    for (address, _listener) in [(away.unwrap(), None), silent] {
        let mut agent = exporting(&format!("http://{address}")).await;
        for name in ["a", "b", "c"] {
            let begun = Instant::now();
            volume(&agent, name, 1, &mounted("ext4")).await;
            // Less than the timeout of an export.
            assert!(begun.elapsed() < Duration::from_secs(4));
        }
        let warnings = || agent.log().matches("traces not exported").count();
        eventually(warnings, |warnings| *warnings > 0).await;
        volume(&agent, "d", 1, &mounted("ext4")).await;
        let begun = Instant::now();
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.wait().await.code(), Some(0));
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(agent.log().matches("traces not exported").count(), 1);
    }
}
