//! Keeps the limits of volumes in force: cgroups come and go, and systemd takes controllers away that no unit asks for.

use std::{sync::Arc, time::Duration};

use drumlin_core::{fail, ops::Operations};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// Time from one look at the cgroups to the next.
const EVERY: Duration = Duration::from_secs(30);

/// Sets all limits once more from time to time, until `stop`.
pub(crate) async fn keep(operations: Arc<Operations>, stop: CancellationToken) {
    let mut ticks = interval(fail::time_lapse(EVERY));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let keeping = async {
        loop {
            ticks.tick().await;
            operations.keep_limits().await;
        }
    };
    let _: Option<()> = stop.run_until_cancelled(keeping).await;
}
