//! The block devices of an image and their mounts, as read from the kernel now.

use std::path::{Path, PathBuf};

use crate::ops::{lookup::LocatedImage, target_path::TargetLocation};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{Access, DeviceNumber, LoopDevice, Mount, MountTable, loop_device, mount},
};

/// The devices of one image: its own, and read-only loop devices on top of them, each with its number.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    own: Vec<(PathBuf, DeviceNumber)>,
    read_only: Vec<(LoopDevice, DeviceNumber)>,
}

/// The mount at a path.
#[derive(Debug)]
pub(crate) enum PathState {
    /// No mount.
    Nothing,
    /// A mount of one of the devices of the image.
    Ours(Box<Mount>),
    /// A mount of something else.
    Foreign(Box<Mount>),
}

impl Devices {
    fn over(paths: Vec<PathBuf>) -> Result<Self> {
        let mut devices = Self::default();
        for path in paths {
            for device in loop_device::find(&path)? {
                let number = DeviceNumber::of_block_device(&device.path)?;
                devices.read_only.push((device, number));
            }
            let number = DeviceNumber::of_block_device(&path)?;
            devices.own.push((path, number));
        }
        Ok(devices)
    }

    /// The block device of the image, if it is attached.
    pub(crate) fn first(&self) -> Option<&Path> {
        self.own.first().map(|(path, _)| path.as_path())
    }

    /// Its number.
    pub(crate) fn number(&self) -> Option<DeviceNumber> {
        self.own.first().map(|(_, number)| *number)
    }

    /// Returns true if `path` leads to one of the devices.
    pub(crate) fn includes(&self, path: &Path) -> bool {
        DeviceNumber::of_block_device(path)
            .is_ok_and(|number| self.own.iter().any(|(_, own)| *own == number))
    }

    /// All mounts of the devices: file systems, and bind mounts of device nodes.
    pub(crate) fn mounts<'a>(&'a self, table: &'a MountTable) -> impl Iterator<Item = &'a Mount> {
        let own = self
            .own
            .iter()
            .map(|(path, number)| (path.as_path(), *number));
        let read_only = self
            .read_only
            .iter()
            .map(|(device, number)| (device.path.as_path(), *number));
        own.chain(read_only)
            .flat_map(|(path, number)| table.of_block_device(path, number))
    }

    /// The mount at `path`.
    pub(crate) fn at(&self, table: &MountTable, path: &Path) -> PathState {
        // The mount table has resolved paths; a path with a missing parent cannot be a mount point.
        let path = mount::resolve(path).unwrap_or_else(|_| path.to_owned());
        self.whose(table, table.at(&path).cloned())
    }

    fn whose(&self, table: &MountTable, top: Option<Mount>) -> PathState {
        let Some(top) = top.map(Box::new) else {
            return PathState::Nothing;
        };
        if self.mounts(table).any(|mount| mount.id == top.id) {
            PathState::Ours(top)
        } else {
            PathState::Foreign(top)
        }
    }

    /// The mount at a target path, read now.
    ///
    /// # Errors
    /// `Invalid` if a symbolic link leads out of the allowed root.
    pub(crate) fn at_spot(&self, spot: &TargetLocation) -> Result<PathState> {
        match spot {
            TargetLocation::Path(path) => Ok(self.at(&MountTable::read()?, path)),
            TargetLocation::Beneath(place) => {
                let mount = place.mount()?;
                Ok(self.whose(&MountTable::read()?, mount))
            }
        }
    }

    /// Unmounts all mounts of these devices from a target path.
    ///
    /// # Errors
    /// `Precondition` if something else is mounted there and the volume may be published, `InUse` if the mount is busy.
    pub(crate) fn take_away(&self, spot: &TargetLocation) -> Result<TakenAway> {
        let mut was_there = TakenAway::Nothing;
        for _ in 0..mount::DEEPEST_STACK {
            match self.at_spot(spot)? {
                PathState::Nothing => return Ok(was_there),
                PathState::Foreign(mount) => {
                    let table = MountTable::read()?;
                    // It may be the volume's under this one, or in a directory that was moved away: all but one are
                    // publications, and that one is where it is staged.
                    let ours: Vec<&Mount> = self.mounts(&table).collect();
                    let is_published =
                        |ours: &&Mount| ours.target == mount.target || ours.fs_type == "devtmpfs";
                    if ours.len() > 1 || ours.iter().any(is_published) {
                        return Err(PathState::foreign("target_path", &mount));
                    }
                    return Ok(TakenAway::Foreign);
                }
                PathState::Ours(mount) => {
                    fail::point("unpublish.found");
                    spot.unmount(&mount)?;
                    was_there = TakenAway::Mount;
                }
            }
        }
        Err(Error::new(
            Kind::InUse,
            "could not unmount the volume from target_path: another process mounts it again after each unmount; stop that process",
        ))
    }

    /// The access for which it was mounted: read-only if its device or the mount is. A file system that became
    /// read-only after an error is still published as requested.
    pub(crate) fn access_of(&self, mount: &Mount, table: &MountTable) -> Access {
        let by_device = self.read_only.iter().any(|(device, number)| {
            table
                .of_block_device(&device.path, *number)
                .any(|other| other.id == mount.id)
        });
        if by_device {
            return Access::ReadOnly;
        }
        mount.access()
    }

    /// Detaches read-only loop devices that no mount uses.
    pub(crate) fn free_unused(&self) -> Result<()> {
        let table = MountTable::read()?;
        for (device, number) in &self.read_only {
            if table
                .of_block_device(&device.path, *number)
                .next()
                .is_none()
            {
                loop_device::detach(device)?;
            }
        }
        Ok(())
    }
}

impl LocatedImage {
    /// Calls `look` with the devices of the image and the mount table, both read now. `look` may block: a path of a
    /// caller may be on a file system that does not respond.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Self, (&Devices, &MountTable)) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let paths = self.class.backend.devices(self.image.id).await?;
        let found = self.clone();
        blocking(move || {
            let devices = Devices::over(paths)?;
            let table = MountTable::read()?;
            look(&found, (&devices, &table))
        })
        .await
    }

    /// Refuses an image that is mounted.
    ///
    /// # Errors
    /// [`Kind::InUse`] naming the mount points.
    pub(crate) async fn check_unmounted(&self) -> Result<()> {
        self.look(|found, (devices, table)| {
            let targets = devices.mounts(table).map(|mount| mount.target.display());
            let targets: Vec<String> = targets.map(|target| target.to_string()).collect();
            if targets.is_empty() {
                return Ok(());
            }
            Err(Error::new(
                Kind::InUse,
                format!(
                    "{} {} is mounted on {}",
                    found.image.id.kind.word(),
                    found.handle,
                    targets.join(" and ")
                ),
            ))
        })
        .await
    }
}

/// What was at a target path from which a volume was unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakenAway {
    /// Nothing was mounted there.
    Nothing,
    /// The volume, which is not there any more.
    Mount,
    /// Something else, and not the volume: the path is not touched.
    Foreign,
}

impl PathState {
    /// The error for a path with a foreign mount.
    pub(crate) fn foreign(field: &str, mount: &Mount) -> Error {
        Error::new(
            Kind::Precondition,
            format!(
                "{field} {} has a foreign mount on it ({}), of another volume or of the host; choose another path, or unmount that first",
                mount.target.display(),
                mount.source.to_string_lossy()
            ),
        )
    }
}
