//! A limit of a volume holds for what systemd runs, in slices that it makes later, and whatever it does to its cgroups.

use std::time::{Duration, Instant};

use drumlin_proto::csi::v1::ControllerModifyVolumeRequest;
use drumlin_tests::{programs::run, requests::mounted};

use crate::{
    unit::systemctl,
    volume::{Used, controller, make},
};

/// What the volume may write, in bytes per second.
const LIMIT: u64 = 4 << 20;

/// The time in which a unit of this slice writes 12 MiB, unless it writes less.
fn write(slice: &str, used: &Used) -> Duration {
    let file = format!("of={}", used.path(slice).display());
    let slice = format!("--slice={slice}");
    let unit = ["-q", "--wait", "--collect", &slice];
    let words = [
        "dd",
        "if=/dev/zero",
        &file,
        "bs=1M",
        "count=12",
        "conv=fsync",
    ];
    let begun = Instant::now();
    run("systemd-run", &[&unit[..], &words].concat());
    begun.elapsed()
}

fn is_limited(slice: &str, used: &Used) {
    let took = write(slice, used);
    assert!(
        took > Duration::from_secs(2),
        "12 MiB in {took:?} in {slice}"
    );
}

pub(crate) async fn check() {
    let id = make("bulk", "limited", 64, &mounted("ext4")).await;
    let used = Used::new(&id, "limited", &mounted("ext4")).await;
    let took = write("system", &used);
    assert!(
        took < Duration::from_secs(2),
        "12 MiB took {took:?} without a limit"
    );
    let request = ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: [("writeBytesPerSecond".to_owned(), LIMIT.to_string())].into(),
        ..ControllerModifyVolumeRequest::default()
    };
    controller()
        .controller_modify_volume(request)
        .await
        .unwrap();
    is_limited("system", &used);
    // systemd looks at all its cgroups, and makes one that was not there.
    systemctl(&["daemon-reload"]);
    run(
        "systemd-run",
        &[
            "-q",
            "--collect",
            "-u",
            "holder",
            "--slice=later",
            "sleep",
            "infinity",
        ],
    );
    used.again().await;
    is_limited("later", &used);
    is_limited("system", &used);
    systemctl(&["stop", "holder"]);
    used.delete().await;
}
