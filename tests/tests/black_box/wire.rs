//! Bytes that are no request, to every method: what cannot be decoded is refused as gRPC says, what can be is checked.

use std::collections::BTreeMap;

use drumlin_proto::csi::v1::ProbeRequest;
use drumlin_tests::{
    agent::Agent,
    requests::{mounted, raw},
    state::State,
};
use tonic::{
    Code, Request, Response, Status, client::Grpc, codegen::http::uri::PathAndQuery,
    transport::Channel,
};

use crate::helpers::{ok, volume};

/// All that csi.v1 has, whether it is served or not.
const METHODS: [&str; 37] = [
    "Identity/GetPluginInfo",
    "Identity/GetPluginCapabilities",
    "Identity/Probe",
    "Controller/CreateVolume",
    "Controller/DeleteVolume",
    "Controller/ControllerPublishVolume",
    "Controller/ControllerUnpublishVolume",
    "Controller/ValidateVolumeCapabilities",
    "Controller/ListVolumes",
    "Controller/GetCapacity",
    "Controller/ControllerGetCapabilities",
    "Controller/CreateSnapshot",
    "Controller/DeleteSnapshot",
    "Controller/ListSnapshots",
    "Controller/GetSnapshot",
    "Controller/ControllerExpandVolume",
    "Controller/ControllerGetVolume",
    "Controller/ControllerModifyVolume",
    "Controller/ControllerListVolumeHealth",
    "Controller/ControllerGetVolumeHealth",
    "Node/NodeStageVolume",
    "Node/NodeUnstageVolume",
    "Node/NodePublishVolume",
    "Node/NodeUnpublishVolume",
    "Node/NodeGetVolumeStats",
    "Node/NodeExpandVolume",
    "Node/NodeGetCapabilities",
    "Node/NodeGetInfo",
    "Node/NodeGetVolumeHealth",
    "Node/NodeGetStorageHealth",
    "GroupController/GroupControllerGetCapabilities",
    "GroupController/CreateVolumeGroupSnapshot",
    "GroupController/DeleteVolumeGroupSnapshot",
    "GroupController/GetVolumeGroupSnapshot",
    "SnapshotMetadata/GetMetadataAllocated",
    "SnapshotMetadata/GetMetadataDelta",
    "Nothing/AtAll",
];

/// How often each method is called.
const ROUNDS: usize = 100;

/// Numbers that follow from a seed, so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// Fields as the wire has them: right and wrong types, lengths that lie, texts that are none, other messages.
    fn message(&mut self, texts: &[&[u8]], depth: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.below(5) {
            let wire_type =
                [0, 2, 2, 2, 2, 1, 5, 3, 4, 6, 7][usize::try_from(self.below(11)).unwrap()];
            bytes.push(u8::try_from(self.below(15) + 1).unwrap() << 3 | wire_type);
            match wire_type {
                0 => bytes.extend([self.byte() | 0x80, self.byte() & 0x7f]),
                1 => bytes.extend((0..8).map(|_| self.byte()).collect::<Vec<_>>()),
                2 => self.field(&mut bytes, texts, depth),
                5 => bytes.extend((0..4).map(|_| self.byte()).collect::<Vec<_>>()),
                _ => {}
            }
        }
        bytes
    }

    fn field(&mut self, bytes: &mut Vec<u8>, texts: &[&[u8]], depth: u8) {
        let inner = if depth > 0 && self.below(2) == 0 {
            self.message(texts, depth - 1)
        } else {
            let index = self.below(u64::try_from(texts.len()).unwrap());
            texts[usize::try_from(index).unwrap()].to_vec()
        };
        let lie = if self.below(20) == 0 {
            self.below(300)
        } else {
            0
        };
        let length = u64::try_from(inner.len()).unwrap() + lie;
        bytes.extend([
            u8::try_from(length & 0x7f).unwrap() | 0x80,
            u8::try_from(length >> 7 & 0x7f).unwrap(),
        ]);
        bytes.extend(inner);
    }
}

async fn send(
    channel: &Channel,
    method: &str,
    bytes: Vec<u8>,
) -> Result<Response<Vec<u8>>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path: PathAndQuery = format!("/csi.v1.{method}").parse().unwrap();
    client.unary(Request::new(bytes), path, codec::Raw).await
}

/// What clients call the other end of a unix socket: kubelet and the sidecars, older Go, C++ and Python, Java.
#[test]
fn whatever_a_client_calls_the_socket_it_is_answered() {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let agent = runtime.block_on(Agent::start());
    let path = agent.socket().to_string_lossy().into_owned();
    let escaped = path.trim_start_matches('/').replace('/', "%2F");
    for authority in ["localhost", &path, &escaped, "/csi/csi.sock"] {
        let mut stream = UnixStream::connect(agent.socket()).unwrap();
        let field = |name: &str, value: &str| {
            let mut bytes = vec![0, u8::try_from(name.len()).unwrap()];
            bytes.extend(name.bytes());
            bytes.push(u8::try_from(value.len()).unwrap());
            bytes.extend(value.bytes());
            bytes
        };
        let fields = [
            field(":method", "POST"),
            field(":scheme", "http"),
            field(":path", "/csi.v1.Identity/Probe"),
            field(":authority", authority),
            field("content-type", "application/grpc"),
            field("te", "trailers"),
        ]
        .concat();
        let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            let mut bytes = vec![
                0,
                0,
                u8::try_from(payload.len()).unwrap(),
                kind,
                flags,
                0,
                0,
                0,
            ];
            bytes.push(stream);
            bytes.extend(payload);
            bytes
        };
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        bytes.extend(frame(1, 4, 1, &fields));
        bytes.extend(frame(0, 1, 1, &[0; 5]));
        stream.write_all(&bytes).unwrap();
        // The kinds of frames that come back for the call: headers, data, headers; 3 would be a refusal.
        let mut kinds = Vec::new();
        while kinds.len() < 3 && !kinds.contains(&3) {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let length = usize::from(head[1]) * 256 + usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).unwrap();
            if head[8] == 1 {
                kinds.push(head[3]);
            }
        }
        assert_eq!(kinds, [1, 0, 1], "{authority}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused() {
    let agent = Agent::start().await;
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let answer = send(
        &channel,
        "Controller/DeleteVolume",
        vec![0x0a, 0x02, 0xff, 0xfe],
    )
    .await;
    // What gRPC prescribes for a message that cannot be parsed.
    assert_eq!(answer.unwrap_err().code(), Code::Internal);
    ok(agent.identity().probe(ProbeRequest {}).await);
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused_and_change_nothing() {
    let agent = Agent::start().await;
    let mounted = volume(&agent, "mounted", 4, &mounted("ext4")).await;
    let raw = volume(&agent, "raw", 4, &raw()).await;
    let staging = agent.scratch.directory("staging/a");
    let texts: [&[u8]; 9] = [
        b"",
        b"\xff\xfe",
        b"x",
        b"/etc/../etc",
        b"a\0b",
        b"\xc3\x28",
        mounted.as_bytes(),
        raw.as_bytes(),
        staging.as_os_str().as_encoded_bytes(),
    ];
    let before = State::of(agent.scratch.path());
    let channel = drumlin_proto::connect(&agent.socket()).unwrap();
    let mut random = Random(0x5eed_0721);
    let mut codes = BTreeMap::new();
    for round in 0..ROUNDS {
        for method in METHODS {
            // Deletion is what these names and ids could really do.
            if method.contains("Delete") && round > 0 {
                continue;
            }
            let bytes = random.message(&texts, 3);
            let answer = send(&channel, method, bytes.clone()).await;
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            *codes.entry(format!("{code:?}")).or_insert(0) += 1;
            let is_fine = match &answer {
                Ok(_) => true,
                // What gRPC prescribes for a message that cannot be parsed.
                Err(status) if code == Code::Internal => status.message().contains("decode"),
                Err(_) => !matches!(code, Code::Unknown | Code::Unavailable | Code::DataLoss),
            };
            assert!(
                is_fine,
                "{method} {bytes:02x?}: {answer:?}\n{}",
                agent.log()
            );
        }
    }
    assert!(!agent.log().contains("panic"), "{}", agent.log());
    ok(agent.identity().probe(ProbeRequest {}).await);
    let after = State::of(agent.scratch.path());
    assert_eq!(
        (&after.mounts, &after.loop_devices),
        (&before.mounts, &before.loop_devices)
    );
    for volume in before.files.keys() {
        assert!(after.files.contains_key(volume), "{volume:?} is gone");
    }
    for code in ["Ok", "Internal", "InvalidArgument", "Unimplemented"] {
        assert!(codes.contains_key(code), "{codes:?}");
    }
}

/// A codec of bytes as they are.
mod codec {
    use bytes::{Buf, BufMut};
    use tonic::{
        Status,
        codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    };

    #[derive(Debug, Default, Clone, Copy)]
    pub(super) struct Raw;

    impl Codec for Raw {
        type Encode = Vec<u8>;
        type Decode = Vec<u8>;
        type Encoder = Self;
        type Decoder = Self;

        fn encoder(&mut self) -> Self {
            *self
        }

        fn decoder(&mut self) -> Self {
            *self
        }
    }

    impl Encoder for Raw {
        type Item = Vec<u8>;
        type Error = Status;

        fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
            buffer.put_slice(&item);
            Ok(())
        }
    }

    impl Decoder for Raw {
        type Item = Vec<u8>;
        type Error = Status;

        fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
            Ok(Some(buffer.copy_to_bytes(buffer.remaining()).into()))
        }
    }
}
