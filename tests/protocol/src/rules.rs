//! Which protocol is checked, and in which world.

use crate::api_server::{Api, Call};
use crate::checker::Kind;
use crate::state::Node;

/// How a front and the sweep treat calls whose outcome may not be known to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A call is deleted once it is answered, or expired; one that is Done is replaced by a fresh one.
    UntilAnswered,
    /// A call is asked for once more (`spec.attempt`) until its answer is final, and deleted after that.
    UntilFinal,
    /// That of a create stays, also after a final answer, until its volume is bound, or is known not to exist.
    UntilBound,
}

/// What the audit removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Volumes whose claim is gone.
    ClaimGone,
    /// Also those whose claim is bound to another volume.
    ClaimGoneOrBoundElsewhere,
}

/// One rule that is left out or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// The agent writes Taken without naming the version that it saw.
    TakenWithoutVersion,
    /// The agent writes Done into whatever has the name.
    DoneByName,
    /// A front withdraws without naming the version that it saw.
    WithdrawalWithoutVersion,
    /// A front withdraws what it has seen to be Taken.
    WithdrawalAfterTaken,
    /// The agent runs whatever it has taken.
    NoExpiry,
    /// The agent compares notAfter with its own clock.
    OwnClock,
    /// The front sets notAfter by its own clock, which is behind.
    FrontClock,
    /// A Done call answers the next request of its name.
    AnswersReused,
    /// Deletion names neither uid nor version.
    DeletionByName,
    /// Deletion names the uid alone.
    DeletionByUid,
    /// A front takes a call that is gone for one that succeeded.
    AnswerFromCache,
    /// A front whose watch is late believes it about an earlier call of the name.
    LateCallBelieved,
    /// A front whose watch is late believes it about its call before that was asked for once more.
    LateAttemptBelieved,
    /// A call is joined whatever it asks for.
    JoinedWhateverItAsks,
    /// Nobody sweeps.
    NoSweep,
    /// The audit lists the PersistentVolumes before it reads the claim.
    VolumesBeforeClaim,
}

/// How the clock of the near node goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// As the server's.
    Right,
    /// An hour behind.
    Behind,
    /// An hour ahead.
    Ahead,
}

/// Who chooses the node of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The scheduler.
    Delayed,
    /// The scheduler, which has one node to choose from.
    OneNode,
    /// The front, by what is available when it is asked.
    Immediate,
}

/// When a user deletes the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Never.
    Never,
    /// At any time.
    AnyTime,
    /// Once it is bound.
    WhenBound,
}

/// What may happen, and how often. Lost answers, deadlines, late watches and the passing of time are not counted: they
/// happen any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Kills of agents.
    pub agent_restarts: u8,
    /// Kills of the sidecar.
    pub sidecar_restarts: u8,
    /// Creations that find no room.
    pub no_room: u8,
    /// Claims of the same name that are made anew.
    pub recreations: u8,
    /// Calls that a user deletes.
    pub deleted_calls: u8,
    /// Nodes that vanish, and may return.
    pub vanished_nodes: u8,
    /// Snapshots of etcd to which it may be set back.
    pub set_backs: u8,
    /// Fronts that go on after their caller has left.
    pub paused_fronts: u8,
}

/// Nothing of what is counted.
pub const NO_FAULTS: Faults = Faults {
    agent_restarts: 0,
    sidecar_restarts: 0,
    no_room: 0,
    recreations: 0,
    deleted_calls: 0,
    vanished_nodes: 0,
    set_backs: 0,
    paused_fronts: 0,
};

/// The properties of every state, beside that the protocol comes to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Property {
    /// An answer says what is so when the caller gets it.
    TrueAnswers,
    /// Nothing starts to run after notAfter by the server's clock.
    InTime,
    /// Nothing runs after its withdrawal, or while it is withdrawn.
    WithdrawnForGood,
    /// Never two nodes have the volume of one name.
    OneNode,
    /// The volume of a bound claim exists, as it was asked for.
    BoundVolumeExists,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::TrueAnswers,
        Self::InTime,
        Self::WithdrawnForGood,
        Self::OneNode,
        Self::BoundVolumeExists,
    ];

    /// What a counterexample calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::TrueAnswers => "an answer is true when it is received",
            Self::InTime => "nothing starts after notAfter",
            Self::WithdrawnForGood => "nothing runs after a withdrawal",
            Self::OneNode => "one node at most has the volume of a name",
            Self::BoundVolumeExists => "the volume of a bound claim exists",
        }
    }
}

/// A protocol in a world.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// How long calls are kept.
    pub memory: Memory,
    /// What the audit removes.
    pub audit: Audit,
    /// What is wrong with it.
    pub broken: Option<Break>,
    /// Who chooses nodes.
    pub binding: Binding,
    /// When the claim is deleted.
    pub deletion: Deletion,
    /// The clock of the near node.
    pub clock: Clock,
    /// What else may happen.
    pub faults: Faults,
    /// What must be so in this world.
    pub claimed: &'static [Property],
}

impl Protocol {
    /// Whether it is broken in this way.
    pub(crate) fn lacks(&self, rule: Break) -> bool {
        self.broken == Some(rule)
    }

    /// Whether this property must hold here.
    pub(crate) fn claims(&self, property: Property) -> bool {
        self.claimed.contains(&property)
    }

    /// Whether the claim, read from the server, has another node than this: only a final answer leads there.
    pub(crate) fn goes_elsewhere(&self, api: &Api, node: Node) -> bool {
        self.binding == Binding::Delayed && api.selected != node
    }

    /// Whether notAfter has passed, as an agent sees it.
    pub(crate) fn is_expired(&self, node: Node, call: Call) -> bool {
        match (self.broken, node, self.clock) {
            (Some(Break::NoExpiry), ..) | (Some(Break::OwnClock), Node::Near, Clock::Behind) => {
                false
            }
            (Some(Break::OwnClock), Node::Near, Clock::Ahead) => true,
            _ => call.is_expired(),
        }
    }
}

/// What happens, where, as a counterexample shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Action {
    /// What.
    pub(crate) what: &'static str,
    /// At which node, or for which.
    pub(crate) node: Option<Node>,
    /// Who does it.
    pub(crate) kind: Kind,
}

impl std::fmt::Display for Action {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.node {
            Some(node) => write!(formatter, "{} [{node:?}]", self.what),
            None => write!(formatter, "{}", self.what),
        }
    }
}
