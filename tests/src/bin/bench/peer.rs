//! Beside csi-driver-host-path, the driver that Kubernetes itself tests with: the same calls by the same client, in one run.
//!
//! Go's module proxy does not have it, so whoever measures builds it from its repository and names it.

use std::{path::PathBuf, time::Duration};

use drumlin_proto::csi::v1::{ProbeRequest, identity_client::IdentityClient};
use drumlin_tests::{
    daemon::Daemon,
    requests::{delete, mounted},
    storage::{Kind, Scratch},
};

use crate::{
    driver::{Driver, VOLUMES},
    measure::{Table, timed},
    process::{agent, resident},
};

/// Names the program `hostpathplugin`.
const PROGRAM: &str = "DRUMLIN_HOST_PATH";

struct Figures {
    created: Duration,
    /// Milliseconds of processor.
    list_volumes: f64,
    list_snapshots: f64,
    /// MiB.
    idle: f64,
    full: f64,
    emptied: f64,
}

async fn figures(driver: &Driver) -> Figures {
    let idle = resident(driver.pid);
    // To it these are directories, to us images.
    let (ids, created) = timed(driver.create_from_eight(&mounted("ext4"))).await;
    let list_volumes = driver.list_volumes().await;
    let list_snapshots = driver.list_snapshots(&ids).await;
    let full = resident(driver.pid);
    let mut controller = driver.controller();
    for id in ids {
        controller.delete_volume(delete(&id)).await.unwrap();
    }
    // Memory is given back when no call has come for a while.
    tokio::time::sleep(Duration::from_secs(12)).await;
    Figures {
        created: created / u32::try_from(VOLUMES).unwrap(),
        list_volumes,
        list_snapshots,
        idle,
        full,
        emptied: resident(driver.pid),
    }
}

/// Starts it on a file system of its own, like that of ours.
async fn host_path(program: PathBuf) -> Figures {
    let scratch = Scratch::new();
    let state = scratch.file_system("images", Kind::Ext4, 4 << 10);
    let socket = scratch.path().join("csi.sock");
    let arguments = [
        format!("--endpoint=unix://{}", socket.display()),
        format!("--statedir={}", state.display()),
        "--nodeid=node-a".to_owned(),
        "--v=1".to_owned(),
    ];
    let daemon = Daemon::start(program, &arguments, &[]);
    let driver = Driver {
        socket,
        pid: daemon.pid(),
    };
    for _ in 0..500 {
        let channel = drumlin_proto::connect(&driver.socket).unwrap();
        if IdentityClient::new(channel)
            .probe(ProbeRequest {})
            .await
            .is_ok()
        {
            return figures(&driver).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not answer:\n{}", daemon.log());
}

pub(crate) async fn host_path_beside_ours(table: &mut Table) {
    let Some(program) = std::env::var_os(PROGRAM) else {
        println!("beside csi-driver-host-path: not measured, {PROGRAM} names no hostpathplugin");
        return;
    };
    let theirs = host_path(program.into()).await;
    let agent = agent(Kind::Ext4, 4 << 10).await;
    let ours = figures(&Driver::of(&agent)).await;
    let what = |figure: &str| format!("{figure}, beside csi-driver-host-path");
    table.ratio(
        &what("CreateVolume, 8 callers, 1,000 volumes, each"),
        (ours.created, theirs.created),
        1.0,
    );
    let rows = [
        (
            "ListVolumes of 1,000, processor time",
            ours.list_volumes,
            theirs.list_volumes,
            "ms",
        ),
        (
            "ListSnapshots of 40, processor time",
            ours.list_snapshots,
            theirs.list_snapshots,
            "ms",
        ),
        ("resident memory, idle", ours.idle, theirs.idle, "MiB"),
        (
            "resident memory, after 1,000 volumes and lists of them",
            ours.full,
            theirs.full,
            "MiB",
        ),
        (
            "resident memory, idle after all are deleted",
            ours.emptied,
            theirs.emptied,
            "MiB",
        ),
    ];
    for (figure, ours, theirs, unit) in rows {
        table.beside(&what(figure), (ours, theirs), 1.0, unit);
    }
}
