//! Fills thick volumes before they are visible: with the bytes of a snapshot, and with zeros behind those, so that
//! they never expose former contents of their extents.
//!
//! The tags of the volume record its source and the progress. The copy continues when its caller goes away; after a
//! restart of the agent it resumes at the recorded position when the call is repeated.

use std::{
    collections::HashMap,
    ops::{ControlFlow, Range},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_lvm::{
    command::Command,
    in_flight::InFlightGuard,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use crate::backend::lvm::{
    Health, ImageSpec, Lvm, OwnVolume, Thick, Wipe, moment_of,
    tags::{self, Tags},
    thick::{volumes::is_shown, wipe::stopped},
};
use crate::{
    Error, Kind, Result, backend::Origin, blocking, fail, host::block_copy, types::ImageId,
};

/// Interval at which the progress is recorded on disk.
const NOTED: Duration = Duration::from_secs(30);

impl Lvm {
    /// Returns true if an incomplete image can become what the specification asks for.
    pub(crate) fn can_go_on(
        &self,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
        spec: &ImageSpec,
    ) -> bool {
        let (is_same, has_source) = match (found.tags.source, spec.origin) {
            (None, Origin::Blank) => (true, true),
            (Some(source), Origin::CopyOf(origin)) => {
                (source == origin, self.moment(now, found).is_ok())
            }
            _ => (false, false),
        };
        let unit = self
            .sizes(now.extent)
            .map(|sizes| sizes.unit)
            .unwrap_or_default();
        let size = spec.size.round_up(unit).unwrap_or(spec.size);
        is_same
            && has_source
            && found.tags.copied.is_some()
            && now.bytes(found.volume) == size.bytes()
    }

    /// The snapshot that an incomplete image is copied from, and the size that it shows in bytes.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when its exception store overflowed.
    pub(crate) fn moment<'a>(
        &'a self,
        now: &'a GroupMetadata,
        found: &OwnVolume<'_>,
    ) -> Result<(&'a LogicalVolume, u64)> {
        let own = now.volumes.get(&moment_of(found.tags.id));
        let source = found.tags.source;
        let given = source.and_then(|id| self.find(now, id));
        let moment = own
            .or(given.map(|given| given.volume))
            .filter(|moment| matches!(moment.kind, VolumeKind::Snapshot { .. }));
        let size = moment.and_then(|moment| Tags::read(&moment.tags)?.size);
        let (Some(moment), Some(size)) = (moment, size) else {
            return Err(Error::new(
                Kind::HalfDone,
                format!("the source of copy {} no longer exists", found.tags.id),
            ));
        };
        match self.snapshot_health(now, moment)? {
            Health::Damaged(why) => Err(Error::new(
                Kind::NoSpace,
                format!("{} cannot be copied: {why}", found.tags.id),
            )),
            _ => Ok((moment, size)),
        }
    }

    /// Fills an image whose creation has begun, and makes it visible. Idempotent: a complete image is left unchanged.
    pub(crate) async fn fill(&self, thick: &Thick, spec: &ImageSpec) -> Result<()> {
        let _hand = self.unfilled().remove(&spec.id);
        let result = self.fill_with(spec, thick).await;
        // Disks that do not answer temporarily are no reason to start over.
        if let Err(error) = &result
            && !matches!(error.kind(), Kind::HalfDone | Kind::Busy)
        {
            self.discard(spec.id).await?;
        }
        result
    }

    /// The images whose creation has begun and that are not filled yet.
    pub(crate) fn unfilled(&self) -> MutexGuard<'_, HashMap<ImageId, InFlightGuard>> {
        self.unfilled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fill_with(&self, spec: &ImageSpec, thick: &Thick) -> Result<()> {
        let wipe = thick.wipe;
        let now = self.group.now().await?;
        let mut at = match self.find(&now, spec.id) {
            Some(found) if found.tags.is_incomplete => found.tags.copied.unwrap_or(0),
            _ => return Ok(()),
        };
        loop {
            let now = self.group.now().await?;
            let found = self.find(&now, spec.id).ok_or_else(|| {
                Error::new(
                    Kind::HalfDone,
                    format!("{} was removed while it was being copied", spec.id),
                )
            })?;
            let end = now.bytes(found.volume);
            let moment = match found.tags.source {
                Some(_) => Some(self.moment(&now, &found)?),
                None => None,
            };
            let size = moment.map_or(0, |(_, size)| size.min(end));
            let until = Instant::now() + NOTED;
            let done = match moment {
                Some((moment, _)) if at < size => {
                    let reached = self.copy(&now, &found, moment, at..size, until).await;
                    // It may have overflowed after the last byte was read; that would explain read errors, too.
                    self.moment(&now, &found)?;
                    at = reached?;
                    at >= size
                }
                _ if at < end && wipe != Wipe::None => {
                    let target = self.activate(&now, found.volume).await?;
                    at = self
                        .wipe_until(spec.id, wipe, target, at..end, until)
                        .await?;
                    at >= end
                }
                _ => {
                    fail::point("thick.copy.filled");
                    return self.show(&now, &found, spec, thick).await;
                }
            };
            if !done {
                self.note(&found, at).await?;
                if self.running.is_stopping() {
                    return Err(stopped(spec.id));
                }
            }
        }
    }

    /// Copies until the copy is complete, the time limit is reached or the agent stops; returns the position reached.
    async fn copy(
        &self,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
        moment: &LogicalVolume,
        span: Range<u64>,
        until: Instant,
    ) -> Result<u64> {
        let source = self.activate(now, moment).await?;
        let target = self.activate(now, found.volume).await?;
        let progress = self.running.begin(found.tags.id, What::Copying, span.end);
        blocking(move || {
            block_copy::copy(&source, &target, span, &mut |at| {
                fail::point("thick.copy.step");
                progress.tell(at, until)
            })
        })
        .await
    }

    /// Records the progress on disk.
    async fn note(&self, found: &OwnVolume<'_>, reached: u64) -> Result<()> {
        let before = found.tags.copied.unwrap_or(0);
        if before == reached {
            return Ok(());
        }
        let path = self.group.path(&found.volume.name);
        let command = Command::new("lvchange")
            .words(["--deltag", &tags::copied(before)])
            .add_tags([tags::copied(reached)])
            .words([path]);
        self.group.change(vec![command]).await
    }

    /// Makes a complete copy visible, with the labels of the latest request, and removes its temporary snapshot.
    async fn show(
        &self,
        now: &GroupMetadata,
        found: &OwnVolume<'_>,
        spec: &ImageSpec,
        thick: &Thick,
    ) -> Result<()> {
        let old = found.tags.write();
        let new = self.tags(spec).write();
        let gone = old.iter().filter(|tag| !new.contains(tag));
        let added = new.iter().filter(|tag| !old.contains(tag)).cloned();
        let (name, id) = (found.volume.name.clone(), found.tags.id);
        let command = Command::new("lvchange")
            .words(gone.flat_map(|tag| ["--deltag".to_owned(), tag.clone()]))
            .add_tags(added)
            .words([self.group.path(&name)])
            .done_when(is_shown(name));
        self.group.change(vec![command]).await?;
        if let Some(moment) = now.volumes.get(&moment_of(id))
            && let Err(error) = self.free(thick, moment).await
        {
            // The copy is complete. Its temporary snapshot is removed at the next start, or with its origin.
            tracing::warn!(image = %id, error = %error.chain(), "temporary snapshot of a copy not removed");
        }
        Ok(())
    }
}

/// A long-running operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Copies the bytes of a snapshot.
    Copying,
    /// Wipes the bytes of former volumes.
    Wiping,
    /// Rolls a volume back to one of its snapshots.
    RollingBack,
}

/// The kind, position and total of each operation, in bytes.
type All = Arc<Mutex<HashMap<ImageId, (What, u64, u64)>>>;

/// The long-running operations in flight, and whether they must stop.
#[derive(Debug, Default)]
pub(crate) struct Running {
    all: All,
    is_stopping: Arc<AtomicBool>,
}

/// One of these operations; it ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    id: ImageId,
    all: All,
    is_stopping: Arc<AtomicBool>,
}

impl Running {
    /// Registers an operation over this number of bytes.
    pub(crate) fn begin(&self, id: ImageId, what: What, bytes: u64) -> Progress {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(id, (what, 0, bytes));
        Progress {
            id,
            all: Arc::clone(&self.all),
            is_stopping: Arc::clone(&self.is_stopping),
        }
    }

    /// The progress as text for people.
    pub(crate) fn describe(&self, id: ImageId) -> Option<String> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (what, done, bytes) = all.get(&id)?;
        let what = match what {
            What::Copying => "copying",
            What::Wiping => "wiping",
            What::RollingBack => "rolling back",
        };
        let part = done.saturating_mul(100) / bytes.max(&1);
        Some(format!("{what}, {part} % of {bytes} bytes"))
    }

    /// Stops all operations at their next step.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}

impl Progress {
    /// Reports the position in bytes; returns whether to continue, which is false after the time limit or when the
    /// agent stops.
    pub(crate) fn tell(&self, at: u64, until: Instant) -> ControlFlow<()> {
        if self.goes_on(at) && Instant::now() < until {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    /// Reports the position in bytes; returns true unless the agent stops.
    pub(crate) fn goes_on(&self, at: u64) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, done, _)) = all.get_mut(&self.id) {
            *done = at;
        }
        !self.is_stopping.load(Ordering::Acquire)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.id);
    }
}
