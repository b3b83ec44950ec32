//! The agent of a node: takes calls, runs them, writes what came of them.

use crate::api_server::{Call, Phase, Precondition, Written};
use crate::rules::{Break, Property};
use crate::state::{Code, Late, Node, Run, Verb};
use crate::steps::Steps;

impl Steps<'_> {
    /// What the agent of this node may do.
    pub(crate) fn agent(&mut self, node: Node) {
        self.step("the agent's watch catches up", Some(node), |_, state| {
            state.catch_up(node);
        });
        for verb in Verb::BOTH {
            let agent = self.state.agents.at(node);
            match (*agent.runs.of(verb), *agent.view.of(verb)) {
                (Run::None, Some(call)) => self.seen(node, verb, call),
                (Run::None, None) => {}
                (Run::Taken(call), _) => self.taken(node, verb, call),
                (Run::Running(call), _) => self.running(node, verb, call),
                (Run::Ended(call, code), _) => self.ended((node, verb), call, code),
            }
        }
        if self.state.left.agent_restarts > 0 {
            self.fault(
                "the agent is killed, starts and lists",
                Some(node),
                |_, state| {
                    state.left.agent_restarts -= 1;
                    for verb in Verb::BOTH {
                        *state.agents.at_mut(node).runs.of_mut(verb) = Run::None;
                    }
                    state.catch_up(node);
                },
            );
        }
    }

    fn seen(&mut self, node: Node, verb: Verb, call: Call) {
        let what = match (call.phase, verb) {
            (Phase::Done(_), _) => return,
            // Of this agent before it was killed, or written when the answer was lost.
            (Phase::Taken, _) => "the agent writes Taken once more",
            (_, Verb::Create) => "the agent writes Taken: create",
            (_, Verb::Delete) => "the agent writes Taken: delete",
        };
        self.step(what, Some(node), |protocol, state| {
            let precondition = if protocol.lacks(Break::TakenWithoutVersion) {
                Precondition::Name
            } else {
                Precondition::Version(call.uid, call.phase)
            };
            let taken = Call {
                phase: Phase::Taken,
                ..call
            };
            if state
                .api
                .write_status(verb, node, (precondition, Phase::Taken))
                == Written::Yes
            {
                let agent = state.agents.at_mut(node);
                *agent.view.of_mut(verb) = Some(taken);
                *agent.runs.of_mut(verb) = Run::Taken(taken);
            } else {
                state.catch_up(node);
            }
        });
    }

    fn taken(&mut self, node: Node, verb: Verb, call: Call) {
        if self.protocol.is_expired(node, call) {
            self.step(
                "the agent ends what it took too late, without running it",
                Some(node),
                |_, state| {
                    *state.agents.at_mut(node).runs.of_mut(verb) = Run::Ended(call, Code::Aborted);
                },
            );
            return;
        }
        // The agent's own locks: one operation at a time on a volume.
        let busy = Verb::BOTH
            .iter()
            .any(|verb| matches!(self.state.agents.at(node).runs.of(*verb), Run::Running(_)));
        if !busy {
            self.step(begin(verb), Some(node), |protocol, state| {
                *state.agents.at_mut(node).runs.of_mut(verb) = Run::Running(call);
                if call.is_expired() {
                    state.violate(protocol, Property::InTime);
                }
                if state.withdrawn == Some(call.uid) {
                    state.violate(protocol, Property::WithdrawnForGood);
                }
            });
        }
    }

    fn running(&mut self, node: Node, verb: Verb, call: Call) {
        let disk = *self.state.disks.at(node);
        let code = match (verb, disk) {
            (Verb::Create, Some(other)) if other != call.arguments => Code::AlreadyExists,
            _ => Code::Ok,
        };
        self.step(end(verb), Some(node), |_, state| {
            match (verb, code) {
                (Verb::Create, Code::Ok) => *state.disks.at_mut(node) = Some(call.arguments),
                (Verb::Delete, _) => *state.disks.at_mut(node) = None,
                (Verb::Create, _) => {}
            }
            *state.agents.at_mut(node).runs.of_mut(verb) = Run::Ended(call, code);
        });
        if verb == Verb::Create && disk.is_none() && self.state.left.no_room > 0 {
            self.fault(
                "there is no room, nothing is made",
                Some(node),
                |_, state| {
                    state.left.no_room -= 1;
                    *state.agents.at_mut(node).runs.of_mut(verb) = Run::Ended(call, Code::NoRoom);
                },
            );
        }
    }

    fn ended(&mut self, (node, verb): (Node, Verb), call: Call, code: Code) {
        self.step("the agent writes Done", Some(node), |protocol, state| {
            let precondition = if protocol.lacks(Break::DoneByName) {
                Precondition::Name
            } else {
                Precondition::Uid(call.uid)
            };
            let ended = state.api.end((verb, node), precondition, code);
            let is_kept = protocol.lacks(Break::LateCallBelieved)
                || protocol.lacks(Break::LateAttemptBelieved);
            if let (true, Some(Call { uid, .. })) = (is_kept, ended) {
                state.late = Some(Late {
                    verb,
                    node,
                    uid,
                    code,
                });
            }
            *state.agents.at_mut(node).runs.of_mut(verb) = Run::None;
            state.catch_up(node);
        });
    }
}

fn begin(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "the agent begins to create",
        Verb::Delete => "the agent begins to delete",
    }
}

fn end(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "the agent has created",
        Verb::Delete => "the agent has deleted",
    }
}
