//! Logical volumes that others made: what is known of them, and their adoption, which adds tags to them and nothing
//! else. A volume is found by its tags, so it keeps its name, and everything that names it stays valid.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use drumlin_lvm::{
    command::Command,
    merges::check_no_merge,
    metadata::{GroupMetadata, LogicalVolume, VolumeKind},
};

use super::{
    Lvm,
    class::visible,
    name_of, node,
    tags::{OURS, Tags},
    thin::orphan_thin_devices::is_set_aside,
};
use crate::{
    Error, Kind, Result,
    backend::{
        AdoptionSpec, Change, ForeignVolume, ForeignVolumes, Image, Maker, Selection,
        foreign::not_adoptable,
    },
    blocking, fail,
    host::{MountTable, device_mapper::DeviceMapper, holders},
    types::{ImageId, ImageKind, Size},
};

/// Timeout for programs that open every device briefly (udevd, LVM scans).
const GLANCE: Duration = Duration::from_secs(1);

#[async_trait]
impl ForeignVolumes for Lvm {
    async fn foreign(&self, selection: Selection<'_>) -> Result<Vec<ForeignVolume>> {
        let wanted = match selection {
            Selection::All => None,
            Selection::One(source) => match self.name_in_group(source) {
                Some(name) => Some(name),
                None => return Ok(Vec::new()),
            },
        };
        let now = self.group.now().await?;
        let Some(wanted) = wanted else {
            let mut found = Vec::new();
            for volume in visible(&now).filter(|volume| self.is_candidate(volume)) {
                found.push(self.describe(&now, volume, Duration::ZERO).await?);
            }
            return Ok(found);
        };
        match now.volumes.get(wanted) {
            Some(volume) => Ok(vec![self.describe(&now, volume, GLANCE).await?]),
            None => Ok(Vec::new()),
        }
    }

    async fn check_adoption(&self, spec: &AdoptionSpec) -> Result<()> {
        self.ready().await?;
        let now = self.group.now().await?;
        self.adoptable(&now, spec).map(drop)
    }

    async fn adopt(&self, spec: &AdoptionSpec) -> Result<Change<Image>> {
        self.ready().await?;
        let now = self.group.now().await?;
        if let Some(found) = self.find(&now, spec.id) {
            return Ok(Change::Already(self.image(&now, &found)?));
        }
        let volume = self.adoptable(&now, spec)?;
        let tags = Tags {
            labels: spec.labels.clone(),
            ..Tags::new(
                spec.id,
                self.settings.class.as_str(),
                self.settings.node.as_str(),
            )
        };
        let (id, uuid) = (spec.id, volume.uuid.clone());
        let (before, source) = (volume.clone(), spec.source.clone());
        let command = Command::new("lvchange")
            .add_tags(tags.write())
            .words([self.group.path(&volume.name)])
            // Whoever else changes it meanwhile may do so for a reason that forbids its adoption.
            .allowed_by(move |now| match now.volumes.get(&before.name) {
                Some(volume) if *volume == before => Ok(()),
                _ => Err(Error::new(
                    Kind::Busy,
                    format!("{source} was changed meanwhile; retry"),
                )),
            })
            .done_when(move |now| {
                let volume = now.volumes.values().find(|volume| volume.uuid == uuid);
                let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                tags.is_some_and(|tags| tags.id == id)
            });
        self.group.change(vec![command]).await?;
        fail::point("lvm.adopt.tagged");
        let now = self.group.now().await?;
        let found = self.complete_volume(&now, spec.id)?;
        Ok(Change::Made(self.image(&now, &found)?))
    }

    async fn check_release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        self.ready().await?;
        let now = self.group.now().await?;
        let volume = self.releasable(&now, id, to)?;
        Ok(self.group.path(&volume.name))
    }

    async fn release(&self, id: ImageId, to: Option<&Path>) -> Result<String> {
        self.ready().await?;
        let now = self.group.now().await?;
        let volume = self.releasable(&now, id, to)?;
        let uuid = volume.uuid.clone();
        let ours = volume.tags.iter().filter(|tag| tag.starts_with(OURS));
        let command = Command::new("lvchange")
            .words(ours.flat_map(|tag| ["--deltag".to_owned(), tag.clone()]))
            .words([self.group.path(&volume.name)])
            .done_when(move |now| {
                let volume = now.volumes.values().find(|volume| volume.uuid == uuid);
                volume.is_some_and(|volume| !has_own_tags(volume))
            });
        self.group.change(vec![command]).await?;
        fail::point("lvm.release.untagged");
        Ok(self.group.path(&volume.name))
    }
}

impl Lvm {
    /// The name of a volume of this group.
    fn name_in_group<'a>(&self, source: &'a str) -> Option<&'a str> {
        let (group, name) = source.split_once('/')?;
        (group == self.group.name).then_some(name)
    }

    /// Returns true for a volume that is listed: neither a pool nor one of this node's.
    fn is_candidate(&self, volume: &LogicalVolume) -> bool {
        !matches!(volume.kind, VolumeKind::Pool(_))
            && !is_set_aside(volume)
            && Tags::read(&volume.tags).is_none_or(|tags| tags.node != self.settings.node.as_str())
    }

    /// The volume of an adoption, if nothing of it forbids that.
    fn adoptable<'a>(
        &self,
        now: &'a GroupMetadata,
        spec: &AdoptionSpec,
    ) -> Result<&'a LogicalVolume> {
        let name = self.name_in_group(&spec.source);
        let volume = name.and_then(|name| now.volumes.get(name));
        let volume =
            volume.ok_or_else(|| Error::not_found(format!("{} does not exist", spec.source)))?;
        let misfit = self.volume_type().misfit(volume);
        let refusals: Vec<String> = self
            .refusals(now, volume)
            .into_iter()
            .chain(misfit)
            .collect();
        if !refusals.is_empty() {
            return Err(not_adoptable(&spec.source, &refusals));
        }
        // Its own name may be that of the image: this agent may have made it, and handed it over.
        if volume.name != name_of(spec.id) {
            self.check_names(now, spec.id)?;
        }
        Self::check_records(now)?;
        Ok(volume)
    }

    /// What is known of a volume. Waits so long for programs that only look at its device.
    async fn describe(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
        patience: Duration,
    ) -> Result<ForeignVolume> {
        let mut refusals = self.refusals(now, volume);
        let path = self.group.path(&volume.name);
        let maker = Maker::of_logical_volume(&volume.name);
        let mut device = None;
        // Devices of volumes that are refused anyway may not even be readable.
        if refusals.is_empty() {
            match self.device(now, volume)? {
                None => refusals.push(format!(
                    "it is not active, so its contents cannot be looked at; activate it with lvchange -ay -K {path}"
                )),
                Some(found) if found.is_suspended => refusals.push(format!(
                    "its device is suspended; resume it with dmsetup resume {}",
                    found.name
                )),
                Some(found) => {
                    let (group, uuid) = (self.group.clone(), found.uuid.clone());
                    let user = blocking(move || unknown_user(group.mapper()?, &uuid, patience));
                    refusals.extend(user.await?);
                    device = Some(node(found).await?);
                }
            }
        }
        let mut warnings: Vec<String> = maker.warning(&volume.name).into_iter().collect();
        if let VolumeKind::Thin {
            origin: Some(origin),
            ..
        } = &volume.kind
        {
            warnings.push(format!(
                "it is a snapshot of {}: it is adopted as a volume of its own, and stays what it is when that is removed",
                self.group.path(origin)
            ));
        }
        Ok(ForeignVolume {
            source: path,
            size: Size::try_from(now.bytes(volume)).unwrap_or_default(),
            maker,
            contents: device.clone(),
            device,
            misfit: self.volume_type().misfit(volume),
            refusals,
            warnings,
        })
    }

    /// Why the metadata of a volume forbids its adoption.
    fn refusals(&self, now: &GroupMetadata, volume: &LogicalVolume) -> Vec<String> {
        let path = self.group.path(&volume.name);
        let mut refusals: Vec<String> = self.of_drumlin(volume).into_iter().collect();
        let mut refuse = |why: String| refusals.push(why);
        if is_set_aside(volume) {
            refuse("it keeps an orphan thin device, see `drumlin doctor`".to_owned());
        }
        match &volume.kind {
            VolumeKind::Pool(_) => refuse("it is a thin pool, not a volume".to_owned()),
            VolumeKind::Snapshot { origin } => refuse(format!(
                "it is a snapshot of {}, which shares its extents; copy its contents to a new volume, or remove it",
                self.group.path(origin)
            )),
            VolumeKind::Plain | VolumeKind::Mirrored | VolumeKind::Thin { .. } => {
                let snapshots: Vec<String> = now
                    .snapshots_of(volume)
                    .map(|snapshot| self.group.path(&snapshot.name))
                    .collect();
                if !snapshots.is_empty() {
                    refuse(format!(
                        "it has snapshots that this agent did not make; remove them first: lvremove {}",
                        snapshots.join(" ")
                    ));
                }
                if !volume.is_visible {
                    refuse("it is a part of another volume".to_owned());
                }
            }
        }
        if volume.merges_into.is_some() || now.merged_into(volume).is_some() {
            refuse(
                "a snapshot is being merged; wait until lvs does not show it any more".to_owned(),
            );
        }
        if let Some(layer) = now.layer_of(volume) {
            refuse(format!(
                "it has a layer of type {layer}; remove it first, and add it again afterwards"
            ));
        } else if !volume.below.is_empty() {
            refuse(format!(
                "it depends on {}, which is not managed with it; copy its contents to a new volume",
                volume.below.join(" and ")
            ));
        }
        if let Some(flag) = &volume.unknown_flag {
            refuse(drumlin_lvm::metadata::unknown_flag(flag));
        }
        if volume.is_moving {
            refuse("LVM is moving it to another disk; wait until pvmove has ended".to_owned());
        }
        if !volume.is_complete || volume.is_degraded {
            refuse(format!(
                "a disk that it uses is missing; see pvs -o +missing, and repair it with lvconvert --repair {path}"
            ));
        }
        if !volume.is_writable {
            refuse(format!(
                "it is read-only; make it writable with lvchange -prw {path}"
            ));
        }
        let bytes = now.bytes(volume);
        let unit = self.sizes(now.extent_size).map(|rules| rules.unit.bytes());
        if self.volume_type().misfit(volume).is_none()
            && let Ok(unit) = unit
            && !bytes.is_multiple_of(unit.max(1))
        {
            refuse(format!(
                "its size, {bytes} bytes, is no multiple of {unit} bytes as in its class; extend it to one with lvextend"
            ));
        }
        refusals
    }

    /// Why the tags of this project forbid the adoption of a volume.
    fn of_drumlin(&self, volume: &LogicalVolume) -> Option<String> {
        let Some(tags) = Tags::read(&volume.tags) else {
            return has_own_tags(volume).then(|| format!(
                "it has tags of Drumlin's that name no volume; if they are left over, remove each with lvchange --deltag TAG; lvs -o +lv_tags {} shows them",
                self.group.path(&volume.name)
            ));
        };
        if tags.node == self.settings.node.as_str() {
            return Some(format!(
                "it is managed already, as {}/{}/{}",
                tags.node, tags.class, tags.id.key
            ));
        }
        Some(format!(
            "it belongs to node {node}; set `adoptNode: {node}` in class {} to adopt that node's volumes",
            tags.class,
            node = tags.node
        ))
    }

    /// The volume of an image whose record may be removed.
    fn releasable<'a>(
        &'a self,
        now: &'a GroupMetadata,
        id: ImageId,
        to: Option<&Path>,
    ) -> Result<&'a LogicalVolume> {
        if to.is_some() {
            return Err(Error::invalid(
                "path is for image files only: a logical volume keeps its name",
            ));
        }
        let found = self.complete_volume(now, id)?;
        check_no_merge(now, found.volume)?;
        let snapshots: Vec<&LogicalVolume> = now.snapshots_of(found.volume).collect();
        if id.kind == ImageKind::Volume && snapshots.is_empty() {
            return Ok(found.volume);
        }
        let names: Vec<String> = snapshots
            .iter()
            .map(|snapshot| self.group.path(&snapshot.name))
            .collect();
        Err(Error::new(
            Kind::Precondition,
            format!(
                "{id} has snapshots ({}); delete them first",
                names.join(", ")
            ),
        ))
    }
}

/// Returns true if a volume has a tag of this project, whatever it says.
fn has_own_tags(volume: &LogicalVolume) -> bool {
    volume.tags.iter().any(|tag| tag.starts_with(OURS))
}

/// Who has a device open other than by one mounted file system, if anybody has for longer than `patience`.
fn unknown_user(mapper: &DeviceMapper, uuid: &str, patience: Duration) -> Result<Option<String>> {
    let begun = Instant::now();
    loop {
        let Some(device) = mapper.find(uuid)? else {
            return Ok(None);
        };
        let path = device.path();
        // A file system opens its device once, however often it is mounted.
        let is_mounted = !MountTable::read()?.file_systems_of(&path)?.is_empty();
        if device.open <= i32::from(is_mounted) {
            return Ok(None);
        }
        if begun.elapsed() >= patience {
            let mut users = holders::users_of_device(&path);
            users.retain(|user| !user.starts_with("mount "));
            let who = if users.is_empty() {
                "something that this agent cannot see, possibly a mount in another mount namespace"
                    .to_owned()
            } else {
                users.join(", ")
            };
            return Ok(Some(format!(
                "its device {} is in use by {who}; stop that use first",
                path.display()
            )));
        }
        thread::sleep(Duration::from_millis(20));
    }
}
