//! What works without a request (time, the sweep, the audit), and what others do: users, Nodes, etcd.

use crate::api_server::{Call, Phase, Precondition, Presence};
use crate::rules::{Audit, Break, Deletion, Memory};
use crate::state::{Audited, Caller, Code, Node, Progress, Run, Sidecar, State, Verb};
use crate::steps::Steps;

impl Steps<'_> {
    /// Calls expire, in whatever order.
    pub(crate) fn time(&mut self) {
        for uid in self.state.in_time() {
            self.step("notAfter passes", None, |_, state| state.expire(uid));
        }
    }

    /// The lease holder deletes calls that nobody will use.
    pub(crate) fn sweep(&mut self) {
        for verb in Verb::BOTH {
            for node in Node::BOTH {
                let Some(call) = self
                    .state
                    .api
                    .call(verb, node)
                    .filter(|call| call.node == node && call.is_expired())
                else {
                    continue;
                };
                if self.may_be_swept(verb, call) {
                    self.step(
                        "the sweep deletes an expired call",
                        Some(node),
                        |_, state| {
                            state.api.delete(
                                verb,
                                node,
                                Precondition::Version(call.uid, call.phase),
                            );
                        },
                    );
                }
            }
        }
    }

    fn may_be_swept(&self, verb: Verb, call: Call) -> bool {
        let api = &self.state.api;
        let settled = api.bound.is_some()
            || api.claim.is_none()
            || self.protocol.goes_elsewhere(api, call.node);
        match (self.protocol.memory, call.phase) {
            (Memory::UntilAnswered, _) | (_, Phase::Empty) => true,
            _ if api.is_gone(call.node) => true,
            (_, Phase::Again | Phase::Taken) => false,
            (Memory::UntilFinal, Phase::Done(_)) => true,
            (Memory::UntilBound, Phase::Done(code)) => {
                verb == Verb::Delete
                    || settled
                    || matches!(code, Code::NoRoom | Code::AlreadyExists)
            }
        }
    }

    /// The lease holder deletes volumes that nobody will ask for: those that are old, whose claim waits for no volume, and
    /// which no PersistentVolume is about, in this order.
    pub(crate) fn audit(&mut self) {
        match self.state.audited {
            Audited::Nothing => {
                for node in Node::BOTH {
                    if self.is_old(node) && self.audit_sees(node, 0) {
                        self.step("the audit looks at a volume", Some(node), |_, state| {
                            state.audited = Audited::Half(node);
                        });
                    }
                }
            }
            Audited::Half(node) => {
                let next = if self.audit_sees(node, 1) {
                    Audited::Unclaimed(node)
                } else {
                    Audited::Nothing
                };
                self.step("the audit looks once more", Some(node), |_, state| {
                    state.audited = next;
                });
            }
            Audited::Unclaimed(node) => {
                self.step("the audit deletes a volume", Some(node), |_, state| {
                    state.audited = Audited::Nothing;
                    if !state.api.is_gone(node) {
                        *state.disks.at_mut(node) = None;
                    }
                });
            }
        }
    }

    /// Whether there is a volume that nobody is busy with: the audit passes over those that were made in the last hour.
    fn is_old(&self, node: Node) -> bool {
        let api = &self.state.api;
        let is_asked_for = self
            .state
            .fronts
            .iter()
            .any(|front| front.caller == Caller::Waits || front.progress != Progress::Idle);
        self.state.disks.at(node).is_some()
            && *self.state.agents.at(node).runs.of(Verb::Create) == Run::None
            && api.call(Verb::Create, node).is_none()
            && !is_asked_for
            && !api.is_gone(node)
    }

    /// Whether the first or second thing that the audit looks at lets it go on.
    fn audit_sees(&self, node: Node, which: usize) -> bool {
        let api = &self.state.api;
        let volumes_first = self.protocol.lacks(Break::VolumesBeforeClaim);
        if (which == 0) == volumes_first {
            return api.bound != Some(node);
        }
        let goes_by_binding = self.protocol.audit == Audit::ClaimGoneOrBoundElsewhere;
        api.claim.is_none() || (goes_by_binding && api.bound.is_some())
    }

    /// What users and administrators do.
    pub(crate) fn users(&mut self) {
        let api = &self.state.api;
        let deletes = match self.protocol.deletion {
            Deletion::Never => false,
            Deletion::AnyTime => true,
            Deletion::WhenBound => api.bound.is_some(),
        };
        if deletes && api.claim.is_some() {
            self.fault("a user deletes the claim", None, |_, state| {
                state.api.claim = None;
            });
        }
        let free =
            api.claim.is_none() && api.bound.is_none() && self.state.sidecar == Sidecar::Idle;
        if free && !self.state.somebody_waits() && self.state.left.recreations > 0 {
            for (what, arguments) in [
                ("a user makes the claim anew", 0),
                ("a user makes the claim anew, with other arguments", 1),
            ] {
                self.fault(what, None, |_, state| {
                    state.left.recreations -= 1;
                    // The new claim has another UID, and its volume another name.
                    state.audited = Audited::Nothing;
                    state.api.claim = Some(arguments);
                });
            }
        }
        if self.state.left.deleted_calls > 0 {
            for (verb, node) in Verb::BOTH
                .into_iter()
                .flat_map(|verb| Node::BOTH.map(|node| (verb, node)))
            {
                if self
                    .state
                    .api
                    .call(verb, node)
                    .is_some_and(|call| call.node == node)
                {
                    self.fault("a user deletes a NodeCall", Some(node), |_, state| {
                        state.left.deleted_calls -= 1;
                        state.api.delete(verb, node, Precondition::Name);
                    });
                }
            }
        }
        self.nodes();
    }

    fn nodes(&mut self) {
        let near = Node::Near;
        if self.state.api.is_gone(near) {
            self.fault("the Node returns", Some(near), |_, state| {
                *state.api.nodes.at_mut(near) = Presence::There;
            });
            if self.state.api.claim.is_none() && self.state.api.bound == Some(near) {
                self.step(
                    "an administrator abandons the Node",
                    Some(near),
                    |_, state| state.api.bound = None,
                );
            }
        } else if self.state.left.vanished_nodes > 0 {
            self.fault("the Node vanishes", Some(near), |_, state| {
                state.left.vanished_nodes -= 1;
                *state.api.nodes.at_mut(near) = Presence::Gone;
            });
        }
    }

    /// etcd is saved, and set back to what was saved. The processes go on with what they know.
    pub(crate) fn set_back(&mut self) {
        if self.state.left.set_backs == 0 {
            return;
        }
        match self.state.snapshot {
            None => self.fault("etcd is saved", None, |_, state| {
                state.snapshot = Some(state.api);
            }),
            Some(saved) => self.fault("etcd is set back", None, |_, state: &mut State| {
                state.left.set_backs -= 1;
                state.api = saved;
                state.snapshot = None;
            }),
        }
    }
}
