//! A front: creates or joins calls, withdraws, answers, deletes.

use crate::api_server::{Call, Phase, Precondition, Time, Written};
use crate::rules::{Break, Memory, Property, Protocol};
use crate::sidecar::Answer;
use crate::state::{Caller, Code, FRESH, Front, Late, Node, Progress, Request, Run, State, Verb};
use crate::steps::Steps;

/// A front with a request, and where its call is.
#[derive(Clone, Copy)]
struct Turn {
    index: usize,
    request: Request,
    node: Node,
}

impl Steps<'_> {
    /// What this front may do.
    pub(crate) fn front(&mut self, index: usize) {
        let front = *self.state.front(index);
        let Some(request) = front.request else { return };
        let turn = |node| Turn {
            index,
            request,
            node,
        };
        match front.progress {
            Progress::Idle => {}
            Progress::Create(chosen) => self.create(turn(Node::Near), chosen),
            Progress::Replace { uid, node, phase } => self.replace(turn(node), uid, phase),
            Progress::Renew { uid, node, phase } => self.renew(turn(node), uid, phase),
            Progress::Wait { uid, node, seen } => self.wait(turn(node), uid, seen),
            Progress::Answered { uid, node, code } => self.clean_up(turn(node), uid, code),
        }
        self.step(
            "a front's deadline passes, or it is killed",
            None,
            |_, state| *state.front_mut(index) = Front::default(),
        );
        if front.caller == Caller::Waits && self.state.left.paused_fronts > 0 {
            self.fault(
                "a front is paused: its caller has left when it goes on",
                None,
                |_, state| {
                    state.left.paused_fronts -= 1;
                    state.front_mut(index).caller = Caller::Gone;
                },
            );
        }
    }

    /// POST; when the name is taken, GET.
    fn create(&mut self, turn: Turn, chosen: Option<Node>) {
        let Turn { index, request, .. } = turn;
        let wanted = request.node.or(chosen);
        let existing = self
            .state
            .api
            .call(request.verb, wanted.unwrap_or(Node::Near));
        if let Some(call) = existing {
            self.name_is_taken(
                Turn {
                    node: call.node,
                    ..turn
                },
                call,
            );
            return;
        }
        for node in Node::BOTH
            .into_iter()
            .filter(|node| wanted.is_none_or(|wanted| wanted == *node))
        {
            if self.state.api.is_gone(node) {
                self.node_is_gone(Turn { node, ..turn });
                continue;
            }
            self.step(post(request.verb), Some(node), |protocol, state| {
                let call = Call {
                    uid: FRESH,
                    node,
                    arguments: request.arguments,
                    time: not_after(protocol),
                    phase: Phase::Empty,
                };
                state.api.create(request.verb, call);
                state.front_mut(index).progress = Progress::Wait {
                    uid: FRESH,
                    node,
                    seen: Phase::Empty,
                };
            });
        }
    }

    fn name_is_taken(&mut self, turn: Turn, call: Call) {
        let Turn {
            index,
            request,
            node,
        } = turn;
        let fits =
            call.arguments == request.arguments && request.node.is_none_or(|wanted| wanted == node);
        let memory = self.protocol.memory;
        let wait = Progress::Wait {
            uid: call.uid,
            node,
            seen: call.phase,
        };
        let replace = |phase| Progress::Replace {
            uid: call.uid,
            node,
            phase,
        };
        let progress = if fits || self.protocol.lacks(Break::JoinedWhateverItAsks) {
            match (call.phase, memory) {
                (Phase::Done(_), _) if self.protocol.lacks(Break::AnswersReused) => wait,
                (Phase::Done(_), Memory::UntilAnswered) => replace(None),
                (phase @ Phase::Done(_), _) => Progress::Renew {
                    uid: call.uid,
                    node,
                    phase,
                },
                _ => wait,
            }
        } else {
            let same_node = request.node.is_none_or(|wanted| wanted == node);
            match (call.phase, memory) {
                _ if self.state.api.is_gone(node) => replace(None),
                (Phase::Empty, _) => replace(Some(Phase::Empty)),
                (Phase::Done(_), Memory::UntilAnswered) => replace(None),
                (Phase::Done(Code::NoRoom | Code::AlreadyExists), _)
                | (Phase::Done(Code::Ok), Memory::UntilFinal) => replace(Some(call.phase)),
                (Phase::Done(_), Memory::UntilBound)
                    if same_node || self.protocol.goes_elsewhere(&self.state.api, node) =>
                {
                    replace(Some(call.phase))
                }
                // It runs, or something of it may exist, for other arguments or elsewhere: ABORTED.
                (Phase::Done(_) | Phase::Taken | Phase::Again, _) => return,
            }
        };
        self.step(
            "a front finds that the name is taken",
            Some(node),
            |_, state| state.front_mut(index).progress = progress,
        );
    }

    fn replace(&mut self, turn: Turn, uid: u8, phase: Option<Phase>) {
        let Turn {
            index,
            request,
            node,
        } = turn;
        self.step(
            "a front deletes a call that is in the way",
            Some(node),
            |protocol, state| {
                let precondition = match phase {
                    _ if protocol.lacks(Break::DeletionByName) => Precondition::Name,
                    _ if protocol.lacks(Break::DeletionByUid) => Precondition::Uid(uid),
                    Some(phase) => Precondition::Version(uid, phase),
                    None => Precondition::Uid(uid),
                };
                state.api.delete(request.verb, node, precondition);
                // Where it was asked for anything, it asks the same node again.
                state.front_mut(index).progress = Progress::Create(request.node.or(Some(node)));
            },
        );
    }

    fn renew(&mut self, turn: Turn, uid: u8, phase: Phase) {
        let Turn {
            index,
            request,
            node,
        } = turn;
        self.step(
            "a front asks for a call once more",
            Some(node),
            |protocol, state| {
                let renewed = state.api.renew(
                    (request.verb, node),
                    Precondition::Version(uid, phase),
                    not_after(protocol),
                );
                state.front_mut(index).progress = match renewed {
                    Some(seen) => Progress::Wait { uid, node, seen },
                    None => Progress::Create(Some(node)),
                };
            },
        );
    }

    fn wait(&mut self, turn: Turn, uid: u8, seen: Phase) {
        let Turn {
            index,
            request,
            node,
        } = turn;
        if request.verb == Verb::Create && self.state.api.is_gone(node) {
            self.node_is_gone(turn);
        }
        if let Phase::Done(code) = seen {
            let progress = Progress::Answered { uid, node, code };
            self.step("a front answers", Some(node), |protocol, state| {
                state.answer(protocol, (index, node), Answer::Of(code));
                state.front_mut(index).progress = progress;
            });
            self.fault(
                "a front answers, and the answer is lost",
                Some(node),
                |_, state| {
                    *state.front_mut(index) = Front {
                        caller: Caller::Gone,
                        progress,
                        ..*state.front(index)
                    };
                },
            );
            return;
        }
        match self
            .state
            .api
            .call(request.verb, node)
            .filter(|call| call.uid == uid)
        {
            Some(call) => self.step("a front's watch catches up", Some(node), |_, state| {
                state.front_mut(index).progress = Progress::Wait {
                    uid,
                    node,
                    seen: call.phase,
                };
            }),
            None => self.step(
                "a front sees that its call is gone",
                Some(node),
                |protocol, state| {
                    if protocol.lacks(Break::AnswerFromCache) {
                        state.answer(protocol, (index, node), Answer::Of(Code::Ok));
                    } else {
                        state.front_mut(index).progress = Progress::Create(Some(node));
                    }
                },
            ),
        }
        if let Some(late) = self.believed(turn, uid) {
            self.step(
                "a front's watch shows an answer that is late",
                Some(node),
                |_, state| {
                    state.front_mut(index).progress = Progress::Wait {
                        uid,
                        node,
                        seen: Phase::Done(late.code),
                    };
                },
            );
        }
        if request.verb == Verb::Create
            && (seen == Phase::Empty || self.protocol.lacks(Break::WithdrawalAfterTaken))
        {
            self.withdraw(turn, uid, seen);
        }
    }

    /// The answer that was written before the call `uid` was created or asked for once more, where a front believes it.
    fn believed(&self, turn: Turn, uid: u8) -> Option<Late> {
        let Turn { request, node, .. } = turn;
        self.state.late.filter(|late| {
            let is_of_name =
                late.verb == request.verb && (late.verb == Verb::Create || late.node == node);
            let rule = if late.uid == uid {
                Break::LateAttemptBelieved
            } else {
                Break::LateCallBelieved
            };
            is_of_name && self.protocol.lacks(rule)
        })
    }

    fn withdraw(&mut self, turn: Turn, uid: u8, seen: Phase) {
        let Turn {
            index,
            request,
            node,
        } = turn;
        let withdraw = move |protocol: &Protocol, state: &mut State| {
            let precondition = match protocol.broken {
                Some(Break::WithdrawalWithoutVersion | Break::WithdrawalAfterTaken) => {
                    Precondition::Uid(uid)
                }
                _ => Precondition::Version(uid, seen),
            };
            match state.api.delete(request.verb, node, precondition) {
                Written::Yes => {
                    state.withdrawn = Some(uid);
                    let runs = Node::BOTH.iter().any(|at| {
                        let run = *state.agents.at(*at).runs.of(request.verb);
                        run != Run::None && run.call().is_some_and(|call| call.uid == uid)
                    });
                    if runs {
                        state.violate(protocol, Property::WithdrawnForGood);
                    }
                    true
                }
                // Nor is "not found" a success: what was deleted may have been Taken.
                Written::NotFound | Written::Conflict => false,
            }
        };
        self.step(
            "a front withdraws its call",
            Some(node),
            move |protocol, state| {
                if withdraw(protocol, state) {
                    state.answer(protocol, (index, node), Answer::Withdrawn);
                }
            },
        );
        self.fault(
            "a front withdraws its call, and its answer is lost",
            Some(node),
            move |protocol, state| {
                if withdraw(protocol, state) {
                    *state.front_mut(index) = Front::default();
                }
            },
        );
    }

    fn node_is_gone(&mut self, turn: Turn) {
        self.step(
            "a front answers that the Node is gone",
            Some(turn.node),
            move |protocol, state| {
                state.answer(protocol, (turn.index, turn.node), Answer::NodeGone);
            },
        );
    }

    fn clean_up(&mut self, turn: Turn, uid: u8, code: Code) {
        let Turn {
            index,
            request,
            node,
        } = turn;
        let bound = self.state.api.bound == Some(node) || self.state.api.claim.is_none();
        let forget = match (self.protocol.memory, request.verb, code) {
            (Memory::UntilAnswered, ..) => true,
            (_, _, Code::Aborted) => false,
            (Memory::UntilBound, Verb::Create, Code::Ok) => bound,
            _ => true,
        };
        self.step(
            "a front cleans up after its answer",
            Some(node),
            |protocol, state| {
                let precondition = match protocol.memory {
                    _ if protocol.lacks(Break::DeletionByName) => Precondition::Name,
                    _ if protocol.lacks(Break::DeletionByUid) => Precondition::Uid(uid),
                    Memory::UntilAnswered => Precondition::Uid(uid),
                    Memory::UntilFinal | Memory::UntilBound => {
                        Precondition::Version(uid, Phase::Done(code))
                    }
                };
                if forget {
                    state.api.delete(request.verb, node, precondition);
                }
                *state.front_mut(index) = Front::default();
            },
        );
    }
}

impl State {
    /// The front is through with its request, whether somebody still listens or not.
    fn answer(&mut self, protocol: &Protocol, (index, node): (usize, Node), answer: Answer) {
        let front = *self.front(index);
        *self.front_mut(index) = match answer {
            Answer::Of(_) => Front {
                caller: Caller::Gone,
                ..front
            },
            Answer::Withdrawn | Answer::NodeGone => Front::default(),
        };
        if matches!(front.progress, Progress::Wait { seen, .. } if !matches!(seen, Phase::Done(_)))
        {
            *self.front_mut(index) = Front::default();
        }
        if let (Caller::Waits, Some(request)) = (front.caller, front.request) {
            self.receive(protocol, (request, node), answer);
        }
    }
}

/// The notAfter that a front writes is some time ahead, unless it asks a clock that is behind.
fn not_after(protocol: &Protocol) -> Time {
    if protocol.lacks(Break::FrontClock) {
        Time::Over
    } else {
        Time::Left
    }
}

fn post(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "a front creates a call: create",
        Verb::Delete => "a front creates a call: delete",
    }
}
