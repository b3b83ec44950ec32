//! All that may happen next: the model of the checker.

use crate::api_server::Api;
use crate::checker::{Kind, Model, Step};
use crate::rules::{Action, Break, Property, Protocol};
use crate::state::{
    Agent, Audited, Caller, Front, Node, PerNode, Progress, Run, Sidecar, State, Verb,
};

/// Collects what follows one state.
pub(crate) struct Steps<'a> {
    pub(crate) protocol: &'a Protocol,
    pub(crate) state: &'a State,
    next: &'a mut Vec<Step<Action, State>>,
}

impl Steps<'_> {
    /// A step that the protocol, or time, takes at some time.
    pub(crate) fn step(
        &mut self,
        what: &'static str,
        node: Option<Node>,
        change: impl FnOnce(&Protocol, &mut State),
    ) {
        self.push(
            Action {
                what,
                node,
                kind: Kind::Protocol,
            },
            change,
        );
    }

    /// A step that may never come.
    pub(crate) fn fault(
        &mut self,
        what: &'static str,
        node: Option<Node>,
        change: impl FnOnce(&Protocol, &mut State),
    ) {
        self.push(
            Action {
                what,
                node,
                kind: Kind::Fault,
            },
            change,
        );
    }

    fn push(&mut self, action: Action, change: impl FnOnce(&Protocol, &mut State)) {
        let mut state = *self.state;
        change(self.protocol, &mut state);
        let state = state.canonical();
        if state != *self.state {
            self.next.push(Step {
                action,
                kind: action.kind,
                state,
            });
        }
    }
}

impl State {
    /// The claimed property that this step violates, unless one was violated before.
    pub(crate) fn violate(&mut self, protocol: &Protocol, property: Property) {
        if protocol.claims(property) {
            self.violation.get_or_insert(property);
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        State {
            api: Api::new(),
            snapshot: None,
            sidecar: Sidecar::Idle,
            fronts: [Front::default(); 2],
            agents: PerNode::of(Agent::default(), Agent::default()),
            disks: PerNode::of(None, None),
            left: self.faults,
            withdrawn: None,
            late: None,
            audited: Audited::Nothing,
            violation: None,
        }
    }

    fn steps(&self, state: &State, next: &mut Vec<Step<Action, State>>) {
        let mut steps = Steps {
            protocol: self,
            state,
            next,
        };
        steps.sidecar();
        for index in 0..state.fronts.len() {
            steps.front(index);
        }
        for node in Node::BOTH {
            steps.agent(node);
        }
        if !self.lacks(Break::NoSweep) {
            steps.sweep();
        }
        steps.audit();
        steps.time();
        steps.users();
        steps.set_back();
    }

    fn violated(&self, state: &State) -> Option<&'static str> {
        if let Some(property) = state.violation {
            return Some(property.name());
        }
        let two = Node::BOTH
            .iter()
            .all(|node| state.disks.at(*node).is_some());
        if two && state.api.claim.is_some() && self.claims(Property::OneNode) {
            return Some(Property::OneNode.name());
        }
        let lost = state
            .api
            .claim
            .zip(state.api.bound)
            .is_some_and(|(arguments, node)| *state.disks.at(node) != Some(arguments));
        (lost && self.claims(Property::BoundVolumeExists))
            .then(|| Property::BoundVolumeExists.name())
    }

    /// No call is left, nobody is busy, the caller has a final answer, and no volume is left that nobody knows of.
    fn is_quiet(&self, state: &State) -> bool {
        let idle = state
            .fronts
            .iter()
            .all(|front| front.progress == Progress::Idle && front.caller == Caller::Gone);
        let ended = Node::BOTH.iter().all(|node| {
            Verb::BOTH
                .iter()
                .all(|verb| *state.agents.at(*node).runs.of(*verb) == Run::None)
        });
        let answered = match state.api.claim {
            Some(_) => state.api.bound.is_some(),
            None => state.api.bound.is_none() && state.sidecar == Sidecar::Idle,
        };
        let clean = Node::BOTH.iter().all(|node| {
            state.disks.at(*node).is_none()
                || state.api.bound == Some(*node)
                || state.api.is_gone(*node)
        });
        !state.api.has_calls() && idle && ended && answered && clean
    }
}
