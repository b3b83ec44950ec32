//! What the claims of users are bound to, for the groups and snapshots that mean them, and where those belong.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use drumlin_crd::{Candidate, MemberKind, ObjectKey, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    cluster_cache::{Bound, CachedClaim, View},
    work::{Aspect, Job},
};
use crate::record::{Body, Record, State, Verdict, judge};

/// Why an object is given no node where what it is made of is on several.
const APART: &str = "MembersOnOtherNode";

/// Why an object is given no node where nobody knows of one.
const UNSET: &str = "NodeUnset";

/// So long an agent may take to find that an object is its own before that is said. No multiple of the
/// rounds: which of them says it shall not hang on moments.
const HOMELESS: Duration = Duration::from_secs(15);

/// Where an object belongs.
enum ClaimPlacement {
    /// It has a node, or may be about to have one.
    Open,
    /// What it is made of is there.
    On(String),
    /// It is to have none as it is.
    Nowhere(Verdict),
}

impl View {
    /// Looks at everything of a namespace that means claims, or could be given a node.
    pub(super) fn look_at_claims(&mut self, namespace: &str) {
        let kinds = self.objects.iter();
        let keys: Vec<ObjectKey> = kinds
            .flat_map(|(kind, index)| {
                index.of(namespace).map(|(name, _)| ObjectKey {
                    kind: (*kind).to_owned(),
                    namespace: namespace.to_owned(),
                    name: name.clone(),
                })
            })
            .collect();
        for key in keys {
            self.is_due(Aspect::Claims, key);
        }
        self.begin();
    }

    /// What is to be done about an object by the claims that it means, and its id.
    pub(super) fn about_claims(&self, key: &ObjectKey) -> Option<(String, Job)> {
        let seen = self.seen(key)?;
        let record = seen.record.as_ref()?;
        // What says that its node is gone says so until its agent is back, who has to say something else first.
        if seen.is_deleting || seen.is_lost {
            return None;
        }
        let candidates = self.candidates(record);
        let place = self.place(&seen.uid, record, &candidates);
        let candidates = as_many_as_can_be_told(candidates, record.node());
        let told = self.told.of(key, &seen.uid);
        let mut conditions = told.map_or_else(|| seen.said.clone(), ours);
        match &place {
            // From what was said before: a condition keeps its time while it holds.
            ClaimPlacement::Nowhere(verdict) => judge(&mut conditions, verdict, seen.generation),
            _ => conditions.clear(),
        }
        let status = status(&candidates, &conditions, seen.generation);
        let is_known = match told {
            Some(told) => *told == status,
            // Another controller may have led before: what it said stays until it is taken back under our common name.
            None => candidates == seen.candidates && conditions == seen.said,
        };
        let is_news = |candidate: &&Candidate| {
            candidate.volume_handle.is_some() && !seen.candidates.contains(candidate)
        };
        let with_uid = |candidate: &Candidate| {
            let claim = self.claims.get(&key.namespace, &candidate.name);
            (candidate.name.clone(), claim.map(|claim| claim.uid.clone()))
        };
        let claims = candidates.iter().filter(is_news).map(with_uid).collect();
        let node = match place {
            ClaimPlacement::On(node) => Some(node),
            _ => None,
        };
        if is_known && node.is_none() {
            return None;
        }
        let job = Job::Claims {
            status: (!is_known).then_some(status),
            claims,
            node,
        };
        Some((seen.uid.clone(), job))
    }

    /// Looks again at what the server has refused: nothing else may change that would have it looked at.
    pub(super) fn look_again(&mut self) {
        for key in std::mem::take(&mut self.again) {
            self.is_due(Aspect::Claims, key);
        }
        self.begin();
    }

    /// Where an object belongs that names no node.
    fn place(&self, uid: &str, record: &Record, candidates: &[Candidate]) -> ClaimPlacement {
        if record.node().is_some() {
            return ClaimPlacement::Open;
        }
        let mut nodes = self.nodes_of(record, candidates).into_iter();
        match (nodes.next(), nodes.next()) {
            (Some(one), None) => ClaimPlacement::On(one),
            (Some(one), Some(other)) => ClaimPlacement::Nowhere(Verdict {
                state: State::Stalled,
                reason: APART,
                message: format!(
                    "members are on {one} and {other}; all members of a group must be on one node"
                ),
            }),
            _ => match self.homeless.get(uid) {
                Some(since) if since.elapsed() >= HOMELESS => {
                    ClaimPlacement::Nowhere(homeless(record))
                }
                _ => ClaimPlacement::Open,
            },
        }
    }

    /// Looks for objects that name no node, and again at those that should have one by now.
    pub(super) fn look_for_homeless(&mut self) {
        let mut found = HashMap::new();
        for (kind, index) in &self.objects {
            for (namespace, name, seen) in index.all() {
                let is_one = seen.record.as_ref().is_some_and(|one| one.node().is_none());
                if !is_one || seen.is_deleting {
                    continue;
                }
                let since = self.homeless.get(&seen.uid).copied();
                let since = since.unwrap_or_else(Instant::now);
                found.insert(seen.uid.clone(), since);
                if since.elapsed() >= HOMELESS {
                    self.again.insert(ObjectKey {
                        kind: (*kind).to_owned(),
                        namespace: namespace.clone(),
                        name: name.clone(),
                    });
                }
            }
        }
        self.homeless = found;
    }

    /// The claims that an object means, and what is behind them. One that is being deleted is not meant any more.
    pub(super) fn candidates(&self, record: &Record) -> Vec<Candidate> {
        let namespace = record.key().namespace;
        let mut names: Vec<String> = match &record.body {
            Body::Group { spec, .. } => match (&spec.members, &spec.selector) {
                (Some(members), _) => members
                    .iter()
                    .filter(|member| member.kind == MemberKind::PersistentVolumeClaim)
                    .map(|member| member.name.clone())
                    .collect(),
                (None, Some(selector)) => self
                    .claims
                    .of(&namespace)
                    .filter(|(_, claim)| selector.matches(Some(&claim.labels)))
                    .map(|(name, _)| name.clone())
                    .collect(),
                (None, None) => Vec::new(),
            },
            Body::Snapshot { spec, .. } => {
                let claim = spec.source.persistent_volume_claim_name.iter();
                claim.cloned().collect()
            }
            _ => Vec::new(),
        };
        names.sort();
        let found = names
            .into_iter()
            .filter_map(|name| self.candidate(&namespace, name));
        found.collect()
    }

    fn candidate(&self, namespace: &str, name: String) -> Option<Candidate> {
        let claim = self.claims.get(namespace, &name)?;
        if claim.is_deleting {
            return None;
        }
        let handle = match &claim.volume {
            None => None,
            Some(volume) => {
                // Bound to another driver's volume, or to none.
                let volume = self.volumes.get("", volume)?.as_ref()?;
                if !volume.may_be_of(namespace, &name, claim) {
                    return None;
                }
                let is_bound = claim.is_bound && volume.claim_uid.is_some();
                is_bound.then(|| volume.handle.clone())
            }
        };
        Some(Candidate {
            kind: MemberKind::PersistentVolumeClaim.to_string(),
            name,
            node_name: handle
                .as_deref()
                .and_then(names::node_of)
                .map(str::to_owned),
            volume_handle: handle,
        })
    }

    /// The nodes that have what an object is made of.
    fn nodes_of(&self, record: &Record, candidates: &[Candidate]) -> BTreeSet<String> {
        let claimed = candidates
            .iter()
            .filter_map(|candidate| candidate.node_name.clone());
        let mut nodes: BTreeSet<String> = claimed.collect();
        // Where agents look after their own, they do so without claims.
        if self.settings.claims_all || !nodes.is_empty() {
            let sources = record.sources().into_iter();
            let sources =
                sources.filter_map(|source| self.seen(&source)?.node().map(str::to_owned));
            nodes.extend(sources);
            if matches!(&record.body, Body::Group { spec, .. } if spec.selector.is_some())
                && let Some(volumes) = self.objects.get("Volume")
            {
                let namespace = record.key().namespace;
                let meant = volumes.of(&namespace).filter_map(|(_, seen)| {
                    let volume = seen.record.as_ref()?;
                    record
                        .wants(volume)
                        .then(|| volume.node().map(str::to_owned))?
                });
                nodes.extend(meant);
            }
        }
        nodes
    }
}

impl Bound {
    /// Whether no other claim has it. A claim may name any volume, and one that is kept still names its last claim: one of
    /// the same name that is made later is another tenant's.
    fn may_be_of(&self, namespace: &str, name: &str, claim: &CachedClaim) -> bool {
        let is_its_own = |uid: &String| *uid == claim.uid;
        self.namespace == namespace
            && self.claim == name
            && self.claim_uid.as_ref().is_none_or(is_its_own)
    }
}

/// The candidates that an agent has to know of. Where there are too many for a group, those of other nodes, which are no
/// members, are left out, and of what is still too much one more than can be.
fn as_many_as_can_be_told(mut candidates: Vec<Candidate>, node: Option<&str>) -> Vec<Candidate> {
    if candidates.len() <= names::MOST_MEMBERS {
        return candidates;
    }
    if let Some(node) = node {
        candidates.retain(|one| one.node_name.as_deref().is_none_or(|named| named == node));
    }
    candidates.truncate(names::MOST_MEMBERS + 1);
    candidates
}

/// A status with the claims that are meant; not every kind can mean some.
pub(super) fn findings(candidates: &[Candidate]) -> Value {
    if candidates.is_empty() {
        return json!({});
    }
    json!({ "candidates": candidates })
}

fn status(candidates: &[Candidate], conditions: &[Condition], generation: i64) -> Value {
    let mut status = findings(candidates);
    if let (false, Value::Object(map)) = (conditions.is_empty(), &mut status) {
        map.insert("observedGeneration".to_owned(), generation.into());
        map.insert("conditions".to_owned(), json!(conditions));
    }
    status
}

/// What is said of an object that has no node, and that nobody gives one.
fn homeless(record: &Record) -> Verdict {
    let mut sources: Vec<String> = record.sources().iter().map(ToString::to_string).collect();
    if let Body::Snapshot { spec, .. } = &record.body {
        let claim = spec.source.persistent_volume_claim_name.iter();
        sources.extend(claim.map(|name| format!("{} {name}", MemberKind::PersistentVolumeClaim)));
    }
    let is_of_nothing = matches!(&record.body, Body::Volume { spec, .. } if spec.source.is_none());
    let message = if is_of_nothing {
        "spec.nodeName is not set; set it to the node that shall hold the volume".to_owned()
    } else {
        let sources = if sources.is_empty() {
            String::new()
        } else {
            format!(" ({})", sources.join(", "))
        };
        format!(
            "spec.nodeName is not set, and no node has the source{sources}; create the source, or set spec.nodeName"
        )
    };
    Verdict {
        state: State::Reconciling,
        reason: UNSET,
        message,
    }
}

/// The conditions of a status that a controller has said of an object without a node.
pub(super) fn ours(status: &Value) -> Vec<Condition> {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let conditions = conditions.into_iter().flatten();
    let conditions = conditions.filter_map(|one| Condition::deserialize(one).ok());
    let is_ours = |one: &Condition| [APART, UNSET].contains(&one.reason.as_str());
    conditions.filter(is_ours).collect()
}
