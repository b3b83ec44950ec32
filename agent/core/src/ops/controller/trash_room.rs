//! What ends in the trash by itself: what has been there for long enough, and what takes room that is needed.
//!
//! **Invariant:** a volume goes before its time only after a warning that names it, the oldest first, and not in vain: if
//! the whole trash were not enough, without what it shares with others, nothing goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use crate::ops::{Class, Operations, labels, trash::deleted};
use crate::{
    Error, Kind, Result,
    backend::{Image, LabelChange},
    fail,
    types::{Handle, ImageId, ImageKind, Size},
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
    /// When it was begun, by the clock as it is now. What was thrown away since has its time from that clock.
    since: SystemTime,
    /// Nothing ends by its age before.
    doubted_until: Instant,
    /// The last look.
    last: Look,
}

/// What was said at a look at the trash.
#[derive(Debug, Default)]
struct Look {
    /// The volumes of which it was said that they go early.
    announced: BTreeSet<Handle>,
    /// The volumes that should go and stay, and why.
    stay: BTreeMap<Handle, String>,
}

impl Default for TrashWatch {
    fn default() -> Self {
        let (now, clock) = (Instant::now(), fail::now());
        Self {
            compared: (now, clock),
            since: clock,
            doubted_until: now + fail::time_lapse(DOUBT),
            last: Look::default(),
        }
    }
}

/// A jump of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jump {
    Ahead(Duration),
    Back(Duration),
}

impl Jump {
    /// That of a clock which shows this in place of what it would.
    fn of(shown: SystemTime, expected: SystemTime) -> Option<Self> {
        let jump = match shown.duration_since(expected) {
            Ok(ahead) => Self::Ahead(ahead),
            Err(error) => Self::Back(error.duration()),
        };
        let (Self::Ahead(by) | Self::Back(by)) = jump;
        (by > JUMP).then_some(jump)
    }

    /// A time that the clock showed before, as it would show it now.
    fn apply(self, time: SystemTime) -> SystemTime {
        match self {
            Self::Ahead(by) => time + by,
            Self::Back(by) => time.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

impl TrashWatch {
    /// Compares the clock with the time that has passed. Returns its jump, if any, and since when its times are wrong by
    /// that.
    fn compare(&mut self, now: Instant, clock: SystemTime) -> Option<(Jump, SystemTime)> {
        let (then, before) = self.compared;
        self.compared = (now, clock);
        let passed = fail::clock_time(now.duration_since(then));
        let jump = Jump::of(clock, before + passed)?;
        tracing::warn!("the clock has jumped; for a while nothing in the trash ends by its age");
        self.doubted_until = now + fail::time_lapse(DOUBT);
        let since = self.since;
        self.since = jump.apply(since);
        Some((jump, since))
    }

    /// Returns true if the clock can be believed.
    fn believes(&self, now: Instant) -> bool {
        now >= self.doubted_until
    }
}

impl Operations {
    /// Looks at the trash of all classes, as is to be done once a minute: destroys what has been there for as long as its
    /// class keeps it, and in a class that is fuller than it may be what is oldest, one look after a warning.
    pub async fn tidy_trash(self: &Arc<Self>, watch: &mut TrashWatch) {
        let (now, clock) = (Instant::now(), fail::now());
        if let Some((jump, since)) = watch.compare(now, clock) {
            self.correct_trash(jump, since).await;
        }
        let believes = watch.believes(now);
        let mut look = Look::default();
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
                self.end(&class, &image, (&watch.last, &mut look)).await;
            }
            if self.is_too_full(&class).await {
                let looks = (&watch.last, &mut look);
                self.end_oldest(&class, rest, looks).await;
            }
        }
        watch.last = look;
    }

    /// Destroys the oldest image in the trash of a class that is too full, if the last look announced that; otherwise
    /// announces it. One that cannot be destroyed is not in the way of the next one.
    async fn end_oldest(
        self: &Arc<Self>,
        class: &Class,
        oldest_first: Vec<Image>,
        (last, look): (&Look, &mut Look),
    ) {
        for image in oldest_first {
            let handle = self.handle_in(class, image.id);
            let is_announced = last.announced.contains(&handle);
            let tried = if is_announced {
                self.destroy_in_trash(class, image.id).await
            } else {
                class.backend.check_unbound(image.id).await
            };
            let is_next = tried.is_ok() && !is_announced;
            if is_next {
                tracing::warn!(trash.id = %handle, class = %class.name, bytes = image.size.bytes(), "class fuller than its trash.maxFill: this volume in its trash is destroyed at the next look, a minute from now; undelete it to keep it");
            }
            if is_next || is_announced {
                look.announced.insert(handle);
            }
            match tried {
                // What is being deleted makes room.
                Err(error) if error.kind() != Kind::Busy => {
                    self.say_that_it_stays(class, &image, (last, look), &error);
                }
                _ => return,
            }
        }
    }

    /// Says why an image stays that should go, unless the last look has said that.
    fn say_that_it_stays(
        &self,
        class: &Class,
        image: &Image,
        (last, look): (&Look, &mut Look),
        error: &Error,
    ) {
        let (handle, why) = (self.handle_in(class, image.id), error.chain());
        if last.stay.get(&handle) != Some(&why) {
            tracing::warn!(trash.id = %handle, error = %why, "volume stays in the trash");
        }
        look.stay.insert(handle, why);
    }

    /// Corrects the times of what was thrown away since then by a clock that has jumped: it stays for as long as its class
    /// keeps it, whatever the clock was.
    async fn correct_trash(self: &Arc<Self>, jump: Jump, since: SystemTime) {
        for (class, images) in self.of_each_class(oldest_first).await {
            let images = images.unwrap_or_default().into_iter();
            for image in images.filter(|image| deleted(image) >= since) {
                let time = labels::time(jump.apply(deleted(&image)));
                let change = LabelChange::set(labels::TRASHED, time);
                if let Err(error) = class.backend.relabel(image.id, &change).await {
                    let handle = self.handle_in(&class, image.id);
                    tracing::warn!(trash.id = %handle, error = %error.chain(), "time of deletion not corrected");
                }
            }
        }
    }

    /// Returns true for a class that is fuller than its trash lets it be, and stays so when what is being deleted is gone.
    async fn is_too_full(&self, class: &Class) -> bool {
        let Some(limit) = class.trash_policy().max_fill else {
            return false;
        };
        let used = class.backend.utilization().await;
        let space = used.map(|used| used.space).unwrap_or_default();
        let fill = space.data_percent;
        fill.is_some_and(|fill| fill.saturating_sub(space.deleting_percent) >= limit)
    }

    /// Destroys an image whose time is over.
    async fn end(self: &Arc<Self>, class: &Class, image: &Image, looks: (&Look, &mut Look)) {
        if let Err(error) = self.destroy_in_trash(class, image.id).await
            && error.kind() != Kind::Busy
        {
            self.say_that_it_stays(class, image, looks, &error);
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

    /// Destroys the oldest volume in the trash of a class whose room is needed; returns false if that would not help.
    async fn make_room(self: &Arc<Self>, class: &Class, needed: Size) -> bool {
        let Ok(images) = oldest_first(class.clone()).await else {
            return false;
        };
        if images.is_empty() {
            return false;
        }
        let ids: Vec<ImageId> = images.iter().map(|image| image.id).collect();
        let chosen = match class.backend.room_by_deleting(needed, &ids).await {
            Ok(chosen) => chosen,
            Err(error) => {
                tracing::warn!(class = %class.name, error = %error.chain(), "nothing in the trash is destroyed: what that would free is not known");
                return false;
            }
        };
        for image in images.iter().filter(|image| chosen.contains(&image.id)) {
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
        let second = Duration::from_secs;
        for (passed, shown, jump, believes) in [
            // Too early.
            (60, 60, None, false),
            (660, 660, None, true),
            (720, 725, None, true),
            // A day ahead.
            (780, 87_185, Some(Jump::Ahead(second(86_400))), false),
            (840, 87_245, None, false),
            (1500, 87_905, None, true),
            // And back.
            (1560, 1565, Some(Jump::Back(second(86_400))), false),
            (2220, 2220, None, true),
        ] {
            let now = start + second(passed);
            let found = watch.compare(now, clock + second(shown));
            assert_eq!(found.map(|(jump, _)| jump), jump, "{passed} s");
            assert_eq!(watch.believes(now), believes, "{passed} s");
        }
        assert_eq!(watch.since, clock);
    }
}
