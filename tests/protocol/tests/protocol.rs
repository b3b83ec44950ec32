//! The rules of `NodeCall` hold in each of these worlds, and each of them is needed.

#![expect(
    clippy::print_stdout,
    reason = "how much was explored, and how a broken rule fails, is worth reading"
)]

use drumlin_protocol::rules::{
    Audit, Binding, Break, Clock, Deletion, Faults, Memory, NO_FAULTS, Property, Protocol,
};
use drumlin_protocol::{NEVER_QUIET, explore};

/// What holds whatever Nodes, users and administrators do.
const AT_LEAST: &[Property] = &[
    Property::InTime,
    Property::WithdrawnForGood,
    Property::BoundVolumeExists,
];

/// Two fronts, two nodes, one name; watches are late, answers are lost, deadlines pass, fronts are killed, time passes.
const WORLD: Protocol = Protocol {
    memory: Memory::UntilBound,
    audit: Audit::ClaimGoneOrBoundElsewhere,
    broken: None,
    binding: Binding::Delayed,
    deletion: Deletion::AnyTime,
    clock: Clock::Right,
    faults: NO_FAULTS,
    claimed: &Property::ALL,
};

/// One name is used again and again, on one node.
const USED_AGAIN: Protocol = Protocol {
    binding: Binding::OneNode,
    deletion: Deletion::WhenBound,
    faults: Faults {
        recreations: 1,
        agent_restarts: 1,
        ..NO_FAULTS
    },
    ..WORLD
};

/// Explores all of it; `met` are steps that must have been part of it. Prints how much that was.
#[track_caller]
fn holds(protocol: &Protocol, met: &[&str]) {
    let outcome = explore(protocol);
    assert!(
        outcome.counterexample.is_none(),
        "{:?}",
        outcome.counterexample
    );
    for step in met {
        assert!(
            outcome
                .actions
                .iter()
                .any(|action| action.starts_with(step)),
            "never: {step}, but {:?}",
            outcome.actions
        );
    }
    println!(
        "{} states, {} steps, at most {} away from the first",
        outcome.states, outcome.steps, outcome.depth
    );
}

/// Finds a counterexample against this property.
#[track_caller]
fn fails(protocol: &Protocol, property: &str) {
    let outcome = explore(protocol);
    let found = outcome
        .counterexample
        .unwrap_or_else(|| panic!("no counterexample in {} states", outcome.states));
    println!("{found:?}");
    assert_eq!(found.property, property, "{found:?}");
}

#[track_caller]
fn broken(rule: Break, world: Protocol, property: Property) {
    fails(
        &Protocol {
            broken: Some(rule),
            ..world
        },
        property.name(),
    );
}

mod worlds {
    use super::*;

    #[test]
    fn agents_are_killed_and_have_no_room() {
        let faults = Faults {
            agent_restarts: 1,
            no_room: 1,
            ..NO_FAULTS
        };
        let met = [
            "a front withdraws its call",
            "the agent writes Taken once more",
            "a front asks for a call once more",
            "the sweep deletes an expired call",
        ];
        holds(&Protocol { faults, ..WORLD }, &met);
    }

    #[test]
    fn the_front_chooses_the_node() {
        let faults = Faults {
            agent_restarts: 1,
            ..NO_FAULTS
        };
        holds(
            &Protocol {
                binding: Binding::Immediate,
                faults,
                ..WORLD
            },
            &["a front creates a call: create [Far]"],
        );
    }

    #[test]
    fn the_sidecar_is_killed() {
        let faults = Faults {
            sidecar_restarts: 1,
            ..NO_FAULTS
        };
        holds(
            &Protocol { faults, ..WORLD },
            &["the sidecar is killed", "the sweep deletes an expired call"],
        );
    }

    #[test]
    fn a_name_is_used_again() {
        holds(
            &USED_AGAIN,
            &[
                "a user makes the claim anew, with other arguments",
                "the agent has deleted",
            ],
        );
    }

    #[test]
    fn a_user_deletes_calls() {
        let faults = Faults {
            deleted_calls: 1,
            ..NO_FAULTS
        };
        let world = Protocol {
            faults,
            claimed: AT_LEAST,
            ..WORLD
        };
        holds(
            &Protocol {
                deletion: Deletion::Never,
                ..world
            },
            &["a user deletes a NodeCall"],
        );
        let faults = Faults {
            agent_restarts: 1,
            ..faults
        };
        holds(
            &Protocol {
                binding: Binding::OneNode,
                faults,
                ..world
            },
            &["a user deletes a NodeCall"],
        );
    }

    #[test]
    fn a_node_vanishes_and_returns() {
        let faults = Faults {
            vanished_nodes: 1,
            ..NO_FAULTS
        };
        let met = ["a front answers that the Node is gone", "the Node returns"];
        holds(
            &Protocol {
                faults,
                deletion: Deletion::Never,
                claimed: AT_LEAST,
                ..WORLD
            },
            &met,
        );
    }

    #[test]
    fn a_front_goes_on_after_its_caller_has_left() {
        let faults = Faults {
            paused_fronts: 1,
            ..NO_FAULTS
        };
        let world = Protocol {
            faults,
            claimed: AT_LEAST,
            ..WORLD
        };
        holds(
            &Protocol {
                deletion: Deletion::Never,
                ..world
            },
            &["a front is paused"],
        );
        holds(
            &Protocol {
                binding: Binding::OneNode,
                ..world
            },
            &["a front is paused", "the agent has deleted"],
        );
    }

    #[test]
    fn etcd_is_set_back() {
        let faults = Faults {
            set_backs: 1,
            ..NO_FAULTS
        };
        let world = Protocol {
            faults,
            claimed: &[Property::InTime],
            ..WORLD
        };
        holds(
            &Protocol {
                deletion: Deletion::Never,
                ..world
            },
            &["etcd is set back"],
        );
        holds(
            &Protocol {
                binding: Binding::OneNode,
                deletion: Deletion::WhenBound,
                ..world
            },
            &["etcd is set back", "the agent has deleted"],
        );
    }
}

/// What the fronts, the agents or the sweep would do wrong.
mod rules {
    use super::*;

    #[test]
    fn taken_names_the_version() {
        broken(
            Break::TakenWithoutVersion,
            WORLD,
            Property::WithdrawnForGood,
        );
    }

    #[test]
    fn done_names_the_version() {
        let faults = Faults {
            deleted_calls: 1,
            ..NO_FAULTS
        };
        let world = Protocol {
            faults,
            deletion: Deletion::Never,
            claimed: AT_LEAST,
            ..WORLD
        };
        broken(Break::DoneByName, world, Property::BoundVolumeExists);
    }

    #[test]
    fn a_withdrawal_names_the_version() {
        broken(
            Break::WithdrawalWithoutVersion,
            WORLD,
            Property::WithdrawnForGood,
        );
    }

    #[test]
    fn what_is_taken_is_not_withdrawn() {
        broken(
            Break::WithdrawalAfterTaken,
            WORLD,
            Property::WithdrawnForGood,
        );
    }

    #[test]
    fn nothing_expired_is_run() {
        broken(Break::NoExpiry, WORLD, Property::InTime);
    }

    #[test]
    fn the_clock_is_the_servers() {
        broken(
            Break::OwnClock,
            Protocol {
                clock: Clock::Behind,
                ..WORLD
            },
            Property::InTime,
        );
        let ahead = Protocol {
            clock: Clock::Ahead,
            binding: Binding::OneNode,
            broken: Some(Break::OwnClock),
            ..WORLD
        };
        fails(&ahead, NEVER_QUIET);
        fails(
            &Protocol {
                broken: Some(Break::FrontClock),
                ..WORLD
            },
            NEVER_QUIET,
        );
    }

    #[test]
    fn an_answer_is_given_once() {
        broken(Break::AnswersReused, USED_AGAIN, Property::TrueAnswers);
    }

    #[test]
    fn a_deletion_names_what_it_means() {
        let faults = Faults {
            no_room: 1,
            ..NO_FAULTS
        };
        broken(
            Break::DeletionByName,
            Protocol { faults, ..WORLD },
            Property::TrueAnswers,
        );
        broken(
            Break::DeletionByUid,
            Protocol { faults, ..WORLD },
            Property::TrueAnswers,
        );
    }

    #[test]
    fn what_is_gone_is_no_answer() {
        broken(Break::AnswerFromCache, WORLD, Property::TrueAnswers);
    }

    #[test]
    fn a_late_watch_is_believed_about_the_call_and_the_attempt_that_were_asked_for() {
        broken(
            Break::LateCallBelieved,
            USED_AGAIN,
            Property::BoundVolumeExists,
        );
        broken(
            Break::LateAttemptBelieved,
            USED_AGAIN,
            Property::TrueAnswers,
        );
    }

    #[test]
    fn a_call_is_joined_by_the_same_request() {
        let faults = Faults {
            no_room: 1,
            ..NO_FAULTS
        };
        broken(
            Break::JoinedWhateverItAsks,
            Protocol { faults, ..WORLD },
            Property::TrueAnswers,
        );
    }

    #[test]
    fn the_audit_lists_volumes_after_it_has_read_the_claim() {
        // Else the call of a create keeps its volume from being looked at until it is bound.
        let faults = Faults {
            deleted_calls: 1,
            ..NO_FAULTS
        };
        broken(
            Break::VolumesBeforeClaim,
            Protocol {
                faults,
                claimed: AT_LEAST,
                ..WORLD
            },
            Property::BoundVolumeExists,
        );
    }

    #[test]
    fn what_expires_is_swept() {
        fails(
            &Protocol {
                broken: Some(Break::NoSweep),
                ..WORLD
            },
            NEVER_QUIET,
        );
    }
}

/// Why the call of a create outlives its answer, and what the audit must find.
mod memory {
    use super::*;

    #[test]
    fn after_a_call_that_was_replaced_or_swept_a_withdrawal_is_no_proof() {
        fails(
            &Protocol {
                memory: Memory::UntilAnswered,
                ..WORLD
            },
            Property::TrueAnswers.name(),
        );
    }

    #[test]
    fn after_an_answer_that_got_lost_neither_if_its_call_is_deleted() {
        fails(
            &Protocol {
                memory: Memory::UntilFinal,
                ..WORLD
            },
            Property::TrueAnswers.name(),
        );
    }

    #[test]
    fn where_calls_are_deleted_once_they_are_answered_the_audit_is_needed_and_suffices() {
        for memory in [Memory::UntilAnswered, Memory::UntilFinal] {
            let world = Protocol {
                memory,
                binding: Binding::Immediate,
                deletion: Deletion::Never,
                claimed: AT_LEAST,
                ..WORLD
            };
            fails(
                &Protocol {
                    audit: Audit::ClaimGone,
                    ..world
                },
                NEVER_QUIET,
            );
        }
        let faults = Faults {
            agent_restarts: 1,
            ..NO_FAULTS
        };
        for binding in [Binding::Delayed, Binding::Immediate] {
            let world = Protocol {
                memory: Memory::UntilFinal,
                binding,
                deletion: Deletion::Never,
                faults,
                claimed: AT_LEAST,
                ..WORLD
            };
            holds(&world, &["the audit deletes a volume"]);
        }
    }

    #[test]
    fn a_front_that_chooses_nodes_would_choose_a_second_one() {
        let world = Protocol {
            binding: Binding::Immediate,
            claimed: &[Property::OneNode],
            ..WORLD
        };
        for memory in [Memory::UntilAnswered, Memory::UntilFinal] {
            fails(&Protocol { memory, ..world }, Property::OneNode.name());
        }
    }

    #[test]
    fn what_a_node_that_vanished_brings_back_is_found_beside_a_bound_claim() {
        let faults = Faults {
            vanished_nodes: 1,
            ..NO_FAULTS
        };
        let world = Protocol {
            faults,
            deletion: Deletion::Never,
            claimed: AT_LEAST,
            ..WORLD
        };
        fails(
            &Protocol {
                audit: Audit::ClaimGone,
                ..world
            },
            NEVER_QUIET,
        );
    }
}

/// What no rule can give.
mod limits {
    use super::*;

    #[test]
    fn after_etcd_was_set_back_a_withdrawal_is_no_proof() {
        let faults = Faults {
            set_backs: 1,
            ..NO_FAULTS
        };
        fails(
            &Protocol { faults, ..WORLD },
            Property::WithdrawnForGood.name(),
        );
    }

    #[test]
    fn after_a_user_deleted_a_call_a_withdrawal_is_no_proof() {
        let faults = Faults {
            deleted_calls: 1,
            ..NO_FAULTS
        };
        fails(&Protocol { faults, ..WORLD }, Property::TrueAnswers.name());
    }

    #[test]
    fn a_deletion_that_comes_late_deletes_what_has_its_name_by_then() {
        let faults = Faults {
            paused_fronts: 1,
            ..USED_AGAIN.faults
        };
        fails(
            &Protocol {
                faults,
                claimed: AT_LEAST,
                ..USED_AGAIN
            },
            Property::BoundVolumeExists.name(),
        );
    }

    #[test]
    fn a_create_that_comes_late_makes_a_second_volume() {
        let faults = Faults {
            paused_fronts: 1,
            ..NO_FAULTS
        };
        fails(
            &Protocol {
                faults,
                claimed: &[Property::OneNode],
                ..WORLD
            },
            Property::OneNode.name(),
        );
    }
}
