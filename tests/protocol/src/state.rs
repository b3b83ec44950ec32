//! What there is at one instant: objects, memories, disks.

use crate::api_server::{Api, Call, Phase, Time};
use crate::rules::{Faults, Property};

/// The uid of an object that this step makes; [`State::canonical`] gives it a small one.
pub(crate) const FRESH: u8 = u8::MAX;

/// More uids than one state can know of: 3 objects, 3 saved ones, 2 views and 2 runs of each agent, 1 of each front,
/// 1 of an answer.
const MOST_UIDS: usize = 16;

/// One of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The one that the scheduler selects first.
    Near,
    /// The other.
    Far,
}

impl Node {
    pub(crate) const BOTH: [Self; 2] = [Self::Near, Self::Far];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// Something for each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PerNode<T> {
    near: T,
    far: T,
}

impl<T> PerNode<T> {
    pub(crate) fn of(near: T, far: T) -> Self {
        Self { near, far }
    }

    pub(crate) fn at(&self, node: Node) -> &T {
        match node {
            Node::Near => &self.near,
            Node::Far => &self.far,
        }
    }

    pub(crate) fn at_mut(&mut self, node: Node) -> &mut T {
        match node {
            Node::Near => &mut self.near,
            Node::Far => &mut self.far,
        }
    }
}

/// The methods that are modelled; all others repeat like one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Create,
    Delete,
}

impl Verb {
    pub(crate) const BOTH: [Self; 2] = [Self::Create, Self::Delete];
}

/// Something for each method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PerVerb<T> {
    create: T,
    delete: T,
}

impl<T> PerVerb<T> {
    pub(crate) fn of(&self, verb: Verb) -> &T {
        match verb {
            Verb::Create => &self.create,
            Verb::Delete => &self.delete,
        }
    }

    pub(crate) fn of_mut(&mut self, verb: Verb) -> &mut T {
        match verb {
            Verb::Create => &mut self.create,
            Verb::Delete => &mut self.delete,
        }
    }
}

/// What an agent is about with one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Run {
    #[default]
    None,
    /// Taken, not begun.
    Taken(Call),
    /// Begun.
    Running(Call),
    /// Ended, not written.
    Ended(Call, Code),
}

impl Run {
    pub(crate) fn call_mut(&mut self) -> Option<&mut Call> {
        match self {
            Self::None => None,
            Self::Taken(call) | Self::Running(call) | Self::Ended(call, _) => Some(call),
        }
    }

    pub(crate) fn call(mut self) -> Option<Call> {
        self.call_mut().copied()
    }
}

/// An agent's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    /// What its watch has told so far: all calls of this node at one past instant, and its own later writes.
    pub(crate) view: PerVerb<Option<Call>>,
    pub(crate) runs: PerVerb<Run>,
}

/// What an agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Code {
    Ok,
    /// Nothing was made.
    NoRoom,
    /// The volume is there, with other arguments.
    AlreadyExists,
    /// The outcome is unknown: repeat.
    Aborted,
}

/// A request of the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    /// The only node that will do.
    pub(crate) node: Option<Node>,
    /// Of a create: size, parameters, everything that a repeat must have alike.
    pub(crate) arguments: u8,
}

/// How far a front is with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Progress {
    #[default]
    Idle,
    /// It is about to create the call, at this node if it has chosen one.
    Create(Option<Node>),
    /// It is about to delete a call that is in the way, in this phase if that matters.
    Replace {
        uid: u8,
        node: Node,
        phase: Option<Phase>,
    },
    /// It is about to have a call run again.
    Renew { uid: u8, node: Node, phase: Phase },
    /// It waits for its call; the phase is what it last saw.
    Wait { uid: u8, node: Node, seen: Phase },
    /// It has answered, and is about to delete the call.
    Answered { uid: u8, node: Node, code: Code },
}

/// A front, and the one request that it is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Front {
    pub(crate) request: Option<Request>,
    pub(crate) progress: Progress,
    pub(crate) caller: Caller,
}

/// An answer that a watch may still show when it holds no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Late {
    pub(crate) verb: Verb,
    pub(crate) node: Node,
    pub(crate) uid: u8,
    pub(crate) code: Code,
}

/// Whether somebody waits for a front's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Caller {
    #[default]
    Gone,
    Waits,
}

/// The sidecar's memory: a create that was begun is repeated until its answer is final, even for a claim that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sidecar {
    Continues,
    Idle,
}

/// How far the audit is with the volume of a node. Between its steps everything else may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Audited {
    #[default]
    Nothing,
    /// It has seen that no claim waits for the volume, or that no PersistentVolume is about it, whichever it looks at first.
    Half(Node),
    /// It has seen both, and is about to delete the volume.
    Unclaimed(Node),
}

/// Everything at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) api: Api,
    pub(crate) snapshot: Option<Api>,
    pub(crate) sidecar: Sidecar,
    pub(crate) fronts: [Front; 2],
    pub(crate) agents: PerNode<Agent>,
    /// The arguments with which the volume of the name was made, where it is.
    pub(crate) disks: PerNode<Option<u8>>,
    /// The faults that may still happen.
    pub(crate) left: Faults,
    /// The call that was withdrawn last, as long as somebody still knows of it.
    pub(crate) withdrawn: Option<u8>,
    /// The answer that was written last, where a front is to believe one that is late.
    pub(crate) late: Option<Late>,
    pub(crate) audited: Audited,
    pub(crate) violation: Option<Property>,
}

impl State {
    pub(crate) fn front(&self, index: usize) -> &Front {
        let [first, second] = &self.fronts;
        if index == 0 { first } else { second }
    }

    pub(crate) fn front_mut(&mut self, index: usize) -> &mut Front {
        let [first, second] = &mut self.fronts;
        if index == 0 { first } else { second }
    }

    pub(crate) fn somebody_waits(&self) -> bool {
        self.fronts
            .iter()
            .any(|front| front.caller == Caller::Waits)
    }

    /// The watch of this agent catches up.
    pub(crate) fn catch_up(&mut self, node: Node) {
        for verb in Verb::BOTH {
            *self.agents.at_mut(node).view.of_mut(verb) =
                self.api.call(verb, node).filter(|call| call.node == node);
        }
    }

    /// All calls that anybody knows of: the server's first, memories after them.
    fn each_call(&mut self, mut visit: impl FnMut(&mut Call)) {
        self.api.each_call(&mut visit);
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.each_call(&mut visit);
        }
        for node in Node::BOTH {
            let agent = self.agents.at_mut(node);
            for verb in Verb::BOTH {
                agent.view.of_mut(verb).iter_mut().for_each(&mut visit);
                agent
                    .runs
                    .of_mut(verb)
                    .call_mut()
                    .into_iter()
                    .for_each(&mut visit);
            }
        }
    }

    /// The notAfter of a call passes, for all who know of it.
    pub(crate) fn expire(&mut self, uid: u8) {
        let before = self.agents;
        self.each_call(|call| {
            if call.uid == uid {
                call.time = Time::Over;
            }
        });
        // What was taken in time is run at once.
        for (node, verb) in Node::BOTH
            .into_iter()
            .flat_map(|node| Verb::BOTH.map(|verb| (node, verb)))
        {
            *self.agents.at_mut(node).runs.of_mut(verb) = *before.at(node).runs.of(verb);
        }
    }

    /// The calls whose notAfter is still to come.
    pub(crate) fn in_time(&self) -> Vec<u8> {
        let mut uids = Vec::new();
        let mut copy = *self;
        copy.each_call(|call| {
            if call.time == Time::Left && !uids.contains(&call.uid) {
                uids.push(call.uid);
            }
        });
        uids
    }

    /// Forgets what nobody asks for any more, so that states which differ in that alone are one.
    fn forget(&mut self) {
        for (node, verb) in Node::BOTH
            .into_iter()
            .flat_map(|node| Verb::BOTH.map(|verb| (node, verb)))
        {
            let agent = self.agents.at_mut(node);
            // An agent has nothing to do with a call that is Done.
            let view = agent.view.of_mut(verb);
            *view = view.filter(|call| !matches!(call.phase, Phase::Done(_)));
            // When a run began has been looked at.
            if let Run::Running(call) | Run::Ended(call, _) = agent.runs.of_mut(verb) {
                call.time = Time::Over;
            }
        }
    }

    /// The same state with uids numbered in the order in which they are met: nothing depends on their values.
    pub(crate) fn canonical(mut self) -> Self {
        self.forget();
        let mut known = [None; MOST_UIDS];
        let mut rename = |uid: &mut u8| {
            let same = known
                .iter()
                .position(|other| other.is_none_or(|other| other == *uid));
            let number = same.unwrap_or(MOST_UIDS);
            if let Some(place) = known.get_mut(number) {
                *place = Some(*uid);
            }
            *uid = u8::try_from(number).unwrap_or(FRESH - 1);
        };
        let withdrawn = self.withdrawn;
        let mut still_known = None;
        self.each_call(|call| {
            let was = call.uid;
            rename(&mut call.uid);
            if Some(was) == withdrawn {
                still_known = Some(call.uid);
            }
        });
        self.withdrawn = still_known;
        if let Some(late) = &mut self.late {
            rename(&mut late.uid);
        }
        for front in &mut self.fronts {
            match &mut front.progress {
                Progress::Idle | Progress::Create(_) => {}
                Progress::Replace { uid, .. }
                | Progress::Renew { uid, .. }
                | Progress::Wait { uid, .. }
                | Progress::Answered { uid, .. } => rename(uid),
            }
        }
        // One front is as good as the other.
        self.fronts.sort_unstable();
        self
    }
}
