//! An explicit-state model checker: every reachable state, breadth first, so that a counterexample is a shortest one.
//!
//! Two questions are answered. Is there a reachable state that violates an invariant? And is there a reachable state from
//! which no quiet state can be reached any more by steps that are not faults? The second is what "ends eventually" means
//! where every step that stays possible is taken at some time (strong fairness).

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What is checked.
pub trait Model {
    /// All that there is at one instant. Equal states are explored once.
    type State: Clone + Eq + Hash + fmt::Debug;
    /// What leads from one state to the next, as a counterexample shows it.
    type Action: Copy + Ord + fmt::Display;

    /// Where everything begins.
    fn initial(&self) -> Self::State;
    /// All states that follow.
    fn steps(&self, state: &Self::State, next: &mut Vec<Step<Self::Action, Self::State>>);
    /// The invariant that the state violates, by its name.
    fn violated(&self, state: &Self::State) -> Option<&'static str>;
    /// Whether nothing is left to be done.
    fn is_quiet(&self, state: &Self::State) -> bool;
}

/// Who takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The protocol itself, and time: it is taken at some time if it stays possible.
    Protocol,
    /// Failures and users: it may or may not happen.
    Fault,
}

/// A way from one state to another.
#[derive(Debug)]
pub struct Step<A, S> {
    /// What happens.
    pub action: A,
    /// Who does it.
    pub kind: Kind,
    /// What is then.
    pub state: S,
}

/// What the exploration found.
#[derive(Debug)]
pub struct Outcome {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// How many steps the farthest state is away from the initial one.
    pub depth: usize,
    /// Everything that happens somewhere.
    pub actions: BTreeSet<String>,
    /// How a property is violated, if one is.
    pub counterexample: Option<Counterexample>,
}

/// A shortest way to a state that must not be.
pub struct Counterexample {
    /// The name of the invariant, or [`NEVER_QUIET`].
    pub property: &'static str,
    /// What happens, in order.
    pub actions: Vec<String>,
    /// The last state.
    pub state: String,
}

impl fmt::Debug for Counterexample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.property)?;
        for (number, action) in self.actions.iter().enumerate() {
            writeln!(formatter, "{:>3} {action}", number + 1)?;
        }
        write!(formatter, "{}", self.state)
    }
}

/// The property that a quiet state can be reached from every state.
pub const NEVER_QUIET: &str = "from every state the protocol comes to an end";

/// Explores all states, or stops at the first one that violates an invariant.
pub fn explore<M: Model>(model: &M) -> Outcome {
    let mut search: Search<M> = Search {
        reached: Vec::new(),
        numbers: HashMap::default(),
        edges: Vec::new(),
        steps: 0,
        actions: BTreeSet::new(),
    };
    search.visit(model.initial(), None);
    let mut next = Vec::new();
    for current in 0.. {
        let Some(reached) = search.reached.get(place(current)) else {
            break;
        };
        if let Some(property) = model.violated(&reached.state) {
            return search.outcome(Some((property, current)));
        }
        model.steps(&reached.state, &mut next);
        for step in next.drain(..) {
            search.steps += 1;
            search.actions.insert(step.action);
            let number = search.visit(step.state, Some((current, step.action)));
            if step.kind == Kind::Protocol {
                search.edges.push((number, current));
            }
        }
    }
    let stuck = search.first_stuck(|state| model.is_quiet(state));
    search.outcome(stuck.map(|number| (NEVER_QUIET, number)))
}

/// States are numbered in the order in which they are reached, by half as many bytes as an index has: there are millions.
type Number = u32;

fn place(number: Number) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A state, and how it was first reached.
struct Reached<M: Model> {
    state: M::State,
    from: Option<(Number, M::Action)>,
}

struct Search<M: Model> {
    reached: Vec<Reached<M>>,
    numbers: HashMap<M::State, Number, BuildHasherDefault<Mix>>,
    /// Steps of the protocol, each from where it leads to where it begins.
    edges: Vec<(Number, Number)>,
    steps: usize,
    actions: BTreeSet<M::Action>,
}

impl<M: Model> Search<M> {
    fn visit(&mut self, state: M::State, from: Option<(Number, M::Action)>) -> Number {
        match self.numbers.entry(state) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                #[expect(clippy::expect_used, reason = "what follows would be wrong")]
                let number = Number::try_from(self.reached.len())
                    .expect("a model this large would not fit into memory");
                self.reached.push(Reached {
                    state: new.key().clone(),
                    from,
                });
                new.insert(number);
                number
            }
        }
    }

    /// The first state from which no quiet one is reached: backwards from the quiet ones, whatever is not met.
    fn first_stuck(&mut self, is_quiet: impl Fn(&M::State) -> bool) -> Option<Number> {
        self.edges.sort_unstable();
        let mut ends_well: Vec<bool> = self
            .reached
            .iter()
            .map(|reached| is_quiet(&reached.state))
            .collect();
        let mut pending: Vec<Number> = (0..)
            .zip(&ends_well)
            .filter(|(_, ends)| **ends)
            .map(|(number, _)| number)
            .collect();
        while let Some(number) = pending.pop() {
            let first = self.edges.partition_point(|(to, _)| *to < number);
            for (_, from) in self
                .edges
                .iter()
                .skip(first)
                .take_while(|(to, _)| *to == number)
            {
                if let Some(known) = ends_well.get_mut(place(*from)).filter(|known| !**known) {
                    *known = true;
                    pending.push(*from);
                }
            }
        }
        (0..)
            .zip(&ends_well)
            .find(|(_, ends)| !**ends)
            .map(|(number, _)| number)
    }

    fn path(&self, last: Number) -> Vec<String> {
        let mut actions = Vec::new();
        let mut current = last;
        while let Some((from, action)) = self
            .reached
            .get(place(current))
            .and_then(|reached| reached.from)
        {
            actions.push(action.to_string());
            current = from;
        }
        actions.reverse();
        actions
    }

    fn outcome(&self, found: Option<(&'static str, Number)>) -> Outcome {
        let counterexample = found.map(|(property, number)| Counterexample {
            property,
            actions: self.path(number),
            state: self
                .reached
                .get(place(number))
                .map(|reached| format!("{:?}", reached.state))
                .unwrap_or_default(),
        });
        let farthest = Number::try_from(self.reached.len())
            .unwrap_or_default()
            .saturating_sub(1);
        Outcome {
            states: self.reached.len(),
            steps: self.steps,
            depth: self.path(farthest).len(),
            actions: self.actions.iter().map(ToString::to_string).collect(),
            counterexample,
        }
    }
}

/// A hash that is fast for small values; what a state is, nobody chooses to make it slow.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(u64::from(
            value
                .unsigned_abs()
                .to_le_bytes()
                .first()
                .copied()
                .unwrap_or_default(),
        ));
    }
}

#[cfg(test)]
#[expect(clippy::expect_used, reason = "a test fails by a panic")]
mod tests {
    use super::*;

    /// A counter that may get stuck at one value and must not come to another.
    struct Counter {
        stuck_at: u8,
        forbidden: u8,
    }

    impl Model for Counter {
        type State = u8;
        type Action = u8;

        fn initial(&self) -> u8 {
            0
        }

        fn steps(&self, state: &u8, next: &mut Vec<Step<u8, u8>>) {
            if *state != self.stuck_at && *state < 10 {
                next.push(Step {
                    action: 1,
                    kind: Kind::Protocol,
                    state: state + 1,
                });
                next.push(Step {
                    action: 2,
                    kind: Kind::Fault,
                    state: state + 2,
                });
            }
        }

        fn violated(&self, state: &u8) -> Option<&'static str> {
            (*state == self.forbidden).then_some("forbidden")
        }

        fn is_quiet(&self, state: &u8) -> bool {
            *state >= 10
        }
    }

    #[test]
    fn all_states_are_explored_once() {
        let outcome = explore(&Counter {
            stuck_at: 100,
            forbidden: 100,
        });
        assert_eq!(
            (outcome.states, outcome.steps, outcome.depth),
            (12, 20, 6),
            "{outcome:?}"
        );
        assert!(outcome.counterexample.is_none(), "{outcome:?}");
        assert_eq!(outcome.actions.iter().collect::<Vec<_>>(), ["1", "2"]);
    }

    #[test]
    fn a_counterexample_is_a_shortest_way() {
        let found = explore(&Counter {
            stuck_at: 100,
            forbidden: 6,
        })
        .counterexample
        .expect("6 is reached");
        assert_eq!(
            (found.property, found.actions),
            ("forbidden", vec!["2".to_owned(); 3])
        );
    }

    #[test]
    fn a_state_that_only_a_fault_leaves_is_found() {
        // From 8 the protocol goes to 9, where it is stuck; the fault that leads past it does not count.
        let found = explore(&Counter {
            stuck_at: 9,
            forbidden: 100,
        })
        .counterexample
        .expect("9 is reached");
        assert_eq!((found.property, found.state.as_str()), (NEVER_QUIET, "0"));
    }
}
