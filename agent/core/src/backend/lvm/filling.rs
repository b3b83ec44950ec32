//! Copies of thick volumes: bytes go from a moment that is held, a snapshot, to a volume that nobody sees yet.
//!
//! The tags of the volume say what it is filled with and how far. A copy goes on whatever becomes of its caller; one that
//! ended with its agent goes on where it was when it is asked for again.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    Health, ImageSpec, Lvm, Ours, Volumes, Wipe,
    metadata::{LogicalVolume, VolumeGroup, VolumeKind},
    moment_of,
    program::Command,
    tags::{self, Tags},
    wiping::stopped,
};
use crate::{Error, Kind, Result, backend::Origin, blocking, fail, host::fill, types::ImageId};

/// So often it is noted on the disk how far a copy is.
const NOTED: Duration = Duration::from_secs(30);

impl Lvm {
    /// Whether an unfinished image is on its way to being what is asked for.
    pub(super) fn can_go_on(&self, now: &VolumeGroup, found: &Ours<'_>, spec: &ImageSpec) -> bool {
        let is_same = found
            .tags
            .source
            .is_some_and(|source| spec.origin == Origin::CopyOf(source));
        let unit = self.sizes(now).map(|sizes| sizes.unit).unwrap_or_default();
        let size = spec.size.round_up(unit).unwrap_or(spec.size);
        is_same
            && found.tags.copied.is_some()
            && now.bytes(found.volume) == size.bytes()
            && self.moment(now, found).is_ok()
    }

    /// The snapshot that an unfinished image is filled from, and how many bytes it shows.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when it could not hold what was changed since.
    pub(super) fn moment<'a>(
        &'a self,
        now: &'a VolumeGroup,
        found: &Ours<'_>,
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
                format!("what {} is copied from is gone", found.tags.id),
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

    /// Fills an image whose making was begun, and shows it. One that is finished stays as it is.
    pub(super) async fn fill(&self, spec: &ImageSpec) -> Result<()> {
        let Volumes::Thick(thick) = &self.settings.volumes else {
            return Ok(());
        };
        let result = self.fill_with(spec, thick.wipe).await;
        if let Err(error) = &result
            && error.kind() != Kind::HalfDone
        {
            self.discard(spec.id).await?;
        }
        result
    }

    async fn fill_with(&self, spec: &ImageSpec, wipe: Wipe) -> Result<()> {
        loop {
            let now = self.group.now().await?;
            let found = self
                .find(&now, spec.id)
                .ok_or_else(|| Error::new(Kind::HalfDone, format!("{} was removed", spec.id)))?;
            if !found.tags.is_undone {
                return Ok(());
            }
            let at = found.tags.copied.unwrap_or(0);
            let (moment, size) = self.moment(&now, &found)?;
            if at < size {
                let source = self.activate(&now, moment).await?;
                let target = self.activate(&now, found.volume).await?;
                let progress = self.running.begin(spec.id, What::Copying, size);
                let until = Instant::now() + NOTED;
                let reached = blocking(move || {
                    fill::copy(&source, &target, at..size, &mut |at| {
                        progress.tell(at);
                        fail::point("lvm.copy.step");
                        if progress.must_stop() || Instant::now() > until {
                            ControlFlow::Break(())
                        } else {
                            ControlFlow::Continue(())
                        }
                    })
                })
                .await?;
                // It may have overflowed behind the last byte that was read.
                self.moment(&now, &found)?;
                if reached < size {
                    self.note(&found, at, reached).await?;
                    if self.running.is_stopping() {
                        return Err(stopped(spec.id));
                    }
                    continue;
                }
            }
            let end = now.bytes(found.volume);
            if size < end {
                let target = self.activate(&now, found.volume).await?;
                self.wipe(spec.id, wipe, target, size..end).await?;
            }
            fail::point("lvm.copy.copied");
            return self.show(&now, &found, spec).await;
        }
    }

    /// Notes how far a copy is.
    async fn note(&self, found: &Ours<'_>, before: u64, reached: u64) -> Result<()> {
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

    /// Shows a copy that is complete, with the labels of the last one who asked for it, and lets go of its moment.
    async fn show(&self, now: &VolumeGroup, found: &Ours<'_>, spec: &ImageSpec) -> Result<()> {
        let old = found.tags.write();
        let new = self.tags(spec).write();
        let gone = old.iter().filter(|tag| !new.contains(tag));
        let added = new.iter().filter(|tag| !old.contains(tag)).cloned();
        let (name, id) = (found.volume.name.clone(), found.tags.id);
        let mut commands = vec![
            Command::new("lvchange")
                .words(gone.flat_map(|tag| ["--deltag".to_owned(), tag.clone()]))
                .add_tags(added)
                .words([self.group.path(&name)])
                .done_when(move |now| {
                    let volume = now.volumes.get(&name);
                    let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                    tags.is_some_and(|tags| !tags.is_undone)
                }),
        ];
        let moment = now.volumes.get(&moment_of(id));
        commands.extend(moment.map(|moment| self.removal(moment)));
        self.group.change(commands).await
    }
}

/// What takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The bytes of a moment are copied.
    Copying,
    /// The bytes of former volumes are wiped.
    Wiping,
}

/// What each is done with, and how far it is, in bytes.
type All = Arc<Mutex<HashMap<ImageId, (What, u64, u64)>>>;

/// What takes long and runs now, and whether it should end.
#[derive(Debug, Default)]
pub(super) struct Running {
    all: All,
    is_stopping: Arc<AtomicBool>,
}

/// One of those, until it is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    id: ImageId,
    all: All,
    is_stopping: Arc<AtomicBool>,
}

impl Running {
    /// Something begins that is done with so many bytes.
    pub(super) fn begin(&self, id: ImageId, what: What, bytes: u64) -> Progress {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(id, (what, 0, bytes));
        Progress {
            id,
            all: Arc::clone(&self.all),
            is_stopping: Arc::clone(&self.is_stopping),
        }
    }

    /// How far it is, for people.
    pub(super) fn describe(&self, id: ImageId) -> Option<String> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (what, done, bytes) = all.get(&id)?;
        let what = match what {
            What::Copying => "copying",
            What::Wiping => "wiping",
        };
        let part = done.saturating_mul(100) / bytes.max(&1);
        Some(format!("{what}, {part} % of {bytes} bytes"))
    }

    /// Whether it runs.
    pub(super) fn has(&self, id: ImageId) -> bool {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.contains_key(&id)
    }

    /// Ends all at the next step.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}

impl Progress {
    /// So far it is, in bytes.
    pub(super) fn tell(&self, at: u64) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, done, _)) = all.get_mut(&self.id) {
            *done = at;
        }
    }

    /// The agent ends.
    pub(super) fn must_stop(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.id);
    }
}
