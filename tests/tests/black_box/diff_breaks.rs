//! `drumlin diff` over a stream that breaks: it goes on where it was, and never shows an end that is none.

use std::{
    fs::File,
    io::Read,
    os::unix::fs::FileExt,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use drumlin_proto::csi::v1::GetMetadataDeltaRequest;
use drumlin_tests::{
    agent::{Agent, eventually},
    programs::{drumlin, program},
    relay::{Fault, Relay},
    requests::{delete_snapshot, raw, snapshot},
};
use serde_json::Value;
use tonic::Code;

use crate::helpers::{bytes_of, ok, text, volume};

const DELTA: &str = "GetMetadataDelta";
/// Every other block is written: a range for each, more than fit into one frame of a stream.
const RANGES: u64 = 8192;
const BLOCK: u64 = 4096;

/// An agent behind a relay, with two snapshots of a volume.
struct Pair {
    agent: Agent,
    relay: Relay,
    volume: String,
    snapshots: [String; 2],
}

/// A `drumlin diff` that runs, and what it has printed so far.
struct Running {
    child: Child,
    output: ChildStdout,
    printed: Vec<u8>,
}

impl Pair {
    async fn start() -> Self {
        let agent = Agent::start().await;
        let relay = Relay::start(agent.path("relay.sock"), &agent.socket());
        let volume = volume(&agent, "v", 64, &raw()).await;
        let base = take(&agent, "base", &volume).await;
        let image = bytes_of(&agent, &volume);
        let image = File::options().write(true).open(image).unwrap();
        let bytes = vec![7; usize::try_from(BLOCK).unwrap()];
        for number in 0..RANGES {
            image.write_all_at(&bytes, number * 2 * BLOCK).unwrap();
        }
        image.sync_all().unwrap();
        let target = take(&agent, "target", &volume).await;
        Self {
            agent,
            relay,
            volume,
            snapshots: [base, target],
        }
    }

    /// The command, with minutes that last a second.
    fn command(&self) -> Command {
        let mut command = program(drumlin());
        command
            .args(["diff", "dsnap", "-o", "json"])
            .args(&self.snapshots)
            .args(["--state-dir", &text(self.agent.path("state"))])
            .args(["--endpoint", &self.relay.socket().to_string_lossy()])
            .env("DRUMLIN_TIME_LAPSE", "60")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts the command, whose stream stops after its first part, and waits until it has printed that.
    async fn stopped(&self) -> Running {
        self.relay.on(DELTA, "", Fault::Stop);
        let mut child = self.command().spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (printed, output) = tokio::task::spawn_blocking(move || {
            let (mut printed, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
            // The line of a range ends when the next one has come.
            while !String::from_utf8_lossy(&printed).contains("},\n    {") {
                let read = output.read(&mut buffer).unwrap();
                assert_ne!(read, 0, "the command has ended");
                printed.extend_from_slice(&buffer[..read]);
            }
            (printed, output)
        })
        .await
        .unwrap();
        self.relay.pass_all();
        Running {
            child,
            output,
            printed,
        }
    }
}

impl Running {
    /// Waits for its end.
    async fn end(self) -> Output {
        let Self {
            child,
            mut output,
            mut printed,
        } = self;
        tokio::task::spawn_blocking(move || {
            output.read_to_end(&mut printed).unwrap();
            let mut ended = child.wait_with_output().unwrap();
            ended.stdout = printed;
            ended
        })
        .await
        .unwrap()
    }
}

async fn take(agent: &Agent, name: &str, volume: &str) -> String {
    let mut controller = agent.controller();
    let answer = controller.create_snapshot(snapshot(name, volume));
    ok(answer.await).snapshot.unwrap().snapshot_id
}

/// Checks that an output has all ranges, each once.
fn check_whole(output: &[u8]) {
    let shown: Value = serde_json::from_slice(output).unwrap();
    let ranges = shown["ranges"].as_array().unwrap();
    assert_eq!(u64::try_from(ranges.len()).unwrap(), RANGES);
    for (number, range) in (0..).zip(ranges) {
        assert_eq!(range["offset"], number * 2 * BLOCK);
        assert_eq!(range["size"], BLOCK);
    }
    assert_eq!(shown["changedBytes"], RANGES * BLOCK);
}

/// Checks that it failed, and that nobody takes what it printed for all.
fn check_failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stdout.is_empty());
    assert!(serde_json::from_slice::<Value>(&output.stdout).is_err());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn a_stream_that_the_agents_end_breaks_goes_on_at_the_end_of_its_last_range() {
    let mut pair = Pair::start().await;
    let running = pair.stopped().await;
    pair.agent.kill();
    pair.agent.restart().await;
    pair.relay.break_off();
    let output = running.end().await;
    assert!(output.status.success(), "{output:?}");
    check_whole(&output.stdout);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("the connection to the agent broke"), "{told}");
    let starts: Vec<i64> = pair
        .relay
        .requests::<GetMetadataDeltaRequest>(DELTA)
        .iter()
        .map(|request| request.starting_offset)
        .collect();
    let [first, .., last] = starts[..] else {
        panic!("{starts:?}");
    };
    assert!(first == 0 && last > 0, "{starts:?}");
    // It is the end of a range, and not of the last one.
    let end = u64::try_from(last).unwrap();
    assert_eq!(end % (2 * BLOCK), BLOCK, "{starts:?}");
    assert!(end < RANGES * 2 * BLOCK - BLOCK, "{starts:?}");
}

#[tokio::test]
async fn ranges_of_a_snapshot_that_is_taken_again_meanwhile_are_not_mixed_with_the_first_ones() {
    let mut pair = Pair::start().await;
    let running = pair.stopped().await;
    pair.agent.kill();
    pair.agent.restart().await;
    let [_, target] = &pair.snapshots;
    let mut controller = pair.agent.controller();
    ok(controller.delete_snapshot(delete_snapshot(target)).await);
    assert_eq!(take(&pair.agent, "target", &pair.volume).await, *target);
    pair.relay.break_off();
    let refused = check_failed(&running.end().await);
    let wanted = format!("snapshot {target} was deleted and taken again meanwhile");
    assert!(refused.contains(&wanted), "{refused}");
}

#[tokio::test]
async fn an_agent_that_stays_away_is_waited_for_and_then_given_up() {
    let mut pair = Pair::start().await;
    let running = pair.stopped().await;
    pair.agent.kill();
    pair.relay.break_off();
    let refused = check_failed(&running.end().await);
    assert!(
        refused.starts_with("the connection to the agent broke; trying again\n"),
        "{refused}"
    );
    assert!(refused.contains("the output is incomplete"), "{refused}");
}

#[tokio::test]
async fn a_search_that_the_agent_cannot_begin_yet_is_repeated() {
    let pair = Pair::start().await;
    pair.relay.on(DELTA, "", Fault::Refuse(Code::Aborted));
    let child = pair.command().spawn().unwrap();
    let running = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    eventually(|| pair.relay.calls(DELTA), |calls| *calls > 2).await;
    pair.relay.pass_all();
    let output = running.await.unwrap();
    assert!(output.status.success(), "{output:?}");
    check_whole(&output.stdout);
    // It says once what it waits for.
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "refused on the way\n");
}
