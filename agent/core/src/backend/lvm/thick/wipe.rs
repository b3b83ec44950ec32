//! Wiping the data of former volumes before it can become visible.
//!
//! A new volume is wiped before it is visible (see [`super::copy`]), and the extents of an extension before they
//! become part of the volume (see [`super::ends`]).

use std::{
    ops::Range,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::{
    Error, Kind, Result,
    backend::{
        Job,
        lvm::{Lvm, Wipe},
    },
    blocking, fail,
    host::block_copy,
    types::ImageId,
};

/// No time limit: longer than any disk takes.
const FOREVER: Duration = Duration::from_hours(10_000);

impl Lvm {
    /// Wipes a range of a device, in bytes.
    pub(crate) async fn wipe(
        &self,
        id: ImageId,
        wipe: Wipe,
        device: PathBuf,
        span: Range<u64>,
    ) -> Result<()> {
        let (end, until) = (span.end, Instant::now() + FOREVER);
        let reached = self.wipe_until(id, wipe, device, span, until).await?;
        if reached < end {
            return Err(stopped(id));
        }
        Ok(())
    }

    /// Wipes until the range is complete, the time limit is reached or the agent stops; returns the position reached.
    pub(crate) async fn wipe_until(
        &self,
        id: ImageId,
        wipe: Wipe,
        device: PathBuf,
        span: Range<u64>,
        until: Instant,
    ) -> Result<u64> {
        let progress = self.running.begin(id, Job::Wiping, span.clone());
        blocking(move || {
            let mut step = |at| {
                fail::point("thick.wipe.step");
                progress.tell(at, until)
            };
            match wipe {
                Wipe::Zero => block_copy::zero(&device, span, &mut step),
                Wipe::Discard => block_copy::discard(&device, span, &mut step),
                Wipe::None => Ok(span.end),
            }
        })
        .await
    }
}

/// The error when the agent stops during an operation.
pub(crate) fn stopped(id: ImageId) -> Error {
    Error::new(
        Kind::HalfDone,
        format!("the agent is shutting down; the work on {id} continues when the call is repeated"),
    )
}
