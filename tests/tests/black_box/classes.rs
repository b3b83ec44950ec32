//! `drumlin.v1.Classes`: the state of the classes, as it changes.

use std::time::{Duration, Instant};

use drumlin_proto::{
    csi::v1::{GetCapacityRequest, ListVolumesRequest},
    drumlin::v1::{DeviceClass, WatchClassesRequest, WatchClassesResponse},
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, Volumes, is_over_lvm},
    requests::{create, delete, expand, raw, snapshot},
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use crate::helpers::{ok, refused, text, volume};

/// So long nothing comes while nothing changes.
const SILENCE: Duration = Duration::from_secs(3);

/// A stream of states.
pub(crate) struct Watch(Streaming<WatchClassesResponse>);

impl Watch {
    pub(crate) async fn begin(agent: &Agent, interval_seconds: i32) -> Self {
        let request = WatchClassesRequest { interval_seconds };
        Self(ok(agent.classes().watch_classes(request).await))
    }

    /// The next states; none when the agent has ended the stream.
    pub(crate) async fn next(&mut self) -> Option<Vec<DeviceClass>> {
        let next = timeout(PATIENCE, self.0.message()).await;
        let next = next.expect("nothing comes").unwrap();
        next.map(|response| response.classes)
    }

    /// The next state of the only class.
    pub(crate) async fn class(&mut self) -> DeviceClass {
        let [class] = <[DeviceClass; 1]>::try_from(self.next().await.unwrap()).unwrap();
        class
    }

    /// Expects that nothing comes for a while.
    pub(crate) async fn is_silent(&mut self) {
        if let Ok(next) = timeout(SILENCE, self.0.message()).await {
            panic!("{next:?}");
        }
    }
}

/// An agent with one class, on a file system that nobody else writes to, which logs what it reads.
pub(crate) async fn agent() -> Agent {
    let scratch = Scratch::new();
    let config = (!is_over_lvm()).then(|| {
        let path = text(scratch.file_system("only", Kind::Ext4, 512));
        format!("classes: [{{name: default, directory: {{path: {path}}}}}]\n")
    });
    let options = Options {
        config,
        arguments: vec!["--log-level=debug".to_owned()],
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// Repeats a call until the agent has read its classes because of it.
pub(crate) async fn until_read<F: Future<Output = ()>>(agent: &Agent, call: impl Fn() -> F) {
    let known = readings(agent);
    let begun = Instant::now();
    while readings(agent) == known {
        assert!(begun.elapsed() < PATIENCE, "{}", agent.log());
        call().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How often the agent has read its classes.
pub(crate) fn readings(agent: &Agent) -> usize {
    agent.log().matches("classes read").count()
}

#[tokio::test]
async fn the_state_of_a_class_agrees_with_its_capacity_and_its_volumes() {
    let agent = agent().await;
    let small = volume(&agent, "small", 16, &raw()).await;
    volume(&agent, "large", 64, &raw()).await;
    let mut controller = agent.controller();
    ok(controller.create_snapshot(snapshot("s", &small)).await);
    let class = Watch::begin(&agent, 0).await.class().await;

    let capacity = ok(controller.get_capacity(GetCapacityRequest::default()).await);
    assert_eq!(class.available_bytes, capacity.available_capacity);
    assert_eq!(
        Some(class.maximum_volume_bytes),
        capacity.maximum_volume_size
    );
    let list = ok(controller.list_volumes(ListVolumesRequest::default()).await);
    let sizes = list.entries.into_iter();
    let sizes: Vec<i64> = sizes
        .map(|entry| entry.volume.unwrap().capacity_bytes)
        .collect();
    assert_eq!(class.volumes, i64::try_from(sizes.len()).unwrap());
    let promised: i64 = sizes.iter().sum();
    let kind = match (is_over_lvm(), Volumes::asked()) {
        (false, _) => "directory",
        (true, Volumes::Thin) => "thin",
        (true, _) => "thick",
    };
    assert_eq!(class.kind, kind);
    if kind == "thick" {
        // And the exception store of the snapshot.
        let most = promised + 17 * (1 << 20);
        assert!((promised + 1..=most).contains(&class.promised_bytes));
    } else {
        assert_eq!(class.promised_bytes, promised);
    }
    assert_eq!((class.name.as_str(), class.default), ("default", true));
    assert_eq!((class.ready, class.message.as_str()), (true, ""));
    assert!(class.size_bytes > class.available_bytes || kind == "thin");
    assert!((0..50).contains(&class.data_percent), "{class:?}");
    let has_metadata = class.metadata_percent >= 0;
    assert_eq!(has_metadata, kind == "thin", "{class:?}");
}

#[tokio::test]
async fn each_change_is_one_response_and_nothing_is_read_while_nothing_changes() {
    let agent = agent().await;
    let mut watch = Watch::begin(&agent, 1).await;
    let empty = watch.class().await;
    assert_eq!((empty.volumes, empty.promised_bytes), (0, 0));
    let id = volume(&agent, "v", 16, &raw()).await;
    let one = watch.class().await;
    assert_eq!((one.volumes, one.promised_bytes), (1, 16 << 20));
    assert!(one.available_bytes <= empty.available_bytes);
    let before = readings(&agent);
    watch.is_silent().await;
    assert_eq!(readings(&agent), before, "{}", agent.log());

    let mut controller = agent.controller();
    ok(controller.controller_expand_volume(expand(&id, 24)).await);
    assert_eq!(watch.class().await.promised_bytes, 24 << 20);
    // What was there already changes nothing.
    ok(controller.create_volume(create("v", 16, &raw())).await);
    watch.is_silent().await;
    ok(controller.delete_volume(delete(&id)).await);
    let none = watch.class().await;
    assert_eq!((none.volumes, none.promised_bytes), (0, 0));
    watch.is_silent().await;
}

#[tokio::test]
async fn two_responses_are_an_interval_apart_and_the_last_one_has_all() {
    const INTERVAL: Duration = Duration::from_secs(2);
    let agent = agent().await;
    let begun = Instant::now();
    let mut watch = Watch::begin(&agent, 2).await;
    let mut known = watch.class().await.volumes;
    let mut responses = 0;
    for made in [4, 8] {
        for number in known..made {
            volume(&agent, &format!("v{number}"), 4, &raw()).await;
        }
        while known < made {
            known = watch.class().await.volumes;
            responses += 1;
            // The first one was sent later than `begun`.
            let elapsed = begun.elapsed();
            assert!(elapsed >= INTERVAL * responses, "{elapsed:?} {responses}");
        }
    }
    assert_eq!(known, 8);
    watch.is_silent().await;
}

#[tokio::test]
async fn one_reading_serves_all_streams() {
    const STREAMS: usize = 100;
    let agent = agent().await;
    let mut watches = Vec::new();
    let begun = Instant::now();
    for _ in 0..STREAMS {
        let mut watch = Watch::begin(&agent, 1).await;
        assert_eq!(watch.class().await.volumes, 0);
        watches.push(watch);
    }
    let before = readings(&agent);
    // At most one a second.
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(before <= seconds + 1, "{before} in {seconds} s");
    volume(&agent, "v", 16, &raw()).await;
    for watch in &mut watches {
        assert_eq!(watch.class().await.volumes, 1);
    }
    assert_eq!(readings(&agent), before + 1);
}

#[tokio::test]
async fn clients_that_do_not_read_or_are_gone_hold_up_nobody_and_a_stop_ends_all_streams() {
    let mut agent = agent().await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        drop(Watch::begin(&agent, 1).await);
        unread.push(Watch::begin(&agent, 1).await);
    }
    let mut watch = Watch::begin(&agent, 1).await;
    watch.class().await;
    volume(&agent, "v", 16, &raw()).await;
    assert_eq!(watch.class().await.volumes, 1);

    let begun = Instant::now();
    agent.signal(Signal::SIGTERM);
    assert_eq!(watch.next().await, None);
    assert_eq!(agent.wait().await.code(), Some(0));
    assert!(begun.elapsed() < PATIENCE / 4, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_negative_interval_is_refused() {
    let agent = Agent::start().await;
    let request = WatchClassesRequest {
        interval_seconds: -1,
    };
    let answer = agent.classes().watch_classes(request).await;
    let message = refused(
        answer.map(|_| tonic::Response::new(())),
        Code::InvalidArgument,
    );
    assert!(message.starts_with("interval_seconds"), "{message}");
}
