//! Watches of an API server, restarted forever, with a rate limit.
//!
//! The initial list comes from the server's cache, not from its store: thousands of watches that start at once must not
//! make it read everything for each. If it can, the server streams the list, object by object; an older server is asked
//! for a list. A cache may be stale: code that does something irreversible reads the object itself first.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, stream, stream::BoxStream};
use kube::{
    Resource,
    api::Api,
    runtime::{
        WatchStreamExt,
        watcher::{self, Config, Event, ListSemantic, watcher},
    },
};
use serde::de::DeserializeOwned;

use crate::engine::chance;

/// Minimum pause after a failed watch; the maximum is twice that, because those of many nodes fail at once.
const PAUSE: Duration = Duration::from_secs(5);
/// Minimum duration of a watch.
pub(super) const LASTS: Duration = Duration::from_secs(230);
/// Maximum random addition to the duration, so that watches that started together do not all end together.
const LONGER: Duration = Duration::from_mins(1);

/// Events of a watch, without end.
type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// The objects and their changes. A failed watch returns an error, and is restarted after a pause.
pub fn watch<K>(objects: Api<K>, mut config: Config) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let lasts = LASTS + LONGER.mul_f64(chance());
    config.timeout = u32::try_from(lasts.as_secs()).ok();
    let streamed = begin(objects.clone(), config.clone().streaming_lists());
    config.list_semantic = ListSemantic::Any;
    // A paginated list would be read from the store.
    config.page_size = None;
    let state = (streamed, Some((objects, config)));
    let events = stream::unfold(state, async |(mut events, mut listed)| {
        let mut event = events.next().await?;
        if let Err(watcher::Error::WatchStartFailed(error)) = &event
            && cannot_stream(error)
            && let Some((objects, config)) = listed.take()
        {
            events = begin(objects, config);
            event = events.next().await?;
        }
        // A backoff of our own: kube resets its own when a list that fails has begun.
        if event.is_err() {
            tokio::time::sleep(PAUSE.mul_f64(1.0 + chance())).await;
        }
        Some((event, (events, listed)))
    });
    events.boxed()
}

fn begin<K>(objects: Api<K>, config: Config) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(objects, config).default_backoff().boxed()
}

/// Returns true if a server does not support streaming lists: it refuses the request.
fn cannot_stream(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("sendInitialEvents"))
}

#[cfg(test)]
mod tests {
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

    #[tokio::test(start_paused = true)]
    async fn what_there_is_comes_from_the_cache_of_the_server() {
        let streamed = requests(|_| None).await;
        let [first] = &streamed[..] else {
            panic!("{streamed:?}")
        };
        for part in ["watch=true", "sendInitialEvents=true", "resourceVersion=0"] {
            assert!(first.split('&').any(|one| one == part), "{part}: {first}");
        }

        let listed = requests(|asked| {
            if asked.query.contains("sendInitialEvents") {
                let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                let status = serde_json::json!({"status": "Failure", "code": 422, "reason": "Invalid", "message": why});
                return Some(Answer::Says(422, status));
            }
            let list = serde_json::json!({"metadata": {"resourceVersion": "7"}, "items": []});
            (!asked.query.contains("watch=true")).then_some(Answer::Says(200, list))
        })
        .await;
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
    async fn watches_that_fail_at_once_are_begun_again_one_after_the_other() {
        let mut begun = std::collections::HashSet::new();
        for _ in 0..8 {
            let fake = Fake::new(Answer::refusal());
            let nodes: Api<Node> = Api::all(fake.client());
            let mut events = watch(nodes, Config::default());
            let start = tokio::time::Instant::now();
            while events.next().await.is_some_and(|event| event.is_ok()) {}
            begun.insert(start.elapsed());
        }
        assert!(begun.len() > 4, "{begun:?}");
    }
}
