//! The front: answers the CSI calls of the cluster by calls to the agents of its nodes.

use std::{fmt, sync::Arc, time::Duration};

use drumlin_crd::names;
use drumlin_proto::csi::v1;
use drumlin_reconciler::Hooks;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Client, ResourceExt, api::Api};
use prost::Message;
use tokio::time::Instant;
use tonic::Code;

use crate::{
    call_watch::CallWatch,
    calls::{Ask, Calls, Failure},
    method::Method,
    node_call::NodeCall,
    proto_json,
    refusal::Refusal,
    view::ClusterView,
};

/// The settings of a front.
#[derive(Debug, Clone)]
pub struct FrontSettings {
    /// The namespace of the calls and of the agents' pods.
    pub namespace: String,
    /// The fail points of a test build: `front.<member>.created` and `front.<member>.answered`.
    pub hooks: Hooks,
}

/// Answers the CSI calls of a cluster.
pub struct Front {
    pub(crate) client: Client,
    pub(crate) calls: Calls,
    pub(crate) view: Arc<ClusterView>,
    pub(crate) watch: Arc<CallWatch>,
    namespace: String,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Time between the end of waiting for a call and the deadline of the caller, for the answer to arrive.
const MARGIN: Duration = Duration::from_secs(2);

/// The end of waiting for a caller that gives this much time.
pub(crate) fn end_of_waiting(patience: Duration) -> Instant {
    Instant::now() + patience.saturating_sub(MARGIN).max(patience / 2)
}

impl Front {
    /// A front over the server behind `client`.
    pub fn new(client: Client, settings: &FrontSettings) -> Arc<Self> {
        let view = Arc::new(ClusterView::new(client.clone(), &settings.namespace));
        let watch = Arc::new(CallWatch::default());
        let calls = Calls::new(
            client.clone(),
            &settings.namespace,
            Arc::clone(&watch),
            Arc::clone(&view),
            settings.hooks,
        );
        Arc::new(Self {
            client,
            calls,
            view,
            watch,
            namespace: settings.namespace.clone(),
        })
    }

    /// Follows the cluster, forever.
    pub async fn follow(&self) {
        let calls: Api<NodeCall> = Api::namespaced(self.client.clone(), &self.namespace);
        let listed = std::sync::atomic::AtomicBool::new(false);
        let watching = self.watch.follow(calls, || {
            if !listed.swap(true, std::sync::atomic::Ordering::Relaxed) {
                self.view.note_list();
            }
        });
        let viewing = self
            .view
            .follow(|node| self.watch.reservations().reported(node));
        futures::join!(watching, viewing);
    }

    /// Returns true if the front knows the cluster: then it can answer.
    pub fn is_ready(&self) -> bool {
        self.view.is_complete()
    }

    /// Runs a call on a node.
    pub(crate) async fn ask<Q: Message, A: Message + Default>(
        &self,
        (node, method, key): (&str, &'static Method, &str),
        request: &Q,
        deadline: Instant,
    ) -> Result<A, Failure> {
        let bug = || Failure::Answer(Code::Internal, format!("{method:?} is not on the wire"));
        let descriptor = method.descriptor().ok_or_else(bug)?;
        let internal =
            |error: proto_json::ConversionError| Failure::Answer(Code::Internal, error.to_string());
        let json = proto_json::to_json(descriptor.input(), &request.encode_to_vec());
        let ask = Ask {
            node,
            method,
            key,
            request: json.map_err(internal)?,
        };
        let response = self.calls.run(&ask, deadline).await?;
        let encoded = proto_json::from_json(descriptor.output(), &response).map_err(internal)?;
        A::decode(encoded.as_slice())
            .map_err(|error| Failure::Answer(Code::Internal, error.to_string()))
    }

    /// The same for a call about an id: a failure becomes what the sidecar shall do.
    pub(crate) async fn ask_owner<Q: Message, A: Message + Default>(
        &self,
        (node, method, key): (&str, &'static Method, &str),
        request: &Q,
        patience: Duration,
    ) -> Result<A, Refusal> {
        let deadline = end_of_waiting(patience);
        let answer = self.ask((node, method, key), request, deadline).await;
        answer.map_err(|failure| Refusal::of(node, failure))
    }

    /// The claim that a volume is created for, from the server's store.
    pub(crate) async fn claim(
        &self,
        request: &v1::CreateVolumeRequest,
    ) -> Result<Option<PersistentVolumeClaim>, Refusal> {
        let parameter = |key| request.parameters.get(key);
        let (Some(namespace), Some(name)) =
            (parameter(names::CLAIM_NAMESPACE), parameter(names::CLAIM))
        else {
            return Ok(None);
        };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let found = claims.get_opt(name).await;
        found.map_err(|error| {
            Refusal::unavailable(format!("the API server does not answer: {error}"))
        })
    }
}

/// The node that the scheduler has selected for a claim.
pub(crate) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&String> {
    claim
        .annotations()
        .get("volume.kubernetes.io/selected-node")
}
