//! Detects that the clock was set, or that the host slept: schedules wait for times of the day, by a clock that runs on
//! steadily and stands still during sleep.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    time::Duration,
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep},
};

use crate::{
    engine::Engine,
    record::{Body, Record},
};

/// How often schedules look at the clock if the kernel cannot tell of its changes.
const LOOK: Duration = Duration::from_mins(5);
/// A time of the day that does not come, in seconds: year 2200.
const NEVER: i64 = 7_258_118_400;

impl Engine {
    /// Queues all schedules whenever the clock was set, forever.
    pub(crate) async fn follow_clock(&self) {
        loop {
            match changed().await {
                Ok(()) => tracing::info!("clock was set; schedules look at it again"),
                Err(error) => {
                    tracing::warn!(error = %error, "changes of the clock cannot be watched; schedules look at it every 5 minutes");
                    sleep(self.shared.time_lapse(LOOK)).await;
                }
            }
            let schedules = |record: &Record| matches!(record.body, Body::Schedule(_));
            for key in self.shared.keys_of(schedules) {
                self.shared.queue.add(&key, Instant::now());
            }
        }
    }
}

/// Waits until the clock is set.
async fn changed() -> io::Result<()> {
    let timer = watched()?;
    loop {
        let mut ready = timer.readable().await?;
        match ready.get_inner().read(&mut [0; 8]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            // Cancelled by the change.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => return Ok(()),
            other => return other.map(drop),
        }
    }
}

/// A timer that is cancelled when the clock is set.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for descriptors that change; that of a timer never does"
)]
fn watched() -> io::Result<AsyncFd<File>> {
    let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
    let timer = TimerFd::new(ClockId::CLOCK_REALTIME, flags)?;
    let until_set =
        TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
    timer.set(Expiration::OneShot(TimeSpec::new(NEVER, 0)), until_set)?;
    AsyncFd::with_interest(File::from(OwnedFd::from(timer)), Interest::READABLE)
}
