//! The regular look at the trash of all classes.

use std::{sync::Arc, time::Duration};

use drumlin_core::{
    fail,
    ops::{Operations, TrashWatch},
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Time from one look to the next.
const EVERY: Duration = Duration::from_mins(1);

/// Looks at the trash until `stop`.
pub(crate) async fn watch(operations: Arc<Operations>, stop: CancellationToken) {
    let mut watch = TrashWatch::default();
    let mut ticks = interval(fail::time_lapse(EVERY));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let looking = async {
        loop {
            ticks.tick().await;
            operations.tidy_trash(&mut watch).await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(looking).await;
}
