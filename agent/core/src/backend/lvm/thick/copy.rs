//! Fills thick volumes before they are visible: with the bytes of a snapshot, and with zeros behind those, so that
//! they never expose former contents of their extents.
//!
//! The tags of the volume record its source and the progress. The copy continues when its caller goes away; after a
//! restart of the agent it resumes at the recorded position when the call is repeated.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use crate::{
    Error, Kind, Result,
    backend::lvm::{
        Health, ImageSpec, Lvm, OwnVolume, Thick, Wipe,
        tags::{self, Tags},
        temporary_snapshot_of,
        thick::{volumes::is_shown, wipe::stopped},
    },
    backend::{Job, Origin, encrypted::header_of},
    blocking, fail,
    host::block_copy,
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
                (source == origin, self.copy_source(now, found).is_ok())
            }
            _ => (false, false),
        };
        let unit = self
            .sizes(now.extent_size)
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
    pub(crate) fn copy_source<'a>(
        &'a self,
        now: &'a GroupMetadata,
        found: &OwnVolume<'_>,
    ) -> Result<(&'a LogicalVolume, u64)> {
        let own = now.volumes.get(&temporary_snapshot_of(found.tags.id));
        let source = found.tags.source;
        let given = source.and_then(|id| self.find(now, id));
        let snapshot = own
            .or(given.map(|given| given.volume))
            .filter(|snapshot| matches!(snapshot.kind, VolumeKind::Snapshot { .. }));
        let size = snapshot.and_then(|snapshot| Tags::read(&snapshot.tags)?.size);
        let (Some(snapshot), Some(size)) = (snapshot, size) else {
            return Err(Error::new(
                Kind::HalfDone,
                format!("the source of copy {} no longer exists", found.tags.id),
            ));
        };
        match self.snapshot_health(now, snapshot)? {
            Health::Damaged(fault) => Err(Error::new(
                Kind::NoSpace,
                format!("{} cannot be copied: {}", found.tags.id, fault.message),
            )),
            _ => Ok((snapshot, size)),
        }
    }

    /// Fills an image whose creation has begun, and makes it visible. Idempotent: a complete image is left unchanged.
    pub(crate) async fn fill(&self, thick: &Thick, spec: &ImageSpec) -> Result<()> {
        let result = self.fill_with(spec, thick).await;
        // Disks that do not answer temporarily are no reason to start over.
        if let Err(error) = &result
            && !matches!(error.kind(), Kind::HalfDone | Kind::Busy)
        {
            self.discard(spec.id).await?;
        }
        result
    }

    async fn fill_with(&self, spec: &ImageSpec, thick: &Thick) -> Result<()> {
        // What an encrypted volume never wrote, nobody can read through it.
        let wipe = match header_of(&spec.labels) {
            Some(_) => Wipe::None,
            None => thick.wipe,
        };
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
            let snapshot = match found.tags.source {
                Some(_) => Some(self.copy_source(&now, &found)?),
                None => None,
            };
            let size = snapshot.map_or(0, |(_, size)| size.min(end));
            let until = Instant::now() + NOTED;
            let done = match snapshot {
                Some((snapshot, _)) if at < size => {
                    let reached = self.copy(&now, &found, snapshot, at..size, until).await;
                    // It may have overflowed after the last byte was read; that would explain read errors, too.
                    self.copy_source(&now, &found)?;
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
                self.record_progress(&found, at).await?;
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
        snapshot: &LogicalVolume,
        span: Range<u64>,
        until: Instant,
    ) -> Result<u64> {
        let source = self.activate(now, snapshot).await?;
        let target = self.activate(now, found.volume).await?;
        let id = found.tags.id;
        let progress = self.running.begin(id, Job::Copying, span.clone());
        blocking(move || {
            block_copy::copy(&source, &target, span, &mut |at| {
                fail::point("thick.copy.step");
                progress.tell(at, until)
            })
        })
        .await
    }

    /// Records the progress on disk.
    async fn record_progress(&self, found: &OwnVolume<'_>, reached: u64) -> Result<()> {
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
        let (old, new) = (found.tags.write(), self.tags(spec).write());
        let (name, id) = (found.volume.name.clone(), found.tags.id);
        let command = tags::changed(&old, &new)
            .words([self.group.path(&name)])
            .done_when(is_shown(name));
        self.group.change(vec![command]).await?;
        if let Some(snapshot) = now.volumes.get(&temporary_snapshot_of(id))
            && let Err(error) = self.free(thick, snapshot).await
        {
            // The copy is complete. Its temporary snapshot is removed at the next start, or with its origin.
            tracing::warn!(image = %id, error = %error.chain(), "temporary snapshot of a copy not removed");
        }
        Ok(())
    }
}
