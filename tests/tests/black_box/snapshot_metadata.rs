//! Changed blocks (CSI, `SnapshotMetadata`): what is told is applied to a copy of the base, which is the target then.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use drumlin_proto::csi::v1::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    snapshot_metadata_client::SnapshotMetadataClient,
};
use drumlin_tests::{
    agent::{Agent, is_over_lvm},
    does_not_apply,
    requests::{MIB, delete_snapshot, expand, raw, snapshot},
};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{
    group_snapshots::with_reflinks,
    helpers::{bytes_of, mount, ok, refused, unmount, volume},
};

const UNKNOWN: &str = "node-a/default/00000000-0000-5000-8000-00000000000a";
/// The size of the volumes, in mebibytes.
const SIZE: i64 = 64;

fn client(agent: &Agent) -> SnapshotMetadataClient<Channel> {
    SnapshotMetadataClient::new(agent.channel())
}

pub(crate) fn allocated(id: &str) -> GetMetadataAllocatedRequest {
    GetMetadataAllocatedRequest {
        snapshot_id: id.to_owned(),
        ..GetMetadataAllocatedRequest::default()
    }
}

pub(crate) fn delta(base: &str, target: &str) -> GetMetadataDeltaRequest {
    GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        ..GetMetadataDeltaRequest::default()
    }
}

/// What a stream told: the numbers of ranges of its messages, the capacity in bytes, and all ranges.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) messages: Vec<usize>,
    pub(crate) capacity: i64,
    pub(crate) ranges: Vec<BlockMetadata>,
}

impl Told {
    /// Takes a message; style and capacity are the same in all.
    fn hear(&mut self, style: BlockMetadataType, capacity: i64, ranges: &[BlockMetadata]) {
        assert_eq!(style, BlockMetadataType::VariableLength);
        let is_first = self.messages.is_empty();
        assert!(is_first || self.capacity == capacity, "{capacity}");
        self.capacity = capacity;
        self.messages.push(ranges.len());
        for range in ranges {
            let before = self
                .ranges
                .last()
                .map_or(0, |last| last.byte_offset + last.size_bytes);
            assert!(
                range.size_bytes > 0 && range.byte_offset >= before,
                "{ranges:?}"
            );
            assert!(
                range.byte_offset + range.size_bytes <= capacity,
                "{range:?}"
            );
            self.ranges.push(*range);
        }
    }

    fn bytes(&self) -> i64 {
        self.ranges.iter().map(|range| range.size_bytes).sum()
    }
}

/// Hears a stream to its end; `parts` are the style, the capacity and the ranges of a message.
async fn heard<T>(
    mut stream: Streaming<T>,
    parts: impl Fn(&T) -> (BlockMetadataType, i64, &[BlockMetadata]),
) -> Result<Told, Status> {
    let mut told = Told::default();
    while let Some(message) = stream.message().await? {
        let (style, capacity, ranges) = parts(&message);
        told.hear(style, capacity, ranges);
    }
    Ok(told)
}

pub(crate) async fn all(
    agent: &Agent,
    request: GetMetadataAllocatedRequest,
) -> Result<Told, Status> {
    let answer = client(agent).get_metadata_allocated(request).await?;
    heard(answer.into_inner(), |message| {
        let style = message.block_metadata_type();
        (
            style,
            message.volume_capacity_bytes,
            &message.block_metadata,
        )
    })
    .await
}

pub(crate) async fn changes(
    agent: &Agent,
    request: GetMetadataDeltaRequest,
) -> Result<Told, Status> {
    let answer = client(agent).get_metadata_delta(request).await?;
    heard(answer.into_inner(), |message| {
        let style = message.block_metadata_type();
        (
            style,
            message.volume_capacity_bytes,
            &message.block_metadata,
        )
    })
    .await
}

/// Writes to a raw volume, each block with a byte of its own, and takes a snapshot.
async fn written(agent: &Agent, id: &str, name: &str, writes: &[(u64, usize, u8)]) -> String {
    let at = mount(agent, "w", id, &raw()).await;
    let device = File::options().write(true).open(&at.1).unwrap();
    for (offset, length, byte) in writes {
        device.write_all_at(&vec![*byte; *length], *offset).unwrap();
    }
    device.sync_all().unwrap();
    drop(device);
    unmount(agent, id, &at).await;
    let taken = agent.controller().create_snapshot(snapshot(name, id)).await;
    ok(taken).snapshot.unwrap().snapshot_id
}

fn contents(agent: &Agent, id: &str) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE * MIB).unwrap()];
    let file = File::open(bytes_of(agent, id)).unwrap();
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The base with the told ranges of the target.
fn applied(base: &[u8], target: &[u8], told: &Told) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for range in &told.ranges {
        let start = usize::try_from(range.byte_offset).unwrap();
        let end = start + usize::try_from(range.size_bytes).unwrap();
        bytes[start..end].copy_from_slice(&target[start..end]);
    }
    bytes
}

const FIRST: [(u64, usize, u8); 3] = [(0, 4096, 1), (5 << 20, 1 << 20, 2), (40 << 20, 8192, 3)];
const SECOND: [(u64, usize, u8); 3] = [(4096, 4096, 4), (5 << 20, 4096, 5), (63 << 20, 1 << 20, 6)];

/// A volume with two snapshots: `FIRST` was written before the first one, `SECOND` before the second.
async fn two_snapshots(agent: &Agent) -> [String; 2] {
    let id = volume(agent, "v", SIZE, &raw()).await;
    [
        written(agent, &id, "one", &FIRST).await,
        written(agent, &id, "two", &SECOND).await,
    ]
}

async fn agents() -> Vec<Agent> {
    let mut agents = vec![Agent::start().await];
    if !is_over_lvm() {
        agents.push(with_reflinks(1024).await);
    }
    agents
}

#[tokio::test]
async fn the_allocated_ranges_of_a_snapshot_hold_all_that_was_written() {
    for agent in agents().await {
        let [one, two] = two_snapshots(&agent).await;
        for id in [&one, &two] {
            let told = all(&agent, allocated(id)).await.unwrap();
            assert_eq!(told.capacity, SIZE * MIB);
            let bytes = contents(&agent, id);
            let blank = vec![0; bytes.len()];
            assert!(applied(&blank, &bytes, &told) == bytes, "{:?}", told.ranges);
        }
    }
}

#[tokio::test]
async fn the_delta_of_two_snapshots_holds_all_that_was_written_between_them() {
    for agent in agents().await {
        let [one, two] = two_snapshots(&agent).await;
        for (base, target) in [(&one, &two), (&two, &one), (&one, &one)] {
            let told = changes(&agent, delta(base, target)).await.unwrap();
            assert_eq!(told.capacity, SIZE * MIB);
            let (from, to) = (contents(&agent, base), contents(&agent, target));
            assert!(applied(&from, &to, &told) == to, "{:?}", told.ranges);
            // A chunk for each write, at most, is too much.
            let most = if base == target {
                0
            } else {
                (1 << 20) + 3 * (1 << 20)
            };
            assert!(told.bytes() <= most, "{:?}", told.ranges);
            assert!(!told.messages.is_empty(), "the capacity is always told");
        }
    }
}

#[tokio::test]
async fn what_lies_behind_the_end_of_the_base_is_changed() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", SIZE / 2, &raw()).await;
    let taken = agent
        .controller()
        .create_snapshot(snapshot("one", &id))
        .await;
    let one = ok(taken).snapshot.unwrap().snapshot_id;
    let request = expand(&id, SIZE);
    ok(agent.controller().controller_expand_volume(request).await);
    let two = written(&agent, &id, "two", &[(40 << 20, 4096, 7)]).await;
    let told = changes(&agent, delta(&one, &two)).await.unwrap();
    let behind = BlockMetadata {
        byte_offset: SIZE / 2 * MIB,
        size_bytes: SIZE / 2 * MIB,
    };
    assert_eq!(told.ranges, [behind]);
}

#[tokio::test]
async fn ranges_ascend_without_overlap_in_messages_of_the_size_that_was_asked_for() {
    for agent in agents().await {
        let id = volume(&agent, "v", SIZE, &raw()).await;
        let one = written(&agent, &id, "one", &[]).await;
        // Every other mebibyte, so that there is a range for each.
        let writes: Vec<_> = (0..30).map(|number| (number << 21, 4096, 9)).collect();
        let two = written(&agent, &id, "two", &writes).await;
        for max_results in [1, 7, 0, 100_000] {
            let request = GetMetadataDeltaRequest {
                max_results,
                ..delta(&one, &two)
            };
            let changed = changes(&agent, request).await.unwrap();
            assert_eq!(changed.capacity, SIZE * MIB);
            assert_eq!(changed.ranges.len(), 30, "{:?}", changed.ranges);
            let request = GetMetadataAllocatedRequest {
                max_results,
                ..allocated(&two)
            };
            let taken = all(&agent, request).await.unwrap();
            assert!(!taken.ranges.is_empty());
            let most = usize::try_from(max_results).unwrap();
            let is_small = |count: &usize| most == 0 || *count <= most;
            for told in [changed, taken] {
                assert!(told.messages.iter().all(is_small), "{:?}", told.messages);
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_begins_at_an_offset_leaves_out_what_ends_before_it() {
    for agent in agents().await {
        let [one, two] = two_snapshots(&agent).await;
        let whole = changes(&agent, delta(&one, &two)).await.unwrap();
        for start in [1, 4096, (5 << 20) + 1, 63 << 20, SIZE * MIB] {
            let request = GetMetadataDeltaRequest {
                starting_offset: start,
                ..delta(&one, &two)
            };
            let told = changes(&agent, request).await.unwrap();
            let behind = |range: &BlockMetadata| range.byte_offset + range.size_bytes > start;
            assert!(told.ranges.iter().all(behind), "{start}: {:?}", told.ranges);
            // Nothing behind it is missing.
            let covers = |range: &BlockMetadata| {
                let from = range.byte_offset.max(start);
                let end = range.byte_offset + range.size_bytes;
                let mut told = told.ranges.iter();
                end <= start
                    || told.any(|told| {
                        told.byte_offset <= from && told.byte_offset + told.size_bytes >= end
                    })
            };
            assert!(
                whole.ranges.iter().all(covers),
                "{start}: {:?}",
                told.ranges
            );
            let request = GetMetadataAllocatedRequest {
                starting_offset: start,
                ..allocated(&two)
            };
            let told = all(&agent, request).await.unwrap();
            assert!(told.ranges.iter().all(behind), "{start}: {:?}", told.ranges);
        }
    }
}

#[tokio::test]
async fn wrong_arguments_of_both_calls_have_the_codes_of_their_tables() {
    let agent = Agent::start().await;
    let [one, two] = two_snapshots(&agent).await;
    let other = volume(&agent, "other", SIZE, &raw()).await;
    let other = written(&agent, &other, "of another", &[]).await;
    let mut service = client(&agent);
    for (base, target, code) in [
        ("", two.as_str(), Code::InvalidArgument),
        (&one, "", Code::InvalidArgument),
        (UNKNOWN, &two, Code::NotFound),
        (&one, UNKNOWN, Code::NotFound),
        (&other, &two, Code::InvalidArgument),
    ] {
        let answer = service.get_metadata_delta(delta(base, target)).await;
        refused(answer, code);
    }
    for (start, max_results, code) in [
        (-1, 0, Code::OutOfRange),
        (SIZE * MIB + 1, 0, Code::OutOfRange),
        (0, -1, Code::InvalidArgument),
    ] {
        let request = GetMetadataDeltaRequest {
            starting_offset: start,
            max_results,
            ..delta(&one, &two)
        };
        let answer = service.get_metadata_delta(request).await;
        refused(answer, code);
        let request = GetMetadataAllocatedRequest {
            starting_offset: start,
            max_results,
            ..allocated(&two)
        };
        let answer = service.get_metadata_allocated(request).await;
        refused(answer, code);
    }
    for (id, code) in [("", Code::InvalidArgument), (UNKNOWN, Code::NotFound)] {
        let answer = service.get_metadata_allocated(allocated(id)).await;
        refused(answer, code);
    }
}

#[tokio::test]
async fn a_stream_ends_without_an_error_only_after_all_ranges() {
    let agent = Agent::start().await;
    let id = volume(&agent, "v", SIZE, &raw()).await;
    let one = written(&agent, &id, "one", &[]).await;
    let writes: Vec<_> = (0..30).map(|number| (number << 21, 4096, 9)).collect();
    let two = written(&agent, &id, "two", &writes).await;
    // Who goes away early leaves nothing behind: the snapshots can be deleted.
    let request = GetMetadataDeltaRequest {
        max_results: 1,
        ..delta(&one, &two)
    };
    let mut stream = ok(client(&agent).get_metadata_delta(request).await);
    assert!(stream.message().await.unwrap().is_some());
    drop(stream);
    let told = changes(&agent, delta(&one, &two)).await.unwrap();
    assert_eq!(told.ranges.len(), 30);
    if !is_over_lvm() {
        // An image that becomes shorter while it is read is an error, and no end.
        let image = bytes_of(&agent, &two);
        let file = File::options().write(true).open(&image).unwrap();
        file.set_len(1 << 20).unwrap();
        let answer = client(&agent).get_metadata_delta(delta(&one, &two)).await;
        refused(answer, Code::FailedPrecondition);
        fs::remove_file(&image).unwrap();
    }
    for id in [&two, &one] {
        let request = delete_snapshot(id);
        ok(agent.controller().delete_snapshot(request).await);
    }
}

#[tokio::test]
async fn a_delta_that_the_storage_cannot_tell_is_refused() {
    if is_over_lvm() {
        return does_not_apply!("it removes an image");
    }
    // Every back end can tell, except of a snapshot whose bytes are lost.
    let agent = Agent::start().await;
    let [one, two] = two_snapshots(&agent).await;
    fs::remove_file(bytes_of(&agent, &one)).unwrap();
    let answer = client(&agent).get_metadata_delta(delta(&one, &two)).await;
    let message = refused(answer, Code::FailedPrecondition);
    assert!(message.contains(&one), "{message}");
}
