//! Bytes of former volumes: gone before anybody sees them.
//!
//! A new volume is wiped before it is shown (see [`super::filling`]). The end of one that grows has a tag that says from
//! where on it is not clean yet: the tag is there before the extents are, and is taken away only when they are wiped;
//! nobody gets their device before.

use std::{
    fs::File,
    ops::{ControlFlow, Range},
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::fcntl::Flock;

use super::{
    Lvm, Volumes, Wipe,
    filling::{Progress, What},
    group::Group,
    metadata::{Area, LogicalVolume, VolumeGroup, VolumeKind},
    node,
    program::Command,
    tags::{self, Tags},
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        device_mapper::{Line, SECTOR},
        fill,
        udev::Visibility,
    },
    types::ImageId,
};

/// So long others may take LVM's lock between two steps.
const BETWEEN: Duration = Duration::from_millis(2);

/// Longer than any disk takes.
const FOREVER: Duration = Duration::from_hours(10_000);

/// What the devices are called through which extents are reached that no volume's device has yet.
pub(super) const HIDDEN: &str = "DRUMLIN-";

impl Group {
    /// The length of a device, in bytes.
    fn length(&self, uuid: &str) -> Result<u64> {
        let table = self.mapper()?.table(uuid)?;
        let sectors: u64 = table.iter().map(|line| line.length).sum();
        Ok(sectors * SECTOR)
    }
}

impl Lvm {
    /// Wipes what an image shows of former volumes, if it shows any.
    pub(super) async fn clean(&self, id: ImageId) -> Result<()> {
        let Volumes::Thick(thick) = &self.settings.volumes else {
            return Ok(());
        };
        let now = self.group.now().await?;
        let Some(found) = self.find(&now, id).filter(|found| !found.tags.is_undone) else {
            return Ok(());
        };
        let Some(from) = found.tags.clean else {
            return Ok(());
        };
        let volume = found.volume;
        let end = now.bytes(volume);
        if thick.wipe != Wipe::None && from < end {
            // A volume without a device gets none for this: whoever looks at all new devices would see what is to be
            // wiped, and an array that a former tenant had there would be assembled.
            let mut seen = from;
            if let Some(device) = self.device(&now, volume)? {
                seen = self.group.length(&device.uuid)?;
                if from < seen {
                    let device = node(device).await?;
                    self.wipe(id, thick.wipe, device, from..seen.min(end))
                        .await?;
                }
            }
            if seen < end {
                self.wipe_hidden(id, thick.wipe, &now, volume, from.max(seen))
                    .await?;
            }
        }
        fail::point("thick.clean.wiped");
        let uuid = volume.uuid.clone();
        let path = self.group.path(&volume.name);
        let mut commands = vec![
            Command::new("lvchange")
                .words(["--deltag", &tags::clean(from), &path])
                .done_when(move |now| {
                    let mut volumes = now.volumes.values();
                    let volume = volumes.find(|volume| volume.uuid == uuid);
                    let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                    tags.is_none_or(|tags| tags.clean.is_none())
                }),
        ];
        commands.extend(self.refresh_if_short(&now, volume)?);
        if volume.is_complete && now.snapshots_of(volume).next().is_some() {
            // With snapshots a growth takes the device away, and one that was cut off has not given it back.
            self.activate(&now, volume).await?;
        }
        self.group.change(commands).await
    }

    /// The command that gives a device the length that the metadata says, when it is shorter.
    pub(super) fn refresh_if_short(
        &self,
        now: &VolumeGroup,
        volume: &LogicalVolume,
    ) -> Result<Option<Command>> {
        // That of an old-style snapshot is as long as its volume was; the metadata tells the length of its store.
        if matches!(volume.kind, VolumeKind::Snapshot { .. }) {
            return Ok(None);
        }
        let Some(device) = self.device(now, volume)? else {
            return Ok(None);
        };
        if self.group.length(&device.uuid)? >= now.bytes(volume) {
            return Ok(None);
        }
        let (group, wanted) = (Arc::clone(&self.group), now.bytes(volume));
        let command = Command::new("lvchange")
            .words(["--refresh", &self.group.path(&volume.name)])
            .done_when(move |_| {
                let length = group.length(&device.uuid);
                length.is_ok_and(|length| length >= wanted)
            });
        Ok(Some(command))
    }

    /// Wipes a stretch of a device, in bytes.
    pub(super) async fn wipe(
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

    /// The same until it is done, the time is over or the agent ends; says how far it came.
    pub(super) async fn wipe_until(
        &self,
        id: ImageId,
        wipe: Wipe,
        device: PathBuf,
        span: Range<u64>,
        until: Instant,
    ) -> Result<u64> {
        self.wipe_while(id, wipe, device, span, move |progress, at| {
            fail::point("thick.wipe.step");
            progress.tell(at, until)
        })
        .await
    }

    /// The same as long as `goes_on` says so, which is asked after each step.
    async fn wipe_while(
        &self,
        id: ImageId,
        wipe: Wipe,
        device: PathBuf,
        span: Range<u64>,
        mut goes_on: impl FnMut(&Progress, u64) -> ControlFlow<()> + Send + 'static,
    ) -> Result<u64> {
        let progress = self.running.begin(id, What::Wiping, span.end);
        blocking(move || {
            let mut step = |at| goes_on(&progress, at);
            match wipe {
                Wipe::Zero => fill::zero(&device, span, &mut step),
                Wipe::Discard => fill::discard(&device, span, &mut step),
                Wipe::None => Ok(span.end),
            }
        })
        .await
    }

    /// Wipes the extents that a volume has from so many bytes on, and that its device does not have yet. LVM does not know
    /// that they are used: when somebody has moved them or taken them away they may be another volume's, so each step is
    /// done under its lock.
    async fn wipe_hidden(
        &self,
        id: ImageId,
        wipe: Wipe,
        now: &VolumeGroup,
        volume: &LogicalVolume,
        from: u64,
    ) -> Result<()> {
        let lines = self.hidden(now, volume, from)?;
        let length: u64 = lines.iter().map(|line| line.length * SECTOR).sum();
        let uuid = format!("{HIDDEN}{}{}", now.uuid, volume.uuid);
        let _hand = self.group.in_hand.take(uuid.clone());
        let group = Arc::clone(&self.group);
        let name = format!("drumlin-{}", volume.uuid);
        let (known, made) = (uuid.clone(), lines);
        let device = blocking(move || {
            let mapper = group.mapper()?;
            if mapper.find(&known)?.is_some() {
                mapper.remove(&known)?;
            }
            mapper.create(&name, &known, &made, Visibility::Hidden)
        })
        .await?;
        fail::point("thick.clean.hidden");
        let path = PathBuf::from(format!("/dev/dm-{}", device.number.minor));
        let (extents, group) = (from / now.extent, Arc::clone(&self.group));
        let turn = Turn {
            group,
            of: volume.uuid.clone(),
            extents,
            areas: now.areas_behind(volume, extents),
            lock: None,
        };
        let first = blocking(move || {
            let mut turn = turn;
            turn.begin().map(|goes_on| goes_on.then_some(turn))
        })
        .await;
        let wiped = match first {
            Ok(Some(mut turn)) => {
                self.wipe_while(id, wipe, path, 0..length, move |progress, at| {
                    turn.end();
                    fail::point("thick.wipe.step");
                    // Who waits for the lock has it first.
                    thread::sleep(BETWEEN);
                    // What the lock cannot be had for is what changes the group.
                    let goes_on = progress.goes_on(at) && turn.begin().unwrap_or(false);
                    fail::point("thick.wipe.locked");
                    if goes_on {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })
                .await
            }
            Ok(None) => Ok(0),
            Err(error) => Err(error),
        };
        let wiped = wiped.and_then(|reached| match reached == length {
            true => Ok(()),
            false if self.running.is_stopping() => Err(stopped(id)),
            false => Err(Error::new(
                Kind::Busy,
                format!("somebody else changes {id} while its end is wiped; ask again"),
            )),
        });
        let group = Arc::clone(&self.group);
        let removed = blocking(move || group.mapper()?.remove(&uuid)).await;
        wiped.and(removed)
    }

    /// The extents of disks that the end of a volume lies on, one line each.
    fn hidden(&self, now: &VolumeGroup, volume: &LogicalVolume, from: u64) -> Result<Vec<Line>> {
        if let Some(layer) = now.layer_of(volume) {
            let path = self.group.path(&volume.name);
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "the end of {path} is not wiped yet, and the layer of type {layer} over it has not its length; run lvchange -an {path} while nobody uses it, and ask again"
                ),
            ));
        }
        let mut lines: Vec<Line> = Vec::new();
        let mut start = 0;
        for area in now.areas_behind(volume, from / now.extent) {
            let known = now.disks.get(&area.disk);
            let path = known.and_then(|disk| self.group.disk(&disk.uuid));
            let (Some(known), Some(path)) = (known, path) else {
                return Err(Error::new(
                    Kind::Precondition,
                    format!("a disk of volume group {} is missing", now.name),
                ));
            };
            let length = area.count * now.extent / SECTOR;
            lines.push(Line {
                start,
                length,
                kind: "linear".to_owned(),
                words: format!(
                    "{} {}",
                    path.display(),
                    (known.start + area.start * now.extent) / SECTOR
                ),
            });
            start += length;
        }
        Ok(lines)
    }
}

/// Extents that are a volume's own for as long as LVM's lock of the group is held. Nobody moves them or takes them away
/// meanwhile, so no write goes to what is another one's by now.
struct Turn {
    group: Arc<Group>,
    /// The volume's uuid.
    of: String,
    /// Those behind its first so many.
    extents: u64,
    areas: Vec<Area>,
    lock: Option<Flock<File>>,
}

impl Turn {
    /// Takes the lock: whether the extents are the volume's own still.
    fn begin(&mut self) -> Result<bool> {
        self.lock = Some(self.group.lock()?);
        let Some(now) = self.group.read_known() else {
            return Ok(false);
        };
        let volume = now.volumes.values().find(|volume| volume.uuid == self.of);
        Ok(volume.is_some_and(|volume| now.areas_behind(volume, self.extents) == self.areas))
    }

    fn end(&mut self) {
        self.lock = None;
    }
}

/// The error of what ends because the agent does.
pub(super) fn stopped(id: ImageId) -> Error {
    Error::new(
        Kind::HalfDone,
        format!("the agent is shutting down; {id} goes on when it is asked for again"),
    )
}
