//! What ends in the trash by itself: what has been there for long enough, and what takes room that is needed.
//!
//! **Invariant:** a volume goes before its time only after a warning that names it, the oldest first, and not in vain: if
//! the whole trash were not enough, by what its class says of its room, nothing goes.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use crate::ops::{Class, Operations, trash::deleted};
use crate::{
    Kind, Result,
    backend::{Family, Image},
    fail,
    types::{Handle, ImageKind, Size},
};

/// Time after the start, or after a jump of the clock, in which nothing ends by its age: the clock of a host may be wrong
/// until it has asked others.
const DOUBT: Duration = Duration::from_mins(10);
/// A difference between the clock and the time that has passed that is a jump.
const JUMP: Duration = Duration::from_mins(5);

/// What the regular look at the trash remembers from one time to the next.
#[derive(Debug)]
pub struct TrashWatch {
    /// When the clock was compared with the time that passes.
    compared: (Instant, SystemTime),
    /// Nothing ends by its age before.
    doubted_until: Instant,
    /// The volumes of which it was said that they go early.
    announced: BTreeSet<Handle>,
}

impl Default for TrashWatch {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            compared: (now, fail::now()),
            doubted_until: now + fail::time_lapse(DOUBT),
            announced: BTreeSet::new(),
        }
    }
}

impl TrashWatch {
    /// Returns true if the clock can be believed.
    fn believes(&mut self, now: Instant, clock: SystemTime) -> bool {
        let (then, before) = self.compared;
        self.compared = (now, clock);
        let passed = fail::clock_time(now.duration_since(then));
        let shown = clock.duration_since(before);
        let is_jump = shown.map_or(true, |shown| shown > passed + JUMP);
        if is_jump {
            tracing::warn!(
                "the clock has jumped; for a while nothing in the trash ends by its age"
            );
            self.doubted_until = now + fail::time_lapse(DOUBT);
        }
        now >= self.doubted_until
    }
}

impl Operations {
    /// Looks at the trash of all classes, as is to be done once a minute: destroys what has been there for as long as its
    /// class keeps it, and in a class that is fuller than it may be what is oldest, one look after a warning.
    pub async fn tidy_trash(self: &Arc<Self>, watch: &mut TrashWatch) {
        let clock = fail::now();
        let believes = watch.believes(Instant::now(), clock);
        let mut announced = BTreeSet::new();
        for (class, images) in self.of_each_class(oldest_first).await {
            // A class that cannot be read is reported elsewhere.
            let Ok(images) = images else { continue };
            let keep = class.trash_policy().keep;
            let is_over = |image: &Image| {
                let age = clock.duration_since(deleted(image));
                believes && age.is_ok_and(|age| age >= keep)
            };
            let (over, rest): (Vec<_>, Vec<_>) = images.into_iter().partition(is_over);
            for image in over {
                self.end(&class, &image).await;
            }
            if let Some(image) = self.too_full(&class, rest).await {
                let handle = self.handle_in(&class, image.id);
                if watch.announced.contains(&handle) {
                    self.end(&class, &image).await;
                } else {
                    tracing::warn!(trash.id = %handle, class = %class.name, bytes = image.size.bytes(), "class fuller than its trash.maxFill: this volume in its trash is destroyed at the next look, a minute from now; undelete it to keep it");
                    announced.insert(handle);
                }
            }
        }
        watch.announced = announced;
    }

    /// The oldest image in the trash of a class that is too full.
    async fn too_full(&self, class: &Class, images: Vec<Image>) -> Option<Image> {
        let limit = class.trash_policy().max_fill?;
        let oldest = images.into_iter().next()?;
        let used = class.backend.utilization().await.ok()?;
        let fill = used.space.data_percent?;
        (fill >= limit).then_some(oldest)
    }

    async fn end(self: &Arc<Self>, class: &Class, image: &Image) {
        if let Err(error) = self.destroy_in_trash(class, image.id).await
            && error.kind() != Kind::Busy
        {
            let handle = self.handle_in(class, image.id);
            tracing::warn!(trash.id = %handle, error = %error.chain(), "volume stays in the trash");
        }
    }

    /// Runs a step that needs room in a class. While there is none, the oldest volume in its trash is destroyed, if that
    /// can help.
    ///
    /// # Errors
    /// Those of the step.
    pub(crate) async fn with_room<T, F>(
        self: &Arc<Self>,
        class: &Class,
        needed: Size,
        step: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            match step().await {
                Err(error) if error.kind() == Kind::NoSpace => {
                    if !self.make_room(class, needed).await {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Destroys the oldest volume in the trash of a class; returns false if that would not help.
    async fn make_room(self: &Arc<Self>, class: &Class, needed: Size) -> bool {
        let backend = &class.backend;
        let Ok(images) = oldest_first(class.clone()).await else {
            return false;
        };
        let mut room = match backend.capacity().await {
            Ok(capacity) => capacity.largest.bytes(),
            Err(_) => return false,
        };
        for image in &images {
            let frees = match backend.family() {
                // A file takes the blocks that were written.
                Family::Directory => backend.usage(image.id).await.ok().flatten(),
                Family::Lvm => Some(image.size.bytes()),
            };
            room = room.saturating_add(frees.unwrap_or(0));
        }
        if room < needed.bytes() {
            return false;
        }
        for image in images {
            let handle = self.handle_in(class, image.id);
            tracing::warn!(trash.id = %handle, class = %class.name, bytes = image.size.bytes(), "room is needed: this volume in the trash is destroyed before its time");
            match self.destroy_in_trash(class, image.id).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::warn!(trash.id = %handle, error = %error.chain(), "volume stays in the trash");
                }
            }
        }
        false
    }
}

/// The trash of a class, what goes first before the rest.
async fn oldest_first(class: Class) -> Result<Vec<Image>> {
    let mut images = class.backend.list(ImageKind::Trash).await?;
    images.sort_by_key(|image| (deleted(image), image.id));
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_is_not_believed_for_a_while() {
        let mut watch = TrashWatch::default();
        let (start, clock) = watch.compared;
        let at = |passed: u64, shown: u64| {
            (
                start + Duration::from_secs(passed),
                clock + Duration::from_secs(shown),
            )
        };
        for (passed, shown, believes) in [
            // Too early.
            (60, 60, false),
            (660, 660, true),
            (720, 725, true),
            // A year ahead.
            (780, 31_536_000, false),
            (840, 31_536_060, false),
            (1500, 31_536_720, true),
            // And back.
            (1560, 1560, false),
            (2220, 2220, true),
        ] {
            let (now, clock) = at(passed, shown);
            assert_eq!(watch.believes(now, clock), believes, "{passed} s");
        }
    }
}
