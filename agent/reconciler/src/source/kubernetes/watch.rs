//! Watches of an API server, restarted forever, with a rate limit.
//!
//! The initial list comes from the server's cache, not from its store: thousands of watches that start at once must not
//! make it read everything for each. If it can, the server streams the list, object by object; an older server is asked
//! for a list. A cache may be stale: code that does something irreversible reads the object itself first.
//!
//! A watch that ends in order goes on from the version that it has heard of. One that fails begins anew with what there is: a
//! server that was set back to an older state (etcd restored from a backup) takes a watch from a later version, and tells it
//! nothing until it has come there again.

use std::{collections::BTreeMap, fmt::Debug, sync::Mutex, time::Duration};

use futures::{StreamExt, stream, stream::BoxStream};
use kube::{
    Resource,
    api::Api,
    runtime::watcher::{self, Config, Event, ListSemantic, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{engine::chance, state::lock};

/// Minimum pause after a failed watch; the maximum is twice that, because those of many nodes fail at once.
const PAUSE: Duration = Duration::from_secs(5);
/// So many times the pause doubles while a watch goes on failing.
const DOUBLED: u32 = 2;
/// Minimum duration of a watch.
pub(super) const LASTS: Duration = Duration::from_secs(230);
/// Maximum random addition to the duration, so that watches that started together do not all end together.
const LONGER: Duration = Duration::from_mins(1);

/// How often a watch that goes on failing for the same reason is logged.
const REMINDER: Duration = Duration::from_mins(10);

/// Number of failures of all watches of this process, by the plural of their kind.
static FAILED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Number of watches of this process that have failed, each of which was begun anew, by the plural of their kind.
pub fn watch_failures() -> BTreeMap<String, u64> {
    lock(&FAILED).clone()
}

/// Events of a watch, without end.
type Events<K> = BoxStream<'static, Event<K>>;

/// The objects and their changes. A watch that fails is logged, and restarted after a pause.
pub fn watch<K>(objects: Api<K>, mut config: Config) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let lasts = LASTS + LONGER.mul_f64(chance());
    config.timeout = u32::try_from(lasts.as_secs()).ok();
    let mut failures = Failures::of(objects.resource_url());
    let events = stream::unfold(Watched::of(objects, config), async |mut watched| {
        let event = watched.next().await?;
        Some((event, watched))
    });
    let heard = events.filter_map(move |event| {
        let event = failures.heard(event);
        async { event }
    });
    heard.boxed()
}

/// The log of a watch that fails. A kind that a server does not have, or a server that is away for a day, fails every few
/// seconds.
struct Failures {
    /// The path of the resource, such as `/apis/drumlin.dev/v1alpha1/nodecalls`.
    resource: String,
    /// Why it fails, and when that was logged.
    logged: Option<(String, Instant)>,
}

impl Failures {
    fn of(resource: &str) -> Self {
        let (resource, logged) = (resource.to_owned(), None);
        Self { resource, logged }
    }

    /// The event, unless the watch failed.
    fn heard<E>(&mut self, event: watcher::Result<E>) -> Option<E> {
        let resource = &self.resource;
        match event {
            Ok(event) => {
                if self.logged.take().is_some() {
                    tracing::info!(resource, "watch of the API server goes on");
                }
                Some(event)
            }
            Err(error) => {
                let kind = resource.rsplit('/').next().unwrap_or_default();
                *lock(&FAILED).entry(kind.to_owned()).or_default() += 1;
                let why = error.to_string();
                if self.is_news(&why) {
                    tracing::warn!(resource, error = why, "watch of the API server failed");
                    self.logged = Some((why, Instant::now()));
                }
                None
            }
        }
    }

    fn is_news(&self, why: &str) -> bool {
        self.logged
            .as_ref()
            .is_none_or(|(logged, when)| logged != why || when.elapsed() >= REMINDER)
    }
}

/// A watch that begins anew whenever it fails.
struct Watched<K: Resource> {
    objects: Api<K>,
    config: Config,
    /// Whether the server is asked to stream the list.
    is_streamed: bool,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    /// How often it has failed since it told something.
    failed: u32,
}

impl<K> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn of(objects: Api<K>, config: Config) -> Self {
        let mut watched = Self {
            objects,
            config,
            is_streamed: true,
            events: stream::empty().boxed(),
            failed: 0,
        };
        watched.begin();
        watched
    }

    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        let mut event = self.events.next().await?;
        if let Err(watcher::Error::WatchStartFailed(error)) = &event
            && self.is_streamed
            && cannot_stream(error)
        {
            self.is_streamed = false;
            self.config.list_semantic = ListSemantic::Any;
            // A paginated list would be read from the store.
            self.config.page_size = None;
            self.begin();
            event = self.events.next().await?;
        }
        match &event {
            Err(_) => {
                let times = f64::from(1 << self.failed.min(DOUBLED));
                self.failed += 1;
                tokio::time::sleep(PAUSE.mul_f64(times * (1.0 + chance()))).await;
                self.begin();
            }
            // A list that fails has begun, too.
            Ok(Event::Init) => {}
            Ok(_) => self.failed = 0,
        }
        Some(event)
    }

    fn begin(&mut self) {
        let mut config = self.config.clone();
        if self.is_streamed {
            config = config.streaming_lists();
        }
        self.events = watcher(self.objects.clone(), config).boxed();
    }
}

/// Returns true if a server does not support streaming lists: it refuses the request.
fn cannot_stream(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("sendInitialEvents"))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::source::kubernetes::fake_api_server::{Answer, Asked, Fake};

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_refused_is_asked_for_at_a_calm_pace() {
        let fake = Fake::new(Answer::refusal());
        let nodes: Api<Node> = Api::all(fake.client());
        let mut events = watch(nodes, Config::default());
        let following = async { while events.next().await.is_some() {} };
        let minute = Duration::from_mins(1);
        let ended = tokio::time::timeout(minute, following).await;
        assert!(ended.is_err());
        let asked = fake.asked().len();
        assert!((2..=12).contains(&asked), "{asked} requests in a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_repeats_itself_is_logged_once_in_ten_minutes_and_another_at_once() {
        let fails = |why: &str| -> watcher::Result<()> {
            let status = kube::core::Status::failure(why, "Unavailable").boxed();
            Err(watcher::Error::WatchStartFailed(kube::Error::Api(status)))
        };
        let mut failures = Failures::of("/apis/drumlin.dev/v1alpha1/nodecalls");
        let mut logged = Vec::new();
        for second in 0..1200 {
            let why = if second == 700 {
                "away"
            } else {
                "no such kind"
            };
            let before = failures.logged.clone();
            assert!(failures.heard(fails(why)).is_none());
            assert!(watch_failures()["nodecalls"] > second);
            if failures.logged != before {
                logged.push(second);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(logged, [0, 600, 700, 701]);
        assert!(failures.heard(Ok(())).is_some());
        assert!(failures.is_news("no such kind"), "it went on in between");
    }

    /// The first request and its answer, and the following requests.
    async fn requests(answers: fn(&Asked) -> Option<Answer>) -> Vec<String> {
        let fake = Fake::new(Answer::Hangs);
        fake.follow(answers);
        let nodes: Api<Node> = Api::all(fake.client());
        let mut events = watch(nodes, Config::default());
        let following = async { while events.next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_mins(1), following).await;
        let asked = fake.asked().into_iter();
        asked.map(|asked| asked.query).collect()
    }

    /// The answer of a server that does not stream lists to anything but a watch.
    fn without_streams(asked: &Asked) -> Option<Answer> {
        if asked.query.contains("sendInitialEvents") {
            let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            let status = serde_json::json!({"status": "Failure", "code": 422, "reason": "Invalid", "message": why});
            return Some(Answer::Says(422, status));
        }
        let list = serde_json::json!({"metadata": {"resourceVersion": "7"}, "items": []});
        (!asked.query.contains("watch=true")).then_some(Answer::Says(200, list))
    }

    #[tokio::test(start_paused = true)]
    async fn what_there_is_comes_from_the_cache_of_the_server() {
        let streamed = requests(|_| None).await;
        let [first] = &streamed[..] else {
            panic!("{streamed:?}")
        };
        for part in ["watch=true", "sendInitialEvents=true", "resourceVersion=0"] {
            assert!(first.split('&').any(|one| one == part), "{part}: {first}");
        }

        let listed = requests(without_streams).await;
        let [_, list, watch] = &listed[..] else {
            panic!("{listed:?}")
        };
        assert!(
            list.split('&').any(|one| one == "resourceVersion=0"),
            "{list}"
        );
        assert!(!list.contains("limit="), "{list}");
        assert!(watch.ends_with("resourceVersion=7"), "{watch}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_breaks_begins_anew_with_a_list() {
        let asked =
            requests(|asked| Some(without_streams(asked).unwrap_or_else(Answer::refusal))).await;
        assert!(asked.len() > 4, "{asked:?}");
        let of_lists = asked.iter().skip(1).step_by(2);
        for list in of_lists {
            assert!(!list.contains("watch=true"), "{asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watches_that_fail_at_once_are_begun_again_one_after_the_other() {
        let mut begun = std::collections::HashSet::new();
        for _ in 0..8 {
            let fake = Fake::new(Answer::refusal());
            let nodes: Api<Node> = Api::all(fake.client());
            let mut events = watch(nodes, Config::default());
            let start = Instant::now();
            let following = async { while events.next().await.is_some() {} };
            let asked_twice = async {
                let mut asked = 0;
                while asked < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    asked += fake.asked().len();
                }
            };
            futures::future::select(pin!(following), pin!(asked_twice)).await;
            begun.insert(start.elapsed());
        }
        assert!(begun.len() > 4, "{begun:?}");
    }
}
