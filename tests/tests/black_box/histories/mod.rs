//! Random histories of a host that keeps manifests of every kind, each against a small model of what must come of it:
//! edits, tombstones, files that are away, broken or called otherwise, kills of agent and reconciler at any step, together or
//! apart, a state directory that is lost, a disk that is away and back, a host that gets another name, hours
//! that pass.
//!
//! What is Ready is what the last valid manifest says; no volume that was ever used is lost, replaced or given to another
//! object; no moment is taken anew; no call is repeated with other arguments. One seed gives one history: a failure names
//! it, and `DRUMLIN_HISTORY=<seed>` tells it alone.

mod apart;
mod model;
mod stage;
mod time;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use drumlin_tests::random::{Random, number};
use stage::Stage;

/// The seed of the first history in CI.
const SEED: u64 = 0x0d12_0a11;
/// So many there are; the soak tells as many from another seed.
const MANY: u64 = 30;
/// So many histories are told at a time: each waits for most of its time.
const ABREAST: usize = 32;
/// So many steps a history has.
const STEPS: u64 = 8;

/// Tells the history that a seed gives.
async fn tell(seed: u64) {
    let mut random = Random::new(seed);
    let mut stage = Stage::set(seed).await;
    for step in 0..STEPS {
        stage.step(step, &mut random).await;
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_is_never_lost_replaced_or_given_away() {
    if let Some(seed) = number("DRUMLIN_HISTORY") {
        return tell(seed).await;
    }
    let first = number("DRUMLIN_HISTORIES_FROM").unwrap_or(SEED);
    let many = number("DRUMLIN_HISTORIES").unwrap_or(MANY);
    let next = Arc::new(AtomicU64::new(first));
    let tellers: Vec<_> = (0..ABREAST)
        .map(|_| {
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + many {
                        return;
                    }
                    // A failure ends this one only; its seed is in its words.
                    tell(seed).await;
                }
            })
        })
        .collect();
    let mut failed = 0;
    for teller in tellers {
        failed += usize::from(teller.await.is_err());
    }
    assert_eq!(failed, 0, "histories failed; their seeds are above");
}
