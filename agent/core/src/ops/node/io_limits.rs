//! Limits of the rates of reads and writes: those of a class, and the lower ones of a volume (`ControllerModifyVolume`). They
//! hold while a volume is attached for its users, by its device; see [`crate::host::io_limits`].
//!
//! **Invariant:** a limit leaves a device before the device is detached, since another volume may get its number.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::ops::{
    Class, Operations,
    devices::Devices,
    labels::{self, Read},
    locks::LockMode,
    lookup::LocatedImage,
};
use crate::{
    Kind, Result,
    backend::{Image, Labels},
    blocking,
    host::{
        DeviceNumber, MountTable,
        io_limits::{Cgroups, IoLimits},
        lock,
    },
    types::{ClassName, ImageId, ImageKind},
};

/// The volumes that have limits, with the devices on which they are set.
type Limited = BTreeMap<(ClassName, ImageId), (DeviceNumber, IoLimits)>;

/// Sets limits, and knows those that it has set.
#[derive(Debug)]
pub(crate) struct Limiter {
    cgroups: Cgroups,
    /// Held until what is in it is also set.
    limited: tokio::sync::Mutex<Limited>,
    /// Why limits cannot be set: told once.
    trouble: Mutex<Option<String>>,
}

impl Limiter {
    pub(crate) fn new(cgroups: PathBuf) -> Self {
        Self {
            cgroups: Cgroups::new(cgroups),
            limited: tokio::sync::Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    /// Checks that limits can be set on this host.
    ///
    /// # Errors
    /// [`Kind::Precondition`] with the reason.
    pub(crate) async fn check(&self) -> Result<()> {
        let cgroups = self.cgroups.clone();
        blocking(move || cgroups.check()).await
    }

    async fn set(&self, devices: Vec<(DeviceNumber, IoLimits)>) -> Result<()> {
        let cgroups = self.cgroups.clone();
        let set = blocking(move || cgroups.limit(&devices)).await;
        let mut trouble = lock(&self.trouble);
        match &set {
            Ok(_) => *trouble = None,
            Err(error) => {
                let why = error.chain();
                if trouble.as_ref() != Some(&why) {
                    tracing::warn!(error = %why, "limits of reads and writes are not in force");
                }
                *trouble = Some(why);
            }
        }
        set.map(drop)
    }
}

impl LocatedImage {
    /// The limits of this volume: for each rate the lower one of its class and its own.
    fn limits(&self) -> IoLimits {
        self.class.limits.and(&own_limits(&self.image.labels))
    }
}

/// The limits that a volume has by itself.
fn own_limits(labels: &Labels) -> IoLimits {
    let rate = |key| labels.label(key).and_then(|rate| rate.parse().ok());
    IoLimits {
        read_iops: rate(labels::READ_IOPS),
        write_iops: rate(labels::WRITE_IOPS),
        read_bytes: rate(labels::READ_BYTES),
        write_bytes: rate(labels::WRITE_BYTES),
    }
}

impl Operations {
    /// Sets the limits of a volume as they are now, if it is mounted; otherwise, and of a volume without limits, it takes away
    /// what its device may have of a former one. The caller has the volume's lock.
    ///
    /// # Errors
    /// As those of [`Cgroups::limit`].
    pub(crate) async fn limit(&self, found: &LocatedImage) -> Result<()> {
        let looked = found.look(|_, seen| Ok(used_device(seen)));
        let (device, is_used) = looked.await?;
        let limits = if is_used {
            found.limits()
        } else {
            IoLimits::default()
        };
        self.set_limits(found, device, limits).await
    }

    /// The same; what cannot be limited is used without, and that is in the log: a database that does not start would be the
    /// greater harm.
    pub(crate) async fn limit_if_possible(&self, found: &LocatedImage) {
        if let Err(error) = self.limit(found).await {
            tracing::debug!(volume.id = %found.handle, error = %error.chain(), "limits not set");
        }
    }

    /// Takes the limits from the device of a volume: before it is unmounted, for what is buffered would be written at the
    /// limit, and before it is detached. The caller has the volume's lock.
    pub(crate) async fn unlimit(&self, found: &LocatedImage) {
        let looked = found.look(|_, seen| Ok(used_device(seen)));
        let device = looked.await.ok().and_then(|(device, _)| device);
        let set = self.set_limits(found, device, IoLimits::default());
        if let Err(error) = set.await {
            tracing::debug!(volume.id = %found.handle, error = %error.chain(), "limits not taken away");
        }
    }

    /// Takes the limits from a volume that is about to be deleted, if it still has any: somebody else has unmounted it.
    pub(crate) async fn forget_limits(&self, found: &LocatedImage) {
        let place = (found.class.name.clone(), found.image.id);
        let is_known = self.limiter.limited.lock().await.contains_key(&place);
        if is_known {
            self.unlimit(found).await;
        }
    }

    async fn set_limits(
        &self,
        found: &LocatedImage,
        device: Option<DeviceNumber>,
        limits: IoLimits,
    ) -> Result<()> {
        let place = (found.class.name.clone(), found.image.id);
        let mut limited = self.limiter.limited.lock().await;
        limited.remove(&place);
        let Some(device) = device else {
            return Ok(());
        };
        // Whoever had this device had it before.
        limited.retain(|_, (other, _)| *other != device);
        if !limits.is_none() {
            limited.insert(place, (device, limits));
        }
        self.limiter.set(vec![(device, limits)]).await
    }

    /// Sets all limits once more: a cgroup may be new, or systemd has taken the controller away.
    pub async fn keep_limits(&self) {
        let limited = self.limiter.limited.lock().await;
        if !limited.is_empty() {
            // What is wrong is in the log.
            let _ = self.limiter.set(limited.values().copied().collect()).await;
        }
    }

    /// Sets the limits of the mounted volumes of a class in the background: at start, and when its limits have changed from
    /// `before`.
    pub(crate) fn limit_class(self: &Arc<Self>, class: &Class, before: IoLimits) {
        let (this, class) = (Arc::clone(self), class.clone());
        tokio::spawn(async move {
            let cgroups = this.limiter.cgroups.clone();
            // Of a former agent, whose class had limits.
            let left = blocking(move || cgroups.limited()).await;
            let left = left.unwrap_or_default();
            let images = match class.backend.list(ImageKind::Volume).await {
                Ok(images) => images,
                Err(error) => {
                    tracing::warn!(class = %class.name, error = %error.chain(), "volumes not listed; their limits are not in force");
                    return;
                }
            };
            let is_limited = !class.limits.is_none() || !before.is_none();
            let is_meant = |image: &Image| {
                is_limited || !left.is_empty() || !own_limits(&image.labels).is_none()
            };
            let ids = images.iter().filter(|image| is_meant(image));
            let ids: BTreeSet<ImageId> = ids.map(|image| image.id).collect();
            let mut busy = Vec::new();
            for id in ids {
                let holds = vec![LockMode::Exclusive(id)];
                let limiting = Arc::clone(&this).limit_one(class.name.clone(), id);
                match this.changes.run(holds, limiting).await {
                    Err(error) if error.kind() == Kind::Busy => busy.push(id),
                    _ => {}
                }
            }
            for id in busy {
                let limiting = || Arc::clone(&this).limit_one(class.name.clone(), id);
                let _ = this.changes.run_once_free(id, limiting).await;
            }
        });
    }

    /// Sets the limits of a volume of this class, as the class is now.
    async fn limit_one(self: Arc<Self>, class: ClassName, id: ImageId) -> Result<()> {
        let Some(class) = self.classes.get(&class) else {
            return Ok(());
        };
        if let Some(image) = class.backend.get(id).await? {
            self.limit_if_possible(&self.found(&class, image)).await;
        }
        Ok(())
    }
}

/// The device through which a volume is used, if it is attached, and whether it is mounted, or published raw.
fn used_device((devices, table): (&Devices, &MountTable)) -> (Option<DeviceNumber>, bool) {
    (devices.number(), devices.mounts(table).next().is_some())
}
