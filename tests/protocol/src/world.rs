//! What works without a request (time, the sweep, the audit), and what others do: users, Nodes, etcd.

use crate::api_server::{Call, Phase, Precondition, Presence};
use crate::rules::{Audit, Deletion, Memory};
use crate::state::{Caller, Code, Node, Progress, Run, Sidecar, State, Verb};
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

    /// The lease holder deletes volumes that nobody will ask for.
    pub(crate) fn audit(&mut self) {
        for node in Node::BOTH {
            let api = &self.state.api;
            let busy =
                *self.state.agents.at(node).runs.of(Verb::Create) != Run::None
                    || api.call(Verb::Create, node).is_some()
                    || self.state.fronts.iter().any(|front| {
                        front.caller == Caller::Waits || front.progress != Progress::Idle
                    });
            let unclaimed = match (api.claim, api.bound) {
                (_, Some(bound)) if bound == node => false,
                (None, _) => true,
                (Some(_), bound) => {
                    bound.is_some() && self.protocol.audit == Audit::ClaimGoneOrBoundElsewhere
                }
            };
            if unclaimed && !busy && !api.is_gone(node) {
                self.step("the audit deletes a volume", Some(node), |_, state| {
                    *state.disks.at_mut(node) = None;
                });
            }
        }
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
