//! Two controllers serve the cluster, as for some seconds after a lease was lost: asked at random, they answer as one.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use tonic::{Code, Status};

use crate::{
    chaos::below,
    front::{Asking, create_on},
    node::holds,
    rbac::SYSTEM,
    sidecars::{NODE, Stack},
};

/// Number of volumes, and of those that ask for each at the same time.
const VOLUMES: usize = 24;
const CALLERS: usize = 3;
/// Volumes that are asked for at a time.
const BESIDE: usize = 6;

/// So long a call may take, with all that is killed meanwhile.
const PATIENCE: Duration = Duration::from_mins(3);

const CONTROLLERS: [&str; 2] = ["controller", "other-controller"];

/// Asks one controller after the other, at random, until there is an answer.
async fn until_answered<T>(
    fronts: &[Asking],
    ask: impl AsyncFn(&Asking) -> Result<T, Status>,
) -> T {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "it is never answered");
        let which = usize::try_from(below(2)).unwrap();
        match ask(&fronts[which]).await {
            Ok(answer) => return answer,
            Err(status) => {
                let is_passing = [
                    Code::Unavailable,
                    Code::Aborted,
                    Code::Unknown,
                    Code::Cancelled,
                ];
                assert!(is_passing.contains(&status.code()), "{status:?}");
                tokio::time::sleep(Duration::from_millis(below(200))).await;
            }
        }
    }
}

/// A volume that all callers make, and all callers delete.
async fn live(fronts: &[Asking], number: usize) {
    let wanted = create_on(&format!("volume {number}"), 4, &[NODE]);
    let callers = (0..CALLERS)
        .map(|_| until_answered(fronts, async |front| front.create(wanted.clone()).await));
    let ids = futures::future::join_all(callers).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let callers =
        (0..CALLERS).map(|_| until_answered(fronts, async |front| front.delete(&ids[0]).await));
    futures::future::join_all(callers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_controllers_that_are_asked_at_random_answer_as_one_while_they_are_killed() {
    let mut stack = Stack::start().await;
    stack.start_another_front(CONTROLLERS[1]).await;
    let fronts = CONTROLLERS.map(|name| Asking::over(&stack.socket_of(name)));
    let are_over = AtomicBool::new(false);
    let lives = (0..BESIDE).map(async |first| {
        for number in (first..VOLUMES).step_by(BESIDE) {
            live(&fronts, number).await;
        }
    });
    let living = async {
        futures::future::join_all(lives).await;
        are_over.store(true, Ordering::Relaxed);
    };
    // Whoever leads: the other one takes the lease over while its calls run.
    let killing = async {
        let mut victims = CONTROLLERS.iter().cycle();
        let mut kills = 0;
        while kills < 2 || !are_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1500 + below(2000))).await;
            let victim = victims.next().unwrap();
            stack.daemons.get_mut(*victim).unwrap().restart();
            kills += 1;
            assert!(kills < 120, "{}", stack.logs());
        }
    };
    futures::join!(living, killing);
    // None came back by a call that was late.
    assert_eq!(holds(&stack.agent).await, (0, 0));
    // A controller that was killed after its answer leaves a call that has ended, which the sweep takes away ten minutes later.
    let phases = "jsonpath={.items[*].status.phase}";
    let words = ["-n", SYSTEM, "get", "nodecalls", "-o", phases];
    let phases = stack.cluster.kubectl(&words);
    assert!(
        phases.split_whitespace().all(|phase| phase == "Done"),
        "{phases}"
    );
    assert_eq!(holds(&stack.agent).await, (0, 0));
}
