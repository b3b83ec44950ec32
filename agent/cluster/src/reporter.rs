//! The agent's side of [`NodeStorage`]: reports the device classes of its node.

use std::{fmt, time::Duration};

use drumlin_proto::{
    csi::v1::{GetPluginInfoRequest, identity_client::IdentityClient},
    drumlin::v1::{self, classes_client::ClassesClient},
};
use drumlin_reconciler::api_server;
use futures::StreamExt;
use kube::{
    Client,
    api::{Api, Patch, PatchParams},
    runtime::watcher::{Config, Event},
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};
use tonic::transport::Channel;

use crate::{
    node_call::AGENT,
    node_storage::{Labels, NodeStorage, StorageClassState},
};

/// Pause after the API server or the agent did not answer.
const PAUSE: Duration = Duration::from_secs(5);
/// Pause after the agent had no answer yet; it is on this host.
const SHORT_PAUSE: Duration = Duration::from_millis(500);
/// The message of a class in which nothing new is created.
const RETIRED: &str = "retired: not configured for this node any more; its volumes can be used";
/// Maximum number of characters of a message.
const MESSAGE: usize = 1000;

/// Reports the device classes of a node.
pub struct Reporter {
    storages: Api<NodeStorage>,
    node: String,
    channel: Channel,
    /// The labels that the controller has written.
    labels: watch::Sender<Option<Labels>>,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Reporter {
    /// Reports the classes of the agent behind `channel` as those of `node`, and sends the labels of the Node to `labels`.
    pub fn new(
        client: Client,
        node: &str,
        channel: Channel,
        labels: watch::Sender<Option<Labels>>,
    ) -> Self {
        Self {
            storages: Api::all(client),
            node: node.to_owned(),
            channel,
            labels,
        }
    }

    /// Reports, forever: when the object of the node appears, and whenever the classes change.
    pub async fn run(self) {
        let own = Config::default().fields(&format!("metadata.name={}", self.node));
        let mut objects = api_server::watch(self.storages.clone(), own);
        let (tell, mut told) = watch::channel(None::<Vec<StorageClassState>>);
        let following = self.follow_classes(tell);
        let reporting = async {
            // The classes that the object has, as far as known; none while it does not exist.
            let mut written: Option<Vec<StorageClassState>> = None;
            let mut exists = false;
            loop {
                tokio::select! {
                    Some(event) = objects.next() => match event {
                        Event::Apply(object) | Event::InitApply(object) => {
                            exists = true;
                            written = object.reported().map(<[_]>::to_vec);
                            self.hear(object);
                        }
                        Event::Delete(_) => exists = false,
                        Event::Init | Event::InitDone => {}
                    },
                    changed = told.changed() => if changed.is_err() { return },
                }
                let now = told.borrow_and_update().clone();
                let Some(now) = now.filter(|now| exists && written.as_ref() != Some(now)) else {
                    continue;
                };
                if self.write(&now).await {
                    written = Some(now);
                } else {
                    sleep(PAUSE).await;
                    told.mark_changed();
                }
            }
        };
        futures::join!(following, reporting);
    }

    /// Sends the labels of the Node, if they are known and others than before.
    fn hear(&self, object: NodeStorage) {
        let Some(labels) = object.status.and_then(|status| status.node_labels) else {
            return;
        };
        self.labels.send_if_modified(|known| {
            let is_news = known.as_ref() != Some(&labels);
            *known = Some(labels);
            is_news
        });
    }

    /// Follows the classes of the agent, forever.
    async fn follow_classes(&self, tell: watch::Sender<Option<Vec<StorageClassState>>>) {
        loop {
            let mut client = ClassesClient::new(self.channel.clone());
            let request = v1::WatchClassesRequest::default();
            match client.watch_classes(request).await {
                Ok(stream) => {
                    let mut stream = stream.into_inner();
                    while let Ok(Some(classes)) = stream.message().await {
                        let classes = classes.classes.into_iter().map(state).collect();
                        tell.send_replace(Some(classes));
                    }
                    sleep(PAUSE).await;
                }
                // It does not know its classes yet.
                Err(_) => sleep(SHORT_PAUSE).await,
            }
        }
    }

    /// Writes the status; returns false if the server did not take it.
    async fn write(&self, classes: &[StorageClassState]) -> bool {
        let body = json!({"status": {
            "agentVersion": self.version().await,
            "classes": classes,
        }});
        let how = PatchParams {
            field_manager: Some(AGENT.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(&body);
        match self.storages.patch_status(&self.node, &how, &patch).await {
            Ok(_) => true,
            // The watch tells when it is there.
            Err(kube::Error::Api(status)) if status.code == 404 => true,
            Err(error) => {
                tracing::warn!(node = self.node, error = %error, "storage of the node could not be reported");
                false
            }
        }
    }

    async fn version(&self) -> String {
        let mut client = IdentityClient::new(self.channel.clone());
        let info = client.get_plugin_info(GetPluginInfoRequest {}).await;
        info.map(|info| info.into_inner().vendor_version)
            .unwrap_or_default()
    }
}

/// A class as an object has it: percentages in steps of five, for each step is a write.
fn state(class: v1::DeviceClass) -> StorageClassState {
    let percent = |exact: i32| (exact >= 0).then_some(exact / 5 * 5);
    let message = if !class.retired {
        class.message
    } else if class.message.is_empty() {
        RETIRED.to_owned()
    } else {
        format!("{RETIRED}; {}", class.message)
    };
    StorageClassState {
        name: class.name,
        default: class.default,
        kind: class.kind,
        size: class.size_bytes,
        promised: class.promised_bytes,
        available: class.available_bytes,
        maximum_volume: class.maximum_volume_bytes,
        data_percent: percent(class.data_percent),
        metadata_percent: percent(class.metadata_percent),
        volumes: class.volumes,
        ready: class.ready && !class.retired,
        message: message.chars().take(MESSAGE).collect(),
    }
}
