//! What the API server gives: names that are taken, uids, resource versions, preconditions. A resourceVersion is the phase
//! here: each write changes the phase.

use crate::state::{Code, Node, PerNode, Verb};

/// `status.phase`, for the newest wish to run (`status.observedGeneration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Never written.
    Empty,
    /// Written for an earlier wish.
    Again,
    Taken,
    Done(Code),
}

/// Whether a call may still be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Time {
    Left,
    Over,
}

/// A `NodeCall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) uid: u8,
    pub(crate) node: Node,
    pub(crate) arguments: u8,
    /// Whether notAfter has passed, by the server's clock.
    pub(crate) time: Time,
    pub(crate) phase: Phase,
}

impl Call {
    pub(crate) fn is_expired(self) -> bool {
        self.time == Time::Over
    }
}

/// What a write names of the object that it is meant for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Precondition {
    /// The name only.
    Name,
    Uid(u8),
    /// `metadata.uid` and `metadata.resourceVersion`.
    Version(u8, Phase),
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    /// 409.
    Conflict,
    /// 404.
    NotFound,
}

/// What the server stores, and what is set back with etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Api {
    /// The claim: with these arguments, or not there.
    pub(crate) claim: Option<u8>,
    /// The annotation selected-node.
    pub(crate) selected: Node,
    /// The `PersistentVolume`: of this node's volume.
    pub(crate) bound: Option<Node>,
    /// Which Nodes exist.
    pub(crate) nodes: PerNode<Presence>,
    create: Option<Call>,
    delete: PerNode<Option<Call>>,
}

/// Whether a Node is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Presence {
    There,
    Gone,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self {
            claim: Some(0),
            selected: Node::Near,
            bound: None,
            nodes: PerNode::of(Presence::There, Presence::There),
            create: None,
            delete: PerNode::of(None, None),
        }
    }

    /// A create has one name in the cluster, a delete one for each handle.
    fn slot(&mut self, verb: Verb, node: Node) -> &mut Option<Call> {
        match verb {
            Verb::Create => &mut self.create,
            Verb::Delete => self.delete.at_mut(node),
        }
    }

    pub(crate) fn call(&self, verb: Verb, node: Node) -> Option<Call> {
        match verb {
            Verb::Create => self.create,
            Verb::Delete => *self.delete.at(node),
        }
    }

    pub(crate) fn each_call(&mut self, visit: impl FnMut(&mut Call)) {
        let Self { create, delete, .. } = self;
        let [near, far] = Node::BOTH.map(|node| *delete.at(node));
        let mut calls = [*create, near, far];
        calls.iter_mut().flatten().for_each(visit);
        let [new, near, far] = calls;
        *create = new;
        *delete = PerNode::of(near, far);
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.create.is_some()
            || Node::BOTH
                .iter()
                .any(|node| self.delete.at(*node).is_some())
    }

    pub(crate) fn is_gone(&self, node: Node) -> bool {
        *self.nodes.at(node) == Presence::Gone
    }

    /// The name must be free: whoever calls this has looked, in the same step.
    pub(crate) fn create(&mut self, verb: Verb, call: Call) {
        *self.slot(verb, call.node) = Some(call);
    }

    pub(crate) fn delete(&mut self, verb: Verb, node: Node, precondition: Precondition) -> Written {
        let slot = self.slot(verb, node);
        let written = Self::compare(*slot, precondition);
        if written == Written::Yes {
            *slot = None;
        }
        written
    }

    pub(crate) fn write_status(
        &mut self,
        verb: Verb,
        node: Node,
        write: (Precondition, Phase),
    ) -> Written {
        let slot = self.slot(verb, node);
        let written = Self::compare(*slot, write.0);
        if let (Written::Yes, Some(call)) = (written, slot) {
            call.phase = write.1;
        }
        written
    }

    /// A run has ended: Done, unless the call was asked for once more since. Returns the call that is.
    pub(crate) fn end(
        &mut self,
        (verb, node): (Verb, Node),
        precondition: Precondition,
        code: Code,
    ) -> Option<Call> {
        let slot = self.slot(verb, node);
        match (Self::compare(*slot, precondition), slot) {
            (Written::Yes, Some(call)) if call.phase != Phase::Again => {
                call.phase = Phase::Done(code);
                Some(*call)
            }
            _ => None,
        }
    }

    /// `spec.attempt` grows: a wish to run again.
    pub(crate) fn renew(
        &mut self,
        (verb, node): (Verb, Node),
        precondition: Precondition,
        time: Time,
    ) -> Option<Phase> {
        let slot = self.slot(verb, node);
        let (Written::Yes, Some(call)) = (Self::compare(*slot, precondition), slot) else {
            return None;
        };
        call.time = time;
        if call.phase != Phase::Empty {
            call.phase = Phase::Again;
        }
        Some(call.phase)
    }

    fn compare(call: Option<Call>, precondition: Precondition) -> Written {
        let Some(call) = call else {
            return Written::NotFound;
        };
        let meant = match precondition {
            Precondition::Name => true,
            Precondition::Uid(uid) => call.uid == uid,
            Precondition::Version(uid, phase) => (call.uid, call.phase) == (uid, phase),
        };
        if meant {
            Written::Yes
        } else {
            Written::Conflict
        }
    }
}
