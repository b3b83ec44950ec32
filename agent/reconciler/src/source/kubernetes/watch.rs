//! Watches of an API server, begun again for ever and at a calm pace.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use kube::{
    Resource,
    api::Api,
    runtime::{
        WatchStreamExt,
        watcher::{self, Config, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

/// The pause after a watch that failed.
const PAUSE: Duration = Duration::from_secs(5);

/// What there is, and what becomes of it. One that fails says so, and is begun again after a pause.
pub(crate) fn watch<K>(
    objects: Api<K>,
    config: Config,
) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(objects, config).default_backoff();
    // A pause of its own: the beginning of a list that fails counts as a success to kube's.
    let calm = events.then(async |event| {
        if event.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        event
    });
    calm.boxed()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;
    use crate::source::kubernetes::fake::{Answer, Fake};

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
}
