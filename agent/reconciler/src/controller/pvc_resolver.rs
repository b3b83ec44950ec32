//! Resolves `PersistentVolumeClaims` for the groups and snapshots that select them, and the node of objects without one.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use drumlin_crd::{Candidate, MemberKind, ObjectKey, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    findings::{APART, UNSET, findings, ours},
    job::{Aspect, Job},
    view::{Bound, CachedClaim, View},
};
use crate::record::{Body, Of, Record, State, Verdict, judge};

/// How long an agent may take to assign an object to itself before its condition is set. No multiple of the interval of
/// the rounds, so that the round which sets it does not depend on small delays.
const HOMELESS: Duration = Duration::from_secs(15);

/// The node of an object.
enum ClaimPlacement {
    /// It has a node, or may get one soon.
    Open,
    /// Its source is on this node.
    On(String),
    /// It cannot be assigned to a node.
    Nowhere(Verdict),
}

impl View {
    /// Checks all objects of a namespace that select claims, or could be assigned to a node.
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

    /// The job for an object with regard to its claims and its node, with the UID of the object.
    pub(super) fn about_claims(&self, key: &ObjectKey) -> Option<(String, Job)> {
        let seen = self.seen(key)?;
        let record = seen.record.as_ref()?;
        // A condition about a lost node stays until the agent is back and sets another one.
        if seen.is_deleting || seen.is_lost {
            return None;
        }
        let candidates = self.candidates(record);
        let place = self.place(&seen.uid, record, &candidates);
        let candidates = as_many_as_can_be_told(candidates, record.node());
        let told = self.told.of(key, &seen.uid);
        let mut conditions = told.map_or_else(|| seen.said.clone(), ours);
        match &place {
            // Based on the previous conditions: a condition keeps its transition time while its status is unchanged.
            ClaimPlacement::Nowhere(verdict) => judge(&mut conditions, verdict, seen.generation),
            _ => conditions.clear(),
        }
        let status = status(&candidates, &conditions, seen.generation);
        let is_known = match told {
            Some(told) => *told == status,
            // Another controller may have been active before: its conditions stay until they are removed under the
            // common field manager.
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

    /// Retries requests that the server has refused: no other change may trigger a check.
    pub(super) fn look_again(&mut self) {
        for key in std::mem::take(&mut self.again) {
            self.is_due(Aspect::Claims, key);
        }
        self.begin();
    }

    /// The node for an object without one.
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

    /// Finds objects without a node, and checks those again that should have one by now.
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

    /// The claims that an object selects, with their volumes. A claim that is being deleted is not selected any more.
    pub(super) fn candidates(&self, record: &Record) -> Vec<Candidate> {
        let namespace = record.key().namespace;
        let mut names: Vec<String> = match &record.body {
            Body::Group(Of { spec, .. }) => match (&spec.members, &spec.selector) {
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
            Body::Snapshot(Of { spec, .. }) => {
                let claim = spec.source.persistent_volume_claim_name.iter();
                claim.cloned().collect()
            }
            Body::Schedule(Of { spec, .. }) => {
                let claim = spec.target.persistent_volume_claim_name.iter();
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
                // Bound to a volume of another driver, or not bound.
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

    /// The nodes that have the sources of an object.
    fn nodes_of(&self, record: &Record, candidates: &[Candidate]) -> BTreeSet<String> {
        let claimed = candidates
            .iter()
            .filter_map(|candidate| candidate.node_name.clone());
        let mut nodes: BTreeSet<String> = claimed.collect();
        // Agents that assign objects to themselves do so without claims.
        if self.settings.claims_all || !nodes.is_empty() {
            let sources = record.sources().into_iter();
            let sources =
                sources.filter_map(|source| self.seen(&source)?.node().map(str::to_owned));
            nodes.extend(sources);
            if matches!(&record.body, Body::Group(Of { spec, .. }) if spec.selector.is_some())
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
    /// Returns true if the volume is bound to this very claim. A claim may name any volume, and a retained volume still
    /// names its last claim: a later claim of the same name belongs to another tenant.
    fn may_be_of(&self, namespace: &str, name: &str, claim: &CachedClaim) -> bool {
        let is_its_own = |uid: &String| *uid == claim.uid;
        self.namespace == namespace
            && self.claim == name
            && self.claim_uid.as_ref().is_none_or(is_its_own)
    }
}

/// The candidates to write to the status. If there are too many for a group, those of other nodes, which cannot be
/// members, are omitted, and the others are limited to one more than the maximum.
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

fn status(candidates: &[Candidate], conditions: &[Condition], generation: i64) -> Value {
    let mut status = findings(candidates);
    if let (false, Value::Object(map)) = (conditions.is_empty(), &mut status) {
        map.insert("observedGeneration".to_owned(), generation.into());
        map.insert("conditions".to_owned(), json!(conditions));
    }
    status
}

/// The condition of an object without a node.
fn homeless(record: &Record) -> Verdict {
    let mut sources: Vec<String> = record.sources().iter().map(ToString::to_string).collect();
    let claim = match &record.body {
        Body::Snapshot(Of { spec, .. }) => spec.source.persistent_volume_claim_name.as_ref(),
        Body::Schedule(Of { spec, .. }) => spec.target.persistent_volume_claim_name.as_ref(),
        _ => None,
    };
    let claim = claim.map(|name| format!("{} {name}", MemberKind::PersistentVolumeClaim));
    sources.extend(claim);
    let is_of_nothing =
        matches!(&record.body, Body::Volume(Of { spec, .. }) if spec.source.is_none());
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
