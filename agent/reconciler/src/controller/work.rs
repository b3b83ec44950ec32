//! What the controller asks of the server: of several objects at once, of each one thing after the other.

use std::collections::{BTreeSet, HashSet};

use drumlin_crd::{ObjectKey, names};
use futures::{
    FutureExt, StreamExt, future,
    future::BoxFuture,
    stream::{self, FuturesUnordered},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::cluster_cache::View;
use crate::source::kubernetes::server::{FieldManager, Refusal, Server};

/// So many objects are written at once: one that the server is slow about holds up no other.
const AT_ONCE: usize = 16;

/// What is looked at of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Aspect {
    /// Which claims it means, and where it belongs.
    Claims,
    /// Whether its node is there.
    Node,
}

/// The objects that are to be looked at, and those that are written.
#[derive(Default)]
pub(super) struct Work {
    due: BTreeSet<(Aspect, ObjectKey)>,
    /// The objects that are written: none of them is looked at again before that has ended.
    busy: HashSet<ObjectKey>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
}

/// What the server is asked to do with one object.
#[derive(Debug)]
pub(super) enum Job {
    /// It is told which claims it means, where that is new, and then given a node, where it belongs on one.
    Claims {
        status: Option<Value>,
        /// The claims that must be current, each with its id as it is known.
        claims: Vec<(String, Option<String>)>,
        node: Option<String>,
    },
    /// It is told that its node is gone.
    Lost { status: Value, node: String },
    /// It may go: nobody is left to take it down, and somebody says so.
    LetGo { node: String },
}

/// What came of a job.
pub(super) struct Done {
    key: ObjectKey,
    uid: String,
    /// The status that the server has taken.
    told: Option<Value>,
    /// Whether the object is gone, or another one has its name.
    is_gone: bool,
    /// Whether it is to be looked at again, though nothing else may change.
    is_again: bool,
    /// The node that it says is gone.
    lost: Option<String>,
}

impl View {
    /// An object is to be looked at.
    pub(super) fn is_due(&mut self, matter: Aspect, key: ObjectKey) {
        self.work.due.insert((matter, key));
    }

    /// Looks at what is due, as far as what comes of that may be begun.
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

    /// Waits until a job has ended, and begins what waits for that; for ever where there is none.
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
        // What went meanwhile is forgotten already.
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

    /// Waits until nothing is left to be written.
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
                // The claims first: an agent that is given the object looks for them.
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
    /// Writes a status; says whether it did.
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
        // Somebody else's node is seen once it is there.
        self.is_again = matches!(refusal, Refusal::Other(_));
    }

    async fn let_go(&mut self, server: &Server, node: &str) {
        // By what the server's store has now: what a watch says may be behind.
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

/// Whether claims are still those whose volumes they have here. Their watch may be behind that of the object: then this
/// one is of a namespace that was made again, and the claim of the one before.
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
