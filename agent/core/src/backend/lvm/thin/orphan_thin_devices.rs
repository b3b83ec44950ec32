//! Orphan thin devices: devices of a thin pool that no logical volume names, left by a killed LVM or by a restore of
//! older metadata. When LVM reaches the number of such a device, it takes it for a new one and exposes its former
//! contents.
//!
//! They are kept as separate volumes for an administrator to inspect: nothing is deleted that may be the last copy of
//! some data.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume, Message, VolumeKind},
};

use crate::{
    Result,
    backend::lvm::{
        Lvm,
        create::exists,
        group::Group,
        tags::{OURS, Tags},
        thin::{
            class::ThinClass,
            devices::{Counted, ThinDevice, to_its_end},
        },
    },
    blocking,
    host::trace::{self, Wait},
};

/// The tag of a volume that keeps an orphan thin device.
const ORPHAN: &str = "drumlin-orphan";

impl Lvm {
    /// Searches the class's pool for orphan thin devices, once after each recovery of the group, as soon as the pool
    /// is active.
    pub(crate) async fn find_orphan_thin_devices(&self, pool: &ThinClass) {
        let round = self.group.repairs.load(Ordering::Acquire);
        let mut looked = trace::waited(Wait::Lock, pool.looked_for_orphans.lock()).await;
        if *looked == round {
            return;
        }
        match self.set_strays_aside(&pool.name).await {
            Ok(has_looked) if !has_looked => return,
            Ok(_) => {}
            // A class that cannot search can still serve: each new volume is checked.
            Err(error) => {
                tracing::warn!(pool = %self.group.path(&pool.name), error = %error.chain(), "could not search for orphan thin devices");
            }
        }
        *looked = round;
    }

    /// Keeps all orphan thin devices of a pool as separate volumes; returns false if the pool cannot be searched now.
    async fn set_strays_aside(&self, pool: &str) -> Result<bool> {
        let now = self.group.now().await?;
        for (volume, device) in thin_volumes(&now, pool) {
            // An interruption came before the rename.
            if is_set_aside(volume) && volume.name != name_of(pool, device) {
                let rename = self.renaming(volume, name_of(pool, device));
                self.group.change(vec![rename]).await?;
            }
        }
        let (this, name) = (Arc::clone(&self.group), pool.to_owned());
        let orphans = to_its_end(async move { this.orphans(&name).await }).await?;
        let Some(orphans) = orphans else {
            return Ok(false);
        };
        for ThinDevice { device, bytes } in &orphans {
            tracing::warn!(
                pool = %self.group.path(pool),
                device,
                bytes,
                "orphan thin device found: no logical volume names it"
            );
        }
        let mut left: Vec<ThinDevice> = orphans;
        loop {
            let now = self.group.now().await?;
            let next = next_device(&now, pool);
            let Some(at) = left.iter().position(|orphan| orphan.device == next) else {
                break;
            };
            self.set_orphan_aside(&now, pool, left.swap_remove(at))
                .await?;
        }
        for ThinDevice { device, .. } in left {
            tracing::warn!(
                pool = %self.group.path(pool),
                device,
                "orphan thin device left in the pool until LVM reaches its number; to delete it now, run `dmsetup message` with `delete` and its number on the pool's device"
            );
        }
        Ok(true)
    }

    /// Makes LVM create a new volume that takes over an orphan thin device.
    async fn set_orphan_aside(
        &self,
        now: &GroupMetadata,
        pool: &str,
        orphan: ThinDevice,
    ) -> Result<()> {
        let bytes = orphan.bytes.max(1).next_multiple_of(now.extent_size);
        let name = name_of(pool, orphan.device);
        let command = Command::new("lvcreate")
            .words(["-an".to_owned(), "-V".to_owned(), format!("{bytes}b")])
            .words(["-T".to_owned(), self.group.path(pool)])
            .words(["-n", &name, "--addtag", ORPHAN])
            .done_when(exists(name.clone()));
        self.group.change(vec![command]).await?;
        self.tell(&name);
        Ok(())
    }

    /// Keeps a new volume that turned out to have an orphan thin device: its contents stay, under another name and
    /// without our tags.
    pub(crate) async fn set_aside(
        &self,
        pool: &str,
        device: u64,
        volume: &LogicalVolume,
    ) -> Result<()> {
        let path = self.group.path(&volume.name);
        let (uuid, name) = (volume.uuid.clone(), name_of(pool, device));
        let ours = volume.tags.iter().filter(|tag| tag.starts_with(OURS));
        let disown = Command::new("lvchange")
            .add_tags([ORPHAN.to_owned()])
            .words(ours.flat_map(|tag| ["--deltag", tag.as_str()]))
            .words([&path])
            .done_when(move |now| {
                let mut volumes = now.volumes.values();
                let found = volumes.find(|volume| volume.uuid == uuid);
                found
                    .is_none_or(|volume| is_set_aside(volume) && Tags::read(&volume.tags).is_none())
            });
        let rename = self.renaming(volume, name.clone());
        let deactivate = Command::new("lvchange").words(["-an", &path]);
        self.group.change(vec![disown, deactivate, rename]).await?;
        self.tell(&name);
        Ok(())
    }

    fn tell(&self, name: &str) {
        let path = self.group.path(name);
        tracing::warn!(
            volume = %path,
            "orphan thin device kept as a volume; inspect it with lvchange -ay, and remove it with lvremove if its data is not needed"
        );
    }
}

impl Group {
    /// The orphan thin devices of a pool; none when it cannot be searched now. The group is locked against changes
    /// meanwhile.
    async fn orphans(self: &Arc<Self>, pool: &str) -> Result<Option<Vec<ThinDevice>>> {
        let _held = self.hold_changes().await;
        let this = Arc::clone(self);
        let _lock = blocking(move || this.lock()).await?;
        let Some((now, devices)) = self.list_thin_devices(pool, Counted::Mapped).await? else {
            return Ok(None);
        };
        let known = known_devices(&now, pool);
        let orphans = devices.into_iter();
        let orphans = orphans.filter(|orphan| !known.contains(&orphan.device));
        Ok(Some(orphans.collect()))
    }
}

/// The volumes in a pool, and their device numbers.
pub(crate) fn thin_volumes<'a>(
    now: &'a GroupMetadata,
    wanted: &'a str,
) -> impl Iterator<Item = (&'a LogicalVolume, u64)> {
    now.volumes
        .values()
        .filter_map(move |volume| match &volume.kind {
            VolumeKind::Thin { pool, device, .. } if pool == wanted => Some((volume, *device)),
            _ => None,
        })
}

/// The device number that LVM assigns to the next volume.
fn next_device(now: &GroupMetadata, pool: &str) -> u64 {
    let devices = thin_volumes(now, pool).map(|(_, device)| device);
    devices.max().unwrap_or(0) + 1
}

/// The devices that a volume names, or whose deletion is queued.
fn known_devices(now: &GroupMetadata, pool: &str) -> BTreeSet<u64> {
    let messages = now.pool(pool).map(|(_, pool)| pool.messages.iter());
    let deleted = messages
        .into_iter()
        .flatten()
        .filter_map(|message| match message {
            Message::Delete(device) => Some(*device),
            Message::Create(_) => None,
        });
    thin_volumes(now, pool)
        .map(|(_, device)| device)
        .chain(deleted)
        .collect()
}

/// Returns true if the volume keeps an orphan thin device.
pub(crate) fn is_set_aside(volume: &LogicalVolume) -> bool {
    volume.tags.iter().any(|tag| tag == ORPHAN)
}

/// The name of a volume that keeps an orphan thin device.
fn name_of(pool: &str, device: u64) -> String {
    format!("dl-orphan-{pool}-{device}")
}
