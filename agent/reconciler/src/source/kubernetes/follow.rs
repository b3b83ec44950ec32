//! Follows the objects of an API server: one task hears, another writes their status.

use std::{sync::Arc, time::Duration};

use drumlin_crd::ObjectKey;
use futures::{
    StreamExt, future,
    stream::{BoxStream, SelectAll},
};
use kube::{api::DynamicObject, runtime::watcher};
use tokio::{sync::mpsc, time::MissedTickBehavior};

use super::{
    ingest::Catalog,
    node_assignment::NodeAssignment,
    server::{KINDS, Server},
    status_writer::StatusWriter,
    watch::watch,
};
use crate::{
    Cluster,
    engine::{Engine, chance},
    state::Shared,
};

/// Interval at which requests are retried that the server or the disk has refused.
pub(super) const AGAIN: Duration = Duration::from_secs(10);

type Events = (&'static str, watcher::Event<DynamicObject>);

/// Follows an API server, forever.
pub(crate) async fn follow(engine: Arc<Engine>, server: Server, cluster: &Cluster) {
    tokio::time::sleep(cluster.start_jitter.mul_f64(chance())).await;
    engine.open().await;
    let Some(agent) = engine.known_agent() else {
        return;
    };
    let node = agent.node.clone();
    let shared = &engine.shared;
    let mirror = StatusWriter::new(Arc::clone(shared), server.clone(), node.clone());
    let mirror = Arc::new(mirror);
    let mirroring = Arc::clone(&mirror).run(listen(shared));
    let mut own = watches(&server, &format!("spec.nodeName={node}"));
    let mut to_catalog = listen(shared);
    let following = async {
        let mut catalog = Catalog::new(&engine, &server, &mirror, node.clone());
        let mut again = tokio::time::interval(AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some((kind, event)) = own.next() => catalog.follow(kind, event).await,
                Some(key) = to_catalog.recv() => catalog.look_again(&key).await,
                _ = again.tick() => catalog.try_again().await,
            }
        }
    };
    let claiming = async {
        if cluster.leaves_claims {
            return;
        }
        let claims = NodeAssignment::new(Arc::clone(shared), server.clone(), node.clone());
        let mut unclaimed = watches(&server, "spec.nodeName=");
        let hearing = async {
            while let Some((kind, event)) = unclaimed.next().await {
                claims.follow(kind, event);
            }
        };
        future::join(hearing, claims.run(listen(shared))).await;
    };
    Box::pin(future::join3(mirroring, following, claiming)).await;
}

/// The keys of changed records from now on.
fn listen(shared: &Shared) -> mpsc::UnboundedReceiver<ObjectKey> {
    let (tell, told) = mpsc::unbounded_channel();
    shared.listen(tell);
    told
}

fn watches(server: &Server, fields: &str) -> SelectAll<BoxStream<'static, Events>> {
    let watches = KINDS.iter().map(|(kind, _)| {
        let config = watcher::Config::default().fields(fields);
        let events = watch(server.all(kind), config);
        events.map(|event| (*kind, event)).boxed()
    });
    watches.collect()
}
