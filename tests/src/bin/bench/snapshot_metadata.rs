//! Changed blocks as a client of the agent's socket sees them: beside `thin_delta`, how soon the first message comes, and
//! the memory of the agent.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::{
    BlockMetadata, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse, ProbeRequest,
    snapshot_metadata_client::SnapshotMetadataClient,
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{create, publish, raw, snapshot, stage},
    storage::Kind,
};
use tonic::{Response, Status, Streaming, transport::Channel};

use crate::{
    lvm::{bare, pool},
    measure::{Table, median},
    process::{self, Growth},
};

/// How often each figure is measured.
const TIMES: usize = 9;
/// The least that is written, and a chunk of the pool.
const BLOCK: usize = 4096;
const CHUNK: usize = 64 << 10;
/// A large volume, and how far apart what is written of it lies, in mebibytes.
const LARGE: u64 = 100 << 10;
const APART: u64 = 1;
/// Fewer, for a chunk of the pool is allocated for each.
const APART_THIN: u64 = 4;

/// A raw volume with two snapshots.
struct Snapshots<'a> {
    agent: &'a Agent,
    ids: [String; 2],
}

/// What is written before a snapshot: so many bytes at each of the offsets.
struct Writes {
    length: usize,
    offsets: Vec<u64>,
}

impl Writes {
    /// From the beginning to the end of so many mebibytes.
    fn each(mebibytes: u64, step: u64, length: usize) -> Self {
        let offsets = (0..mebibytes << 20).step_by(usize::try_from(step).unwrap());
        Self {
            length,
            offsets: offsets.collect(),
        }
    }

    fn write(&self, path: &str, byte: u8) {
        let file = File::options().write(true).open(path).unwrap();
        let bytes = vec![byte; self.length];
        for offset in &self.offsets {
            file.write_all_at(&bytes, *offset).unwrap();
        }
        file.sync_all().unwrap();
    }
}

impl<'a> Snapshots<'a> {
    async fn take(agent: &'a Agent, mebibytes: u64, writes: [Writes; 2]) -> Self {
        let name = format!("v{mebibytes}");
        let request = create(&name, i64::try_from(mebibytes).unwrap(), &raw());
        let made = agent.controller().create_volume(request).await.unwrap();
        let id = made.into_inner().volume.unwrap().volume_id;
        let staging = agent.scratch.directory(&format!("staging/{name}"));
        let staging = staging.to_string_lossy().into_owned();
        let target = agent.scratch.directory("targets").join(&name);
        let target = target.to_string_lossy().into_owned();
        let mut node = agent.node();
        let request = stage(&id, &staging, &raw());
        node.node_stage_volume(request).await.unwrap();
        let request = publish(&id, (&staging, &target), &raw());
        node.node_publish_volume(request).await.unwrap();
        let mut ids = Vec::new();
        for (byte, writes) in (1..).zip(&writes) {
            writes.write(&target, byte);
            let request = snapshot(&format!("{name}-{byte}"), &id);
            let taken = agent.controller().create_snapshot(request).await.unwrap();
            ids.push(taken.into_inner().snapshot.unwrap().snapshot_id);
        }
        Self {
            agent,
            ids: ids.try_into().unwrap(),
        }
    }

    /// A client whose connection is there.
    async fn client(&self) -> SnapshotMetadataClient<Channel> {
        let channel = self.agent.channel();
        let mut identity =
            drumlin_proto::csi::v1::identity_client::IdentityClient::new(channel.clone());
        identity.probe(ProbeRequest {}).await.unwrap();
        SnapshotMetadataClient::new(channel)
    }

    async fn delta(&self, client: &mut SnapshotMetadataClient<Channel>) -> Heard {
        let request = GetMetadataDeltaRequest {
            base_snapshot_id: self.ids[0].clone(),
            target_snapshot_id: self.ids[1].clone(),
            ..GetMetadataDeltaRequest::default()
        };
        let ranges = |message: GetMetadataDeltaResponse| message.block_metadata;
        heard(client.get_metadata_delta(request), ranges).await
    }

    async fn allocated(&self, client: &mut SnapshotMetadataClient<Channel>) -> Heard {
        let request = GetMetadataAllocatedRequest {
            snapshot_id: self.ids[1].clone(),
            ..GetMetadataAllocatedRequest::default()
        };
        let ranges = |message: GetMetadataAllocatedResponse| message.block_metadata;
        heard(client.get_metadata_allocated(request), ranges).await
    }
}

/// What came of a call.
struct Heard {
    /// From the call to its first message, and to its end.
    first: Duration,
    all: Duration,
    bytes: u64,
}

async fn heard<T>(
    call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ranges: impl Fn(T) -> Vec<BlockMetadata>,
) -> Heard {
    let begun = Instant::now();
    let mut stream = call.await.unwrap().into_inner();
    let (mut first, mut bytes) = (None, 0);
    while let Some(message) = stream.message().await.unwrap() {
        first.get_or_insert_with(|| begun.elapsed());
        let sizes = ranges(message).into_iter().map(|range| range.size_bytes);
        bytes += u64::try_from(sizes.sum::<i64>()).unwrap();
    }
    Heard {
        first: first.unwrap(),
        all: begun.elapsed(),
        bytes,
    }
}

/// How soon the first message of each call comes, and how much memory both take, of a sparse volume of 100 GiB. `written`
/// and `changed` are what must be told, in bytes.
async fn large(table: &mut Table, agent: &mut Agent, what: &str, apart: u64, unit: usize) {
    let writes = [1, 10].map(|every| Writes::each(LARGE, every * (apart << 20), BLOCK));
    let [written, changed] =
        [&writes[0], &writes[1]].map(|writes| u64::try_from(writes.offsets.len() * unit).unwrap());
    let Snapshots { ids, .. } = Snapshots::take(agent, LARGE, writes).await;
    // Nothing is left of what made them.
    agent.kill();
    agent.restart().await;
    let taken = Snapshots { agent, ids };
    let mut client = taken.client().await;
    let pid = agent.pid().to_string();
    let growth = Growth::begin(&pid);
    let mut delta = vec![taken.delta(&mut client).await];
    let memory_of_delta = growth.end();
    let growth = Growth::begin(&pid);
    let mut allocated = vec![taken.allocated(&mut client).await];
    let memory_of_allocated = growth.end();
    for _ in 1..TIMES {
        delta.push(taken.delta(&mut client).await);
        allocated.push(taken.allocated(&mut client).await);
    }
    for (call, all, bytes, memory) in [
        ("GetMetadataDelta", delta, changed, memory_of_delta),
        (
            "GetMetadataAllocated",
            allocated,
            written,
            memory_of_allocated,
        ),
    ] {
        assert!(
            all.iter().all(|heard| heard.bytes == bytes),
            "{}",
            all[0].bytes
        );
        let whole = median(all.iter().map(|heard| heard.all).collect());
        println!("{call} of {what}, to its end: {whole:?}");
        let first = median(all.iter().map(|heard| heard.first).collect());
        let first = first.as_secs_f64() * 1000.0;
        let figure = format!("{call} of {what}, first message");
        table.most(&figure, first, 100.0, "ms");
        let figure = format!("{call} of {what}, resident memory of the agent");
        table.most(&figure, memory, 4.0, "MiB");
    }
}

pub(crate) async fn directory(table: &mut Table) {
    process::build();
    let mut agent = process::agent(Kind::Xfs, 128 << 10).await;
    let what = "a sparse image of 100 GiB, 100,000 extents, of which a tenth was written again";
    large(table, &mut agent, what, APART, BLOCK).await;
}

pub(crate) async fn thin(table: &mut Table) {
    let (mut agent, group) = pool(Options::default()).await;
    beside_thin_delta(table, &agent, &group).await;
    let what = "a thin volume of 100 GiB, 25,000 chunks, of which a tenth was written again";
    large(table, &mut agent, what, APART_THIN, CHUNK).await;
}

/// 1 GiB that is written, and one chunk of a hundred again.
async fn beside_thin_delta(table: &mut Table, agent: &Agent, group: &str) {
    const SIZE: u64 = 1 << 10;
    let step = u64::try_from(CHUNK).unwrap() * 100;
    let writes = [
        Writes::each(SIZE, 1 << 20, 1 << 20),
        Writes::each(SIZE, step, CHUNK),
    ];
    let changed = u64::try_from(writes[1].offsets.len() * CHUNK).unwrap();
    let taken = Snapshots::take(agent, SIZE, writes).await;
    let [base, target] = [0, 1].map(|number| {
        let key = taken.ids[number].rsplit('/').next().unwrap();
        let volume = format!("{group}/dl-s-{key}");
        let printed = run("lvs", &["--noheadings", "-o", "thin_id", &volume]);
        printed.trim().to_owned()
    });
    let mapped = group.replace('-', "--") + "-pool";
    let (pool, metadata) = (
        format!("{mapped}-tpool"),
        format!("/dev/mapper/{mapped}_tmeta"),
    );
    let message = |what: &str| bare(&["dmsetup", "message", &pool, "0", what]);
    let bare_delta = || {
        let ids = ["--snap1", &base, "--snap2", &target];
        message("reserve_metadata_snap")
            + bare(&[&["thin_delta", "-m"], &ids[..], &[&metadata]].concat())
            + message("release_metadata_snap")
    };
    let mut client = taken.client().await;
    let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
    for pair in 0..TIMES {
        // They take turns at being first.
        if pair % 2 == 0 {
            theirs.push(bare_delta());
        }
        let heard = taken.delta(&mut client).await;
        assert_eq!(heard.bytes, changed);
        ours.push(heard.all);
        if pair % 2 == 1 {
            theirs.push(bare_delta());
        }
    }
    table.ratio(
        "GetMetadataDelta of 1 GiB thin, 1 % written in blocks of 64 KiB, beside reserve, thin_delta and release",
        (median(ours), median(theirs)),
        1.0,
    );
}
