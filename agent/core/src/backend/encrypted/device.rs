//! The decrypted devices of images: opening, lengthening and closing them.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    candidates::Attempt,
    class::{Encrypted, Sealed},
};
use crate::{
    Error, Kind, Result,
    backend::Change,
    blocking, fail,
    host::{
        Access, DeviceNumber, MountTable, block_copy, crypt_mapping,
        device_mapper::{DeviceMapper, Mapped},
        holders, loop_device, luks,
    },
    types::{ImageId, ImageKind},
};

/// Time for programs that open every changed device briefly (udevd, LVM scans).
const GLANCE: Duration = Duration::from_secs(1);
/// What is zeroed at each end of a new device: what is searched for signatures (see [`crate::host::probe`]).
pub(super) const ENDS: u64 = 1 << 20;

impl Encrypted {
    /// Attaches the inner image and opens it, or finds its mapping.
    pub(super) async fn attach_sealed(&self, sealed: &Sealed, access: Access) -> Result<PathBuf> {
        let id = sealed.image.id;
        let device = self.inner.attach(id, access).await?;
        fail::point("encrypted.attach.below");
        let opened = self.open(sealed, &device, access).await;
        drop(device);
        let Err(error) = opened else { return opened };
        let error = Error::new(error.kind(), format!("{id} cannot be opened")).because(error);
        // In use means that it was attached before for another caller; then it stays attached.
        match self.inner.detach(id).await {
            Err(second) if second.kind() != Kind::InUse => {
                Err(error.undo_failed("the device could not be detached", &second))
            }
            _ => Err(error),
        }
    }

    async fn open(&self, sealed: &Sealed, device: &Path, access: Access) -> Result<PathBuf> {
        if let Some(mapping) = mapping_over(device).await? {
            if sealed.state.key.is_some() {
                self.lengthen(sealed, &mapping).await?;
                return node(mapping).await;
            }
            // The first attachment was interrupted, before anybody got the device.
            luks::close(&mapping).await?;
        }
        let Some(recorded) = &sealed.state.key else {
            return self.open_first(sealed, device).await;
        };
        let name = self.mapping_name(sealed.image.id, device);
        free_name(&name).await?;
        let attempt = Attempt::Open {
            device,
            name: &name,
            access,
        };
        let found = self.with_key(sealed, attempt).await?;
        fail::point("encrypted.attach.opened");
        let path = opened(device).await?;
        // It can be used with the old key all the same.
        if access == Access::ReadWrite
            && let Err(error) = self.renew(sealed, device, &found, recorded).await
        {
            tracing::warn!(object = %sealed.image.id, error = %error.chain(), "image not re-keyed");
        }
        Ok(path)
    }

    /// Makes a mapping as long as its device. What is new at its end reads as zeros where signatures are searched.
    pub(super) async fn lengthen(&self, sealed: &Sealed, mapping: &Mapped) -> Result<()> {
        let (seen, offset) = (mapping.clone(), sealed.state.sectors());
        let lengths = move || {
            let below = below(&seen)?.ok_or_else(|| {
                Error::new(Kind::Busy, format!("{} was closed; retry", seen.name))
            })?;
            let wanted = crypt_mapping::length_below(below)?.0;
            Ok((
                crypt_mapping::length(&seen)?,
                wanted.saturating_sub(offset.0),
            ))
        };
        let (now, wanted) = blocking(lengths).await?;
        if now.0 >= wanted {
            return Ok(());
        }
        let name = &mapping.name;
        self.with_key(sealed, Attempt::Resize { name }).await?;
        fail::point("encrypted.grow.resized");
        let mapping = mapping.clone();
        blocking(move || {
            let end = crypt_mapping::length(&mapping)?.bytes();
            let start = end.saturating_sub(ENDS).max(now.bytes());
            zero(&mapping.node()?, start..end)
        })
        .await
    }

    /// The mapping of an image, if it is open.
    pub(super) async fn mapping(&self, id: ImageId) -> Result<Option<Mapped>> {
        for device in self.inner.devices(id).await? {
            if let Some(mapping) = mapping_over(&device).await? {
                return Ok(Some(mapping));
            }
        }
        Ok(None)
    }

    /// Closes the mapping of an image.
    ///
    /// # Errors
    /// `InUse` when it is mounted or open; it then stays open.
    pub(super) async fn close(&self, id: ImageId) -> Result<Change<()>> {
        let Some(mapping) = self.mapping(id).await? else {
            return Ok(Change::Already(()));
        };
        let seen = mapping.clone();
        blocking(move || free(id, &seen)).await?;
        luks::close(&mapping).await?;
        fail::point("encrypted.detach.closed");
        Ok(Change::Made(()))
    }

    /// Resumes mappings of the class that a quiesce left suspended, when its process and its watchdog died.
    pub(super) async fn resume_left(&self) -> Result<()> {
        // Without device-mapper there are none.
        let has_suspended = blocking(|| {
            let all = crypt_mapping::list().unwrap_or_default();
            Ok(all.iter().any(|one| one.is_suspended))
        });
        if !has_suspended.await? {
            return Ok(());
        }
        for image in self.inner.list(ImageKind::Volume).await? {
            let Some(mapping) = self.mapping(image.id).await? else {
                continue;
            };
            if mapping.is_suspended {
                blocking(move || DeviceMapper::open()?.resume(&mapping.uuid)).await?;
                tracing::warn!(object = %image.id, "suspended device resumed");
            }
        }
        Ok(())
    }
}

/// The mapping over a device.
pub(super) async fn mapping_over(device: &Path) -> Result<Option<Mapped>> {
    let device = device.to_owned();
    blocking(move || crypt_mapping::over_path(&device)).await
}

/// The node of the mapping that was just opened over a device: by the kernel's word, not by its name.
pub(super) async fn opened(device: &Path) -> Result<PathBuf> {
    let mapping = mapping_over(device).await?.ok_or_else(|| {
        let path = device.display();
        Error::new(
            Kind::HalfDone,
            format!("cryptsetup opened {path}, but the kernel shows no mapping over it"),
        )
    })?;
    node(mapping).await
}

pub(super) async fn node(mapping: Mapped) -> Result<PathBuf> {
    blocking(move || mapping.node()).await
}

/// Zeroes a range of a device, in bytes.
pub(super) fn zero(device: &Path, span: std::ops::Range<u64>) -> Result<()> {
    let all = &mut |_| std::ops::ControlFlow::Continue(());
    block_copy::zero(device, span, all).map(drop)
}

/// The device below a mapping.
fn below(mapping: &Mapped) -> Result<Option<DeviceNumber>> {
    let table = DeviceMapper::open()?.table(&mapping.uuid)?;
    // <cipher> <key> <iv offset> <device> <offset> …
    let words = table.first().and_then(|line| line.words.split(' ').nth(3));
    Ok(words.and_then(|number| {
        let (major, minor) = number.split_once(':')?;
        Some(DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }))
}

/// Removes a mapping of this name that is left of an earlier image, or that was not completed.
pub(super) async fn free_name(name: &str) -> Result<()> {
    let wanted = name.to_owned();
    let left = blocking(move || DeviceMapper::open()?.find_named(&wanted)).await?;
    match left {
        None => Ok(()),
        Some(left) if left.is_live => luks::close(&left).await,
        Some(left) => blocking(move || DeviceMapper::open()?.remove_named(&left.name)).await,
    }
}

/// Makes sure that nothing uses a mapping, and detaches the read-only devices over it.
fn free(id: ImageId, mapping: &Mapped) -> Result<()> {
    let path = mapping.path();
    let mounted = |path: &Path, number| -> Result<()> {
        let table = MountTable::read()?;
        let Some(mount) = table.of_block_device(path, number).next() else {
            return Ok(());
        };
        let target = mount.target.display();
        Err(Error::new(
            Kind::InUse,
            format!("{id} is in use at {target}; unmount it first"),
        ))
    };
    mounted(&path, mapping.number)?;
    for view in loop_device::find(&path)? {
        mounted(&view.path, DeviceNumber::of_block_device(&view.path)?)?;
        loop_device::detach(&view)?;
    }
    let deadline = Instant::now() + GLANCE;
    while DeviceMapper::open()?
        .find(&mapping.uuid)?
        .is_some_and(|now| now.open > 0)
    {
        if Instant::now() >= deadline {
            return Err(holders::device_in_use(
                &path,
                &holders::users_of_device(&path),
            ));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
