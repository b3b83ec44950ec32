//! Clients that go wrong, or mean harm: the agent cuts them, answers all others, and keeps nothing of them.

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use bytes::Bytes;
use drumlin_proto::csi::v1::{ListVolumesRequest, ProbeRequest};
use drumlin_tests::{
    agent::{Agent, PATIENCE, eventually},
    requests::raw,
};

use crate::helpers::{ok, volume};

/// What HTTP/2 begins with (RFC 9113, 3.4), and a client's settings.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const LIST: &str = "/csi.v1.Controller/ListVolumes";

/// A frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a gRPC request (RFC 7541, all of it literal).
fn head(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [
        &[0x83, 0x86, 0x04][..],
        &text(path),
        &[0x01],
        &text("localhost"),
        &[0x0f, 0x10],
        &text("application/grpc"),
        &[0x00],
        &text("te"),
        &text("trailers"),
    ]
    .concat()
}

/// A call that is whole.
fn call(stream: u32) -> Vec<u8> {
    let mut bytes = frame(1, 0x4, stream, &head(LIST));
    bytes.extend(frame(0, 0x1, stream, &[0; 5]));
    bytes
}

/// What an agent has of memory of its own, in MiB, and of descriptors. Pages of its code are the kernel's to take back.
fn has(agent: &Agent) -> (u64, usize) {
    let pid = agent.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    let resident: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    (resident / 1024, descriptors)
}

/// Whether the socket had no room for one more connection (`EAGAIN` of a `connect(2)` that does not wait).
fn is_backlog_full(status: &tonic::Status) -> bool {
    status.code() == tonic::Code::Unavailable
        && status
            .message()
            .contains("Resource temporarily unavailable")
}

/// How long half of some probes of new clients take at most.
async fn probed(agent: &Agent) -> Duration {
    let mut times = Vec::new();
    for _ in 0..7 {
        let channel = drumlin_proto::connect(&agent.socket()).unwrap();
        let mut client = drumlin_proto::csi::v1::identity_client::IdentityClient::new(channel);
        let begun = Instant::now();
        // A connection that does not wait is refused while the backlog is full: it is tried again, and that counts.
        loop {
            match client.probe(ProbeRequest {}).await {
                Err(status) if is_backlog_full(&status) && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                answer => {
                    ok(answer);
                    break;
                }
            }
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

/// Asserts that a new client is served as if nobody else were there: half of the probes within 10 ms or, where other tests
/// keep all processors busy, within twice the time of an agent that nobody troubles.
async fn is_well(agent: &Agent, quiet: &Agent) {
    let mut slow = Vec::new();
    for _ in 0..20 {
        let (time, beside) = (probed(agent).await, probed(quiet).await);
        if time <= Duration::from_millis(10).max(2 * beside) {
            slow.clear();
            break;
        }
        slow.push((time, beside));
    }
    assert!(slow.is_empty(), "{slow:?}");
    let ((resident, _), (usual, _)) = (has(agent), has(quiet));
    assert!(resident <= usual + 40, "{resident} MiB, beside {usual}");
}

/// Waits until the agent has no more descriptors than before.
async fn is_left(agent: &Agent, before: usize) {
    eventually(|| has(agent).1, |now| *now <= before).await;
}

fn connect(agent: &Agent) -> UnixStream {
    let stream = UnixStream::connect(agent.socket()).unwrap();
    let patience = Some(Duration::from_mins(1));
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(patience).unwrap();
    stream
}

/// Reads until the other end closes.
fn until_closed(stream: &mut UnixStream) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                let is_open = matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                );
                assert!(!is_open, "it is still open");
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_thousand_connections_that_send_nothing_keep_nobody_out_and_are_closed() {
    let (agent, quiet) = (Agent::start().await, Agent::start().await);
    is_well(&agent, &quiet).await;
    // This one has asked, and is idle for the rest.
    let mut idle = agent.identity();
    ok(idle.probe(ProbeRequest {}).await);
    let (_, before) = has(&agent);
    let mut silent: Vec<UnixStream> = (0..1000).map(|_| connect(&agent)).collect();
    // Some say hello, which asks nothing.
    for stream in silent.iter_mut().step_by(3) {
        let _ = stream.write_all(BEGIN);
    }
    for _ in 0..2 {
        is_well(&agent, &quiet).await;
        let (_, now) = has(&agent);
        assert!(now <= before + 520, "{now} descriptors, before {before}");
    }
    is_left(&agent, before).await;
    tokio::task::spawn_blocking(move || silent.iter_mut().for_each(until_closed))
        .await
        .unwrap();
    let pid = agent.pid();
    ok(idle.probe(ProbeRequest {}).await);
    assert_eq!(pid, agent.pid());
    let log = agent.log();
    assert!(!log.contains("panic"), "{log}");
}

/// Reads frames up to the headers of an answer; settings come before.
fn read_answer(stream: &mut UnixStream) -> io::Result<()> {
    let mut head = [0; 9];
    while head[3] != 1 {
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload)?;
    }
    Ok(())
}

/// Who has a place has 250 ms to ask something. A machine that others use may leave this test no processor for as long: what it
/// did is judged when it was done in time.
#[tokio::test]
async fn who_is_slow_to_ask_is_not_displaced_at_once() {
    let agent = Agent::start().await;
    let (_, before) = has(&agent);
    for _ in 0..50 {
        // Those of the former attempt have their places until the agent has seen that they are gone.
        is_left(&agent, before).await;
        // Who has asked stays, and there is room for all of them.
        let others: Vec<UnixStream> = (0..500)
            .map(|_| {
                let mut stream = connect(&agent);
                stream.write_all(&[BEGIN, &call(1)].concat()).unwrap();
                read_answer(&mut stream).expect("it was closed");
                stream
            })
            .collect();
        let begun = Instant::now();
        let mut slow = connect(&agent);
        let silent: Vec<UnixStream> = (0..100).map(|_| connect(&agent)).collect();
        tokio::time::sleep(Duration::from_millis(30)).await;
        let sent = slow.write_all(&[BEGIN, &call(1)].concat());
        let in_time = begun.elapsed() < Duration::from_millis(150);
        let answered = sent.and_then(|()| read_answer(&mut slow));
        drop((others, silent));
        if in_time {
            answered.expect("it was closed");
            return;
        }
    }
    panic!("this machine never did 100 connections in 150 ms");
}

#[tokio::test]
async fn ten_thousand_connections_that_send_garbage_leave_nothing() {
    let (agent, quiet) = (Agent::start().await, Agent::start().await);
    is_well(&agent, &quiet).await;
    let (_, before) = has(&agent);
    let socket = agent.socket();
    let garbage = tokio::task::spawn_blocking(move || {
        // A linear congruential generator: the same bytes each time.
        let mut seed = 1_u64;
        let mut next = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33).to_le_bytes()[0]
        };
        let mut open = std::collections::VecDeque::new();
        for number in 0..10_000_u32 {
            let noise: Vec<u8> = (0..256).map(|_| next()).collect();
            let bytes = match number % 6 {
                0 => noise,
                1 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
                2 => [BEGIN, &noise].concat(),
                // A head that never ends, and frames that nobody asked for.
                3 => [BEGIN, &frame(1, 0, 1, &noise)].concat(),
                4 => [BEGIN, &frame(noise[0] % 12, noise[1], 1, &noise[2..40])].concat(),
                _ => [
                    BEGIN,
                    &frame(1, 0x4, 1, &head(LIST)),
                    &frame(0, 0x1, 1, &noise),
                ]
                .concat(),
            };
            let mut stream = UnixStream::connect(&socket).unwrap();
            let _ = stream.write_all(&bytes);
            open.push_back(stream);
            if open.len() > 300 {
                open.pop_front();
            }
        }
        open
    });
    while !garbage.is_finished() {
        is_well(&agent, &quiet).await;
    }
    let open = garbage.await.unwrap();
    is_well(&agent, &quiet).await;
    drop(open);
    is_left(&agent, before).await;
    is_well(&agent, &quiet).await;
    let log = agent.log();
    assert!(!log.contains("panic"), "{log}");
}

#[tokio::test]
async fn who_never_reads_is_cut_and_who_floods_is() {
    let (agent, quiet) = (Agent::start().await, Agent::start().await);
    for number in 0..20 {
        volume(&agent, &format!("v{number}"), 4, &raw()).await;
    }
    is_well(&agent, &quiet).await;
    let (_, before) = has(&agent);
    let endless = |bytes: fn(u32) -> Vec<u8>| {
        let mut stream = connect(&agent);
        std::thread::spawn(move || {
            let mut written = stream.write_all(BEGIN);
            let mut number = 1;
            // It blocks when the agent reads no more, and fails when that has closed.
            while written.is_ok() && number < 2_000_000 {
                written = stream.write_all(&bytes(number));
                number += 2;
            }
            written.map_err(|error| error.kind())
        })
    };
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(endless(call));
        // Pings, settings, and calls that are taken back.
        clients.push(endless(|_| frame(6, 0, 0, &[0; 8])));
        clients.push(endless(|_| frame(4, 0, 0, &[0, 3, 0, 0, 0, 9])));
        clients.push(endless(|stream| {
            let mut bytes = frame(1, 0x4, stream, &head(LIST));
            bytes.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
            bytes
        }));
    }
    let begun = Instant::now();
    while clients.iter().any(|client| !client.is_finished()) {
        is_well(&agent, &quiet).await;
        assert!(begun.elapsed() < Duration::from_mins(2), "they go on");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for client in clients {
        let ended = client.join().unwrap();
        assert!(
            ended.is_err_and(|kind| kind != io::ErrorKind::WouldBlock),
            "{ended:?}"
        );
    }
    is_left(&agent, before).await;
    is_well(&agent, &quiet).await;
}

/// An HTTP/2 client of whose calls nothing is whole.
async fn half_sent(
    agent: &Agent,
    parts: usize,
) -> Vec<(h2::client::ResponseFuture, h2::SendStream<Bytes>)> {
    let stream = tokio::net::UnixStream::connect(agent.socket())
        .await
        .unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut halves = Vec::new();
    for number in 0..parts {
        let mut sender = sender.clone().ready().await.unwrap();
        let request = http::Request::post("http://localhost/csi.v1.Controller/ListVolumes")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (answer, mut body) = sender.send_request(request, false).unwrap();
        // Of a message of three bytes, or of as many as there may be.
        let length = if number % 2 == 0 { 3_u32 } else { 4 << 20 };
        let begun = [&[0][..], &length.to_be_bytes(), &[1]].concat();
        body.send_data(Bytes::from(begun), false).unwrap();
        halves.push((answer, body));
    }
    halves
}

fn code(answer: &http::Response<h2::RecvStream>) -> Option<&str> {
    answer.headers().get("grpc-status")?.to_str().ok()
}

#[tokio::test]
async fn requests_that_never_arrive_as_a_whole_are_unavailable_and_others_are_served_beside_them() {
    let (agent, quiet) = (Agent::start().await, Agent::start().await);
    is_well(&agent, &quiet).await;
    let (_, before) = has(&agent);
    let begun = Instant::now();
    let mut halves = Vec::new();
    for _ in 0..8 {
        halves.extend(half_sent(&agent, 100).await);
    }
    for _ in 0..2 {
        is_well(&agent, &quiet).await;
        ok(agent
            .controller()
            .list_volumes(ListVolumesRequest::default())
            .await);
    }
    for (answer, body) in halves {
        let answer = tokio::time::timeout(Duration::from_mins(1), answer).await;
        assert_eq!(code(&answer.unwrap().unwrap()), Some("14"));
        drop(body);
    }
    assert!(begun.elapsed() >= Duration::from_secs(25));
    is_left(&agent, before).await;
    is_well(&agent, &quiet).await;
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_has_come() {
    let (agent, quiet) = (Agent::start().await, Agent::start().await);
    let stream = tokio::net::UnixStream::connect(agent.socket())
        .await
        .unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = || {
        http::Request::post("http://localhost/csi.v1.Controller/ListVolumes")
            .header("content-type", "application/grpc")
    };
    let mut sender = sender.ready().await.unwrap();
    let (answer, mut body) = sender
        .send_request(request().body(()).unwrap(), false)
        .unwrap();
    let length = (4_u32 << 20) + 1;
    let begun = [&[0][..], &length.to_be_bytes()].concat();
    body.send_data(Bytes::from(begun), false).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
    assert_eq!(code(&answer.unwrap().unwrap()), Some("11"));
    // A head, too.
    let long = "x".repeat(20 << 10);
    let request = request().header("x-long", long).body(()).unwrap();
    let mut sender = sender.ready().await.unwrap();
    let (answer, _body) = sender.send_request(request, true).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
    let refused = answer.unwrap().map(|answer| answer.status());
    assert!(
        refused.as_ref().map_or(true, |status| *status
            == http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
        "{refused:?}"
    );
    is_well(&agent, &quiet).await;
}
