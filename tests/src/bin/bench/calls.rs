//! Calls, each in turns with the bare programs that do the same.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{ListVolumesRequest, ProbeRequest};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{create, delete, mounted, publish, raw, snapshot, stage, unpublish, unstage},
    storage::Kind,
};

use crate::{
    measure::{Table, median, timed},
    process::agent,
};

fn programs(list: &[&[&str]]) -> Duration {
    let begun = Instant::now();
    for program in list {
        run(program[0], &program[1..]);
    }
    begun.elapsed()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

pub(crate) async fn create_some(agent: &Agent, from: usize, to: usize) -> Vec<Duration> {
    let mut controller = agent.controller();
    let mut times = Vec::new();
    for index in from..to {
        let (answer, time) =
            timed(controller.create_volume(create(&format!("v{index}"), 16, &raw()))).await;
        answer.unwrap();
        times.push(time);
    }
    times
}

pub(crate) async fn creation(table: &mut Table) {
    let agent = agent(Kind::Ext4, 4 << 10).await;
    let bare = agent.path("images/bare");
    fs::create_dir(&bare).unwrap();
    create_some(&agent, 0, 10).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for index in 10..60 {
        ours.extend(create_some(&agent, index, index + 1).await);
        let (new, done) = (text(&bare.join("new")), text(&bare.join(index.to_string())));
        theirs.push(programs(&[
            &["truncate", "-s", "16M", &new],
            &["sync", &new],
            &["mv", &new, &done],
            &["sync", &text(&bare)],
        ]));
    }
    table.ratio(
        "CreateVolume, durable, beside truncate, sync, mv, sync",
        (median(ours.clone()), median(theirs)),
        1.0,
    );
    create_some(&agent, 60, 1000).await;
    let late = create_some(&agent, 1000, 1050).await;
    table.ratio(
        "CreateVolume with 1,000 volumes beside with 10",
        (median(late), median(ours)),
        1.2,
    );
}

pub(crate) async fn mount(table: &mut Table) {
    let agent = agent(Kind::Ext4, 2 << 10).await;
    let plain = mounted("ext4");
    let id = agent
        .controller()
        .create_volume(create("v", 64, &plain))
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap()
        .volume_id;
    let staging = text(&agent.scratch.directory("staging"));
    let target = text(&agent.path("target"));
    let image = agent.path("images/bare.img");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F", &text(&image)]);
    let (one, two) = (
        text(&agent.scratch.directory("one")),
        text(&agent.scratch.directory("two")),
    );
    let mut node = agent.node();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..41 {
        let ((), time) = timed(async {
            node.node_stage_volume(stage(&id, &staging, &plain))
                .await
                .unwrap();
            node.node_publish_volume(publish(&id, (&staging, &target), &plain))
                .await
                .unwrap();
            node.node_unpublish_volume(unpublish(&id, &target))
                .await
                .unwrap();
            node.node_unstage_volume(unstage(&id, &staging))
                .await
                .unwrap();
        })
        .await;
        ours.push(time);
        let begun = Instant::now();
        let device = run("losetup", &["--find", "--show", &text(&image)])
            .trim()
            .to_owned();
        programs(&[
            &["mount", &device, &one],
            &["mount", "--bind", &one, &two],
            &["umount", &two],
            &["umount", &one],
            &["losetup", "-d", &device],
        ]);
        theirs.push(begun.elapsed());
    }
    // The first of ours formats.
    ours.remove(0);
    table.ratio("stage, publish, unpublish, unstage beside losetup, mount, mount --bind, umount ×2, losetup -d", (median(ours), median(theirs)), 1.0);
}

pub(crate) async fn snapshots(table: &mut Table) {
    for (kind, how, figure) in [
        (
            Kind::Xfs,
            "--reflink=always",
            "CreateSnapshot with reflinks beside cp --reflink=always, sync",
        ),
        (
            Kind::Ext4,
            "--sparse=always",
            "CreateSnapshot without reflinks beside cp --sparse=always, sync",
        ),
    ] {
        let agent = agent(kind, 8 << 10).await;
        let id = agent
            .controller()
            .create_volume(create("v", 1024, &raw()))
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap()
            .volume_id;
        let image = agent
            .path("images/volumes")
            .join(id.rsplit('/').next().unwrap())
            .join("image");
        run(
            "dd",
            &[
                "if=/dev/urandom",
                &format!("of={}", image.display()),
                "bs=1M",
                "count=256",
                "conv=notrunc,fsync",
                "status=none",
            ],
        );
        let copy = text(&agent.path("images/copy"));
        let mut controller = agent.controller();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..12 {
            // In turns who is first: the one who comes after the other finds the cache warm, or the journal full.
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    let (taken, time) = timed(controller.create_snapshot(snapshot("s", &id))).await;
                    ours.push(time);
                    let id = taken.unwrap().into_inner().snapshot.unwrap().snapshot_id;
                    let request = drumlin_proto::csi::v1::DeleteSnapshotRequest {
                        snapshot_id: id,
                        ..Default::default()
                    };
                    controller.delete_snapshot(request).await.unwrap();
                } else {
                    theirs.push(programs(&[
                        &["cp", how, &text(&image), &copy],
                        &["sync", &copy],
                    ]));
                    fs::remove_file(&copy).unwrap();
                }
                run("sync", &["--file-system", &text(&image)]);
            }
        }
        table.ratio(figure, (median(ours), median(theirs)), 1.2);
        controller.delete_volume(delete(&id)).await.unwrap();
    }
}

/// Calls that cost next to nothing, beside a method that does not exist: what the socket and the protocol cost.
pub(crate) async fn small(table: &mut Table) {
    use tonic::{client::Grpc, codegen::http::uri::PathAndQuery};
    let agent = agent(Kind::Ext4, 4 << 10).await;
    create_some(&agent, 0, 1000).await;
    let mut identity = agent.identity();
    let mut unknown = Grpc::new(drumlin_proto::connect(&agent.socket()).unwrap());
    let (mut probes, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        let (answer, time) = timed(identity.probe(ProbeRequest {})).await;
        answer.unwrap();
        probes.push(time);
        unknown.ready().await.unwrap();
        let path = PathAndQuery::from_static("/csi.v1.Nothing/Nothing");
        let codec = tonic_prost::ProstCodec::<ProbeRequest, ProbeRequest>::default();
        let (answer, time) =
            timed(unknown.unary(tonic::Request::new(ProbeRequest {}), path, codec)).await;
        assert!(answer.is_err());
        nothing.push(time);
    }
    let nothing = median(nothing);
    table.ratio(
        "Probe beside an unknown method",
        (median(probes), nothing),
        1.2,
    );
    drop((identity, unknown));
    table.most(
        "ListVolumes with 1,000 volumes, server time",
        server_time(agent).await,
        8.0,
        "ms",
    );
}

/// What the agent itself says that a list takes, in milliseconds: the time at a client is mostly that of the wire.
async fn server_time(mut agent: Agent) -> f64 {
    agent.kill();
    agent
        .restart_with(Options {
            config: agent.options().config.clone(),
            arguments: vec![
                "--log-level=debug".to_owned(),
                "--log-format=json".to_owned(),
            ],
            ..Options::default()
        })
        .await;
    for _ in 0..100 {
        let mut controller = agent.controller();
        let list = controller.list_volumes(ListVolumesRequest::default()).await;
        assert_eq!(list.unwrap().into_inner().entries.len(), 1000);
    }
    let log = agent.log();
    let mut times: Vec<f64> = log
        .lines()
        .filter(|line| line.contains("Controller/ListVolumes"))
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        // Behind it comes the trace of the call.
        .filter(|line| line["message"] == "rpc")
        .map(|line| line["elapsed_ms"].as_f64().unwrap())
        .collect();
    assert_eq!(times.len(), 100);
    times.sort_by(f64::total_cmp);
    times[50]
}
