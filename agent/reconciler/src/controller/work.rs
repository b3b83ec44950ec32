//! The requests of the controller to the server: several objects at once, but one request at a time for each object.

use drumlin_crd::{ObjectKey, names};
use futures::{FutureExt, StreamExt, future, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    job::{Aspect, Done, Job},
    view::View,
};
use crate::source::kubernetes::server::{FieldManager, Refusal, Server};

/// Maximum number of writes at once: a slow request must not delay the others.
const AT_ONCE: usize = 16;

impl View {
    /// Queues an object.
    pub(super) fn is_due(&mut self, matter: Aspect, key: ObjectKey) {
        self.work.due.insert((matter, key));
    }

    /// Checks queued objects, as far as the limit of writes permits.
    pub(super) fn begin(&mut self) {
        while self.work.running.len() < AT_ONCE {
            let mut due = self.work.due.iter();
            let free = due.find(|(_, key)| !self.work.busy.contains(key)).cloned();
            let Some((matter, key)) = free else {
                return;
            };
            self.work.due.remove(&(matter, key.clone()));
            let job = match matter {
                Aspect::Claims => self.about_claims(&key),
                Aspect::Node => self.about_node(&key),
            };
            let Some((uid, job)) = job else { continue };
            self.work.busy.insert(key.clone());
            let doing = job.carry_out(self.server.clone(), key, uid);
            self.work.running.push(doing.boxed());
        }
    }

    /// Waits until a job has ended, and starts the next ones; forever if there is none.
    pub(super) async fn work(&mut self) {
        match self.work.running.next().await {
            Some(done) => self.conclude(done),
            None => future::pending().await,
        }
        self.begin();
    }

    fn conclude(&mut self, done: Done) {
        let Done { key, uid, .. } = done;
        self.work.busy.remove(&key);
        // An object that was deleted meanwhile is already removed.
        let is_there = self.seen(&key).is_some_and(|seen| seen.uid == uid);
        if let Some(status) = done.told.filter(|_| is_there) {
            self.told.remember(&key, &uid, status);
            let missing = done.lost.and_then(|node| self.missing.get_mut(&node));
            if let Some(missing) = missing {
                missing.told.insert(uid);
            }
        }
        if done.is_gone {
            self.told.forget(&key);
        }
        if done.is_again {
            self.again.insert(key);
        }
    }

    /// Waits until no write is in flight.
    #[cfg(test)]
    pub(super) async fn is_done(&mut self) {
        self.begin();
        while !self.work.running.is_empty() {
            self.work().await;
        }
    }
}

impl Job {
    async fn carry_out(self, server: Server, key: ObjectKey, uid: String) -> Done {
        let mut done = Done {
            key,
            uid,
            told: None,
            is_gone: false,
            is_again: false,
            lost: None,
        };
        match self {
            Self::Claims {
                status,
                claims,
                node,
            } => {
                // The claims first: the agent of the assigned node needs them.
                if let Some(status) = status {
                    let may_be_told = are_current(&server, &done.key.namespace, claims).await;
                    if !may_be_told || !done.tell(&server, status).await {
                        done.is_again = true;
                        return done;
                    }
                }
                if let Some(node) = node {
                    done.give(&server, &node).await;
                }
            }
            Self::Lost { status, node } => {
                done.tell(&server, status).await;
                done.lost = Some(node);
            }
            Self::LetGo { node } => done.let_go(&server, &node).await,
        }
        done
    }
}

impl Done {
    /// Writes a status; returns true if it was written.
    async fn tell(&mut self, server: &Server, status: Value) -> bool {
        let by = FieldManager::Controller;
        let written = server.write_status(&self.key, &self.uid, &status, by).await;
        match written {
            Ok(()) => {
                self.told = Some(status);
                return true;
            }
            Err(Refusal::Gone) => self.is_gone = true,
            Err(Refusal::Other(why)) => {
                tracing::warn!(object = %self.key, error = %why, "API server update failed");
            }
        }
        false
    }

    async fn give(&mut self, server: &Server, node: &str) {
        let by = FieldManager::Controller;
        let Err(refusal) = server.claim(&self.key, &self.uid, node, by).await else {
            return;
        };
        tracing::debug!(object = %self.key, error = %refusal, "node assignment failed");
        // A node that another client has assigned is seen by the watch.
        self.is_again = matches!(refusal, Refusal::Other(_));
    }

    async fn let_go(&mut self, server: &Server, node: &str) {
        // By the metadata in the server's store: a watch may be behind.
        let is_abandoned = |metadata: &ObjectMeta| {
            let annotations = metadata.annotations.as_ref();
            let abandoned = annotations.and_then(|all| all.get(names::ABANDON));
            metadata.deletion_timestamp.is_some() && abandoned.is_some_and(|one| one == node)
        };
        let gone = server.let_go_if(&self.key, &self.uid, is_abandoned).await;
        match gone {
            Ok(()) => {
                tracing::warn!(object = %self.key, node, "finalizer removed from object of abandoned node");
            }
            Err(refusal) => {
                tracing::warn!(object = %self.key, error = %refusal, "finalizer of object of abandoned node could not be removed");
            }
        }
    }
}

/// Returns true if the claims are still the same on the server. Their watch may be behind that of the object: then the
/// object may belong to a recreated namespace, and the known claim to the one before.
async fn are_current(
    server: &Server,
    namespace: &str,
    claims: Vec<(String, Option<String>)>,
) -> bool {
    let asked = stream::iter(claims)
        .map(async |(name, known)| {
            let found = server.claim_uid(namespace, &name).await;
            let found = found.inspect_err(|refusal| {
                tracing::warn!(namespace, claim = name, error = %refusal, "claim could not be read");
            });
            found.is_ok_and(|uid| known == Some(uid))
        })
        .buffer_unordered(AT_ONCE);
    asked.all(future::ready).await
}
