//! Two controllers serve the cluster, as for some seconds after a lease was lost: asked at random, they answer as one.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tonic::{Code, Status};

use crate::{
    chaos::below,
    front::{Asking, create_on, no_call_is_left},
    node::holds,
    sidecars::{NODE, Stack},
};

/// Number of volumes, and of those that ask for each at the same time.
const VOLUMES: usize = 24;
const CALLERS: usize = 3;
/// Volumes that are asked for at a time.
const BESIDE: usize = 6;

const CONTROLLERS: [&str; 2] = ["controller", "other-controller"];

/// Asks one controller after the other, at random, until there is an answer.
async fn until_answered<T>(
    fronts: &[Asking],
    ask: impl AsyncFn(&Asking) -> Result<T, Status>,
) -> T {
    loop {
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

/// A volume that all callers make, and all callers delete; its id.
async fn live(fronts: &[Asking], number: usize) -> String {
    let wanted = create_on(&format!("volume {number}"), 4, &[NODE]);
    let callers = (0..CALLERS)
        .map(|_| until_answered(fronts, async |front| front.create(wanted.clone()).await));
    let ids = futures::future::join_all(callers).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let callers =
        (0..CALLERS).map(|_| until_answered(fronts, async |front| front.delete(&ids[0]).await));
    futures::future::join_all(callers).await;
    ids[0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_controllers_that_are_asked_at_random_answer_as_one_while_they_are_killed() {
    let mut stack = Stack::start().await;
    stack.start_another_front(CONTROLLERS[1]).await;
    let fronts = CONTROLLERS.map(|name| Asking::over(&stack.socket_of(name)));
    let are_over = AtomicBool::new(false);
    let lives = (0..BESIDE).map(async |first| {
        let mut ids = Vec::new();
        for number in (first..VOLUMES).step_by(BESIDE) {
            ids.push(live(&fronts, number).await);
        }
        ids
    });
    let living = async {
        let ids = futures::future::join_all(lives).await.concat();
        are_over.store(true, Ordering::Relaxed);
        ids
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
    let (ids, ()) = futures::join!(living, killing);
    // A controller that was killed after its answer leaves a call that has ended: the next about the volume takes it away, else
    // the sweep, ten minutes later.
    for id in &ids {
        until_answered(&fronts, async |front| front.delete(id).await).await;
    }
    no_call_is_left(&stack).await;
    assert_eq!(holds(&stack.agent).await, (0, 0));
}
