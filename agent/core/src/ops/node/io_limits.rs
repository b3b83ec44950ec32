//! Limits of the rates of reads and writes: those of a class, and the lower ones of a volume (`ControllerModifyVolume`). They
//! hold while a volume is attached for its users, by its device; see [`crate::host::io_limits`].
//!
//! **Invariant:** a limit leaves a device before the device is detached, since another volume may get its number.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::ops::{
    Class, Operations,
    labels::{self, Read},
    lookup::LocatedImage,
};
use crate::{
    Result,
    backend::Labels,
    blocking,
    host::{
        DeviceNumber,
        io_limits::{Cgroups, IoLimits},
        lock,
    },
    types::{ClassName, ImageId, ImageKind},
};

/// Sets limits, and knows those that it has set.
#[derive(Debug)]
pub(crate) struct Limiter {
    cgroups: Cgroups,
    limited: Mutex<BTreeMap<(ClassName, ImageId), (DeviceNumber, IoLimits)>>,
    /// Why limits cannot be set: told once.
    trouble: Mutex<Option<String>>,
}

impl Limiter {
    pub(crate) fn new(cgroups: PathBuf) -> Self {
        Self {
            cgroups: Cgroups::new(cgroups),
            limited: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    /// Checks that limits can be set on this host.
    ///
    /// # Errors
    /// [`crate::Kind::Precondition`] with the reason.
    pub(crate) async fn check(&self) -> Result<()> {
        let cgroups = self.cgroups.clone();
        blocking(move || cgroups.check()).await
    }

    /// Sets limits. What cannot be limited is used without: a database that does not start would be the greater harm.
    async fn set(&self, devices: Vec<(DeviceNumber, IoLimits)>) {
        let cgroups = self.cgroups.clone();
        let set = blocking(move || cgroups.limit(&devices)).await;
        let mut trouble = lock(&self.trouble);
        match set {
            Ok(changed) => {
                *trouble = None;
                if changed > 0 {
                    tracing::debug!(changed, "limits set");
                }
            }
            Err(error) => {
                let why = error.chain();
                if trouble.as_ref() != Some(&why) {
                    tracing::warn!(error = %why, "limits of reads and writes are not in force");
                }
                *trouble = Some(why);
            }
        }
    }
}

impl LocatedImage {
    /// The limits of this volume: for each rate the lower one of its class and its own.
    fn limits(&self) -> IoLimits {
        self.class.limits.and(&own_limits(&self.image.labels))
    }
}

/// The limits that a volume has by itself.
pub(crate) fn own_limits(labels: &Labels) -> IoLimits {
    let rate = |key| labels.label(key).and_then(|rate| rate.parse().ok());
    IoLimits {
        read_iops: rate(labels::READ_IOPS),
        write_iops: rate(labels::WRITE_IOPS),
        read_bytes: rate(labels::READ_BYTES),
        write_bytes: rate(labels::WRITE_BYTES),
    }
}

impl Operations {
    /// Sets the limits of an attached volume as they are now; those of a former volume on its device go. The caller has the
    /// volume's lock.
    pub(crate) async fn limit(&self, found: &LocatedImage) {
        let limits = found.limits();
        let device = match attached(found).await {
            Ok(device) => device,
            Err(error) => {
                tracing::warn!(volume.id = %found.handle, error = %error.chain(), "device not found; its limits are not in force");
                return;
            }
        };
        let Some(device) = device else {
            return;
        };
        let place = (found.class.name.clone(), found.image.id);
        if limits.is_none() {
            lock(&self.limiter.limited).remove(&place);
        } else {
            lock(&self.limiter.limited).insert(place, (device, limits));
        }
        self.limiter.set(vec![(device, limits)]).await;
    }

    /// The same of a volume that gets one more user, in a cgroup that may be new.
    pub(crate) async fn limit_again(&self, found: &LocatedImage) {
        if !found.limits().is_none() {
            self.limit(found).await;
        }
    }

    /// Takes the limits from the device of a volume that is about to be detached. The caller has the volume's lock.
    pub(crate) async fn unlimit(&self, class: &ClassName, id: ImageId) {
        let limited = lock(&self.limiter.limited).remove(&(class.clone(), id));
        if let Some((device, _)) = limited {
            let none = IoLimits::default();
            self.limiter.set(vec![(device, none)]).await;
        }
    }

    /// Sets all limits once more: a cgroup may be new, or systemd has taken the controller away.
    pub async fn keep_limits(&self) {
        let limited: Vec<_> = lock(&self.limiter.limited).values().copied().collect();
        if !limited.is_empty() {
            self.limiter.set(limited).await;
        }
    }

    /// Sets the limits of all attached volumes of a class in the background: at start, and when its limits have changed from
    /// `before`.
    pub(crate) fn limit_class(self: &Arc<Self>, class: &Class, before: IoLimits) {
        let (this, class) = (Arc::clone(self), class.clone());
        tokio::spawn(async move {
            let images = match class.backend.list(ImageKind::Volume).await {
                Ok(images) => images,
                Err(error) => {
                    tracing::warn!(class = %class.name, error = %error.chain(), "volumes not listed; their limits are not in force");
                    return;
                }
            };
            let is_unlimited = class.limits.is_none() && before.is_none();
            for image in images {
                if is_unlimited && own_limits(&image.labels).is_none() {
                    continue;
                }
                let id = image.id;
                let limited = this.changes.run_once_free(id, || {
                    let (this, class) = (Arc::clone(&this), class.clone());
                    async move {
                        if let Some(image) = class.backend.get(id).await? {
                            this.limit(&this.found(&class, image)).await;
                        }
                        Ok(())
                    }
                });
                if let Err(error) = limited.await {
                    tracing::warn!(object = %id, error = %error.chain(), "limits not set");
                }
            }
        });
    }
}

/// The device through which a volume is used, if it is attached.
async fn attached(found: &LocatedImage) -> Result<Option<DeviceNumber>> {
    let paths = found.class.backend.devices(found.image.id).await?;
    let Some(path) = paths.into_iter().next() else {
        return Ok(None);
    };
    blocking(move || DeviceNumber::of_block_device(&path))
        .await
        .map(Some)
}
