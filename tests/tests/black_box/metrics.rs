//! Metrics, as a scraper sees them.

use std::os::unix::fs::PermissionsExt;

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options, eventually, is_over_lvm},
    requests::mounted,
    scrape::{scrape, undocumented},
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{
    group_snapshots::take,
    helpers::{mount, ok, refused, volume},
    trash::{trash, used},
};

/// The value of the one series whose name and labels begin so.
fn value(answer: &str, series: &str) -> u64 {
    let mut lines = answer.lines().filter(|line| line.starts_with(series));
    let line = lines.next().unwrap_or_else(|| panic!("{series}: {answer}"));
    assert_eq!(lines.next(), None, "{series}");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn calls(method: &str, code: &str) -> String {
    format!("drumlin_rpc_duration_seconds_count{{method=\"{method}\",code=\"{code}\"}}")
}

#[tokio::test]
async fn a_text_file_has_the_metrics_for_a_collector_and_is_gone_with_the_agent() {
    let scratch = Scratch::new();
    let path = scratch.path().join("drumlin.prom");
    let options = Options {
        config: Some(format!("metrics: {{textfile: {}}}\n", path.display())),
        // A minute is 60 ms.
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "1000".to_owned())],
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    let written = || std::fs::read_to_string(&path).unwrap_or_default();
    let first = eventually(written, |text| !text.is_empty()).await;
    assert_eq!(value(&first, "drumlin_class_ready{"), 1);
    assert_eq!(value(&first, "drumlin_build_info{"), 1);
    assert!(
        first.contains("# TYPE drumlin_build_info gauge\n"),
        "{first}"
    );
    assert!(
        !first.contains("# EOF") && !first.contains("# UNIT"),
        "{first}"
    );
    let mode = std::fs::metadata(&path).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o644);

    let volumes = value(&first, "drumlin_class_volumes{");
    volume(&agent, "v", 20, &mounted("ext4")).await;
    let has_it = |text: &String| {
        text.contains("drumlin_class_volumes{")
            && value(text, "drumlin_class_volumes{") == volumes + 1
    };
    eventually(written, has_it).await;
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait().await.code(), Some(0));
    assert!(!path.exists());
}

#[tokio::test]
async fn a_scrape_has_calls_programs_freeze_barriers_and_the_state_of_the_classes() {
    const CREATE: &str = "csi.v1.Controller/CreateVolume";
    let scratch = Scratch::new();
    let socket = scratch.path().join("metrics.sock");
    // Images that can share blocks: writers are held for an instant.
    let config = (!is_over_lvm()).then(|| {
        let images = scratch.file_system("images", Kind::Xfs, 1 << 10);
        let images = images.display();
        format!("classes: [{{name: default, directory: {{path: {images}}}}}]\n")
    });
    let options = Options {
        config,
        arguments: vec![format!("--metrics-listen={}", socket.display())],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let before = scrape(&socket).await;
    assert!(before.starts_with("HTTP/1.1 200 OK\r\n"), "{before}");
    assert!(!before.contains(CREATE), "{before}");
    let volumes = value(&before, "drumlin_class_volumes{");

    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let id = volume(&agent, name, 32, &mounted("ext4")).await;
        mount(&agent, name, &id, &mounted("ext4")).await;
        ids.push(id);
    }
    take(&agent, "groupsnapshot-1", &ids).await;
    let nameless = CreateVolumeRequest::default();
    let answer = agent.controller().create_volume(nameless).await;
    refused(answer, Code::InvalidArgument);

    let after = scrape(&socket).await;
    assert_eq!(value(&after, &calls(CREATE, "Ok")), 2);
    assert_eq!(value(&after, &calls(CREATE, "InvalidArgument")), 1);
    let formats = "drumlin_program_duration_seconds_count{program=\"mkfs.ext4\"}";
    assert_eq!(value(&after, formats), 2);
    let quiesced = value(&after, "drumlin_group_snapshot_quiesced_seconds_count");
    assert_eq!(quiesced, 1);
    assert_eq!(value(&after, "drumlin_class_volumes{"), volumes + 2);
    assert_eq!(value(&after, "drumlin_class_ready{"), 1);
    for id in &ids {
        assert!(!after.contains(id.as_str()), "{after}");
    }
    let longest = "drumlin_group_snapshot_quiesced_longest_seconds ";
    let line = after.lines().find_map(|line| line.strip_prefix(longest));
    assert!(line.unwrap().parse::<f64>().unwrap() > 0.0, "{after}");
    let undocumented = undocumented(&after, "agent");
    assert!(undocumented.is_empty(), "{undocumented:?}");
    // The log has its own level.
    assert!(!agent.log().contains("DEBUG"), "{}", agent.log());
}

#[tokio::test]
async fn the_trash_of_a_class_is_counted_by_itself() {
    let scratch = Scratch::new();
    let socket = scratch.path().join("metrics.sock");
    let options = Options {
        arguments: vec![format!("--metrics-listen={}", socket.display())],
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let id = used(&agent, "v", b"content").await;
    let before = scrape(&socket).await;
    assert_eq!(value(&before, "drumlin_class_trash_volumes{"), 0);
    assert_eq!(value(&before, "drumlin_class_trash_size_bytes{"), 0);
    let volumes = value(&before, "drumlin_class_volumes{");

    ok(trash(&agent, &id).await);
    let after = scrape(&socket).await;
    assert_eq!(value(&after, "drumlin_class_trash_volumes{"), 1);
    assert_eq!(value(&after, "drumlin_class_trash_size_bytes{"), 16 << 20);
    assert_eq!(value(&after, "drumlin_class_volumes{"), volumes - 1);
}
