//! Group snapshots: copies of several volumes at one point in time.
//!
//! The file systems of all members are frozen, then their images share blocks with the copies. Writers of a raw
//! volume cannot be quiesced: the kernel cannot suspend a loop device. Such a volume is refused.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use super::{Allocation, Inner};
use crate::{
    Error, Kind, Result,
    backend::{ImageSpec, Origin},
    fail,
    host::{
        Access, MountTable, copy, crypt_mapping, fdatasync, fsync, loop_device,
        quiesce::{DEFAULT_FREEZE_LIMIT, Member, QuiescePlan, QuiesceTarget, Step},
    },
    types::{ImageId, Size},
};

/// How an image is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyMethod {
    /// The copy shares the blocks, in an instant.
    Reflink,
    /// Block by block, in a time proportional to the size.
    Blocks,
}

/// The possible writers of an image.
enum Writers {
    /// None: it has no device, or everything mounted from it is read-only.
    None,
    /// Users of the file system that is mounted here.
    FileSystem(PathBuf),
}

impl Inner {
    fn writers(&self, id: ImageId) -> Result<Writers> {
        let devices = loop_device::find(&self.layout.image(id))?;
        let table = MountTable::read()?;
        let mut is_raw = false;
        for device in &devices {
            let mounts = table.file_systems_of(&crypt_mapping::uppermost(&device.path)?)?;
            let mut writable = mounts
                .iter()
                .filter(|mount| !mount.is_file_system_read_only());
            if let Some(mount) = writable.next() {
                return Ok(Writers::FileSystem(mount.target.clone()));
            }
            is_raw |= mounts.is_empty() && device.access == Access::ReadWrite;
        }
        if is_raw {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{id} is in use as a raw block device, which an image directory cannot quiesce for a group snapshot; unpublish and unstage it first, or use an LVM class"
                ),
            ));
        }
        Ok(Writers::None)
    }

    /// How images are copied here.
    pub(super) fn copy_method(&self) -> Result<CopyMethod> {
        let is_thick = self.settings.allocation == Allocation::Thick;
        Ok(
            if is_thick || !copy::supports_reflink(&self.settings.path)? {
                CopyMethod::Blocks
            } else {
                CopyMethod::Reflink
            },
        )
    }

    /// Refuses copies that cannot be part of one group snapshot, before anything is created.
    pub(super) fn check_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        let (mut frozen, mut bytes) = (None, 0);
        for spec in specs {
            let source = spec.source()?;
            self.layout.usable(source)?;
            let path = self.layout.image(source);
            let image = fs::metadata(&path);
            let image = image
                .map_err(|error| Error::io(format!("could not stat {}", path.display()), error))?;
            bytes += image.blocks() * 512;
            if let Writers::FileSystem(_) = self.writers(source)? {
                frozen = frozen.or(Some(source));
            }
        }
        if self.copy_method()? == CopyMethod::Reflink {
            return Ok(());
        }
        self.check_room(Size::try_from(bytes)?)?;
        if let (Some(source), None) = (frozen, self.settings.longest_freeze) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{source} is mounted, and {} cannot share blocks between images, so its writers would be quiesced during a full copy; set longestFreeze in the class to allow that, or use a file system with reflinks (xfs, btrfs)",
                    self.settings.path.display()
                ),
            ));
        }
        Ok(())
    }

    /// Creates the images of the copies, and returns the steps for the freeze barrier.
    pub(super) fn prepare_copies(&self, specs: &[ImageSpec]) -> Result<QuiescePlan> {
        let method = self.copy_method()?;
        let mut members = Vec::new();
        for spec in specs {
            let source = spec.source()?;
            let explain =
                |error: Error| Error::new(error.kind(), source.to_string()).because(error);
            members.push(self.prepare_copy(spec, method).map_err(explain)?);
            fail::point("directory.group-snapshot.made");
        }
        Ok(QuiescePlan {
            members,
            limit: self.settings.longest_freeze.unwrap_or(DEFAULT_FREEZE_LIMIT),
            ..QuiescePlan::default()
        })
    }

    fn prepare_copy(&self, spec: &ImageSpec, method: CopyMethod) -> Result<Member> {
        let source = spec.source()?;
        let blank = ImageSpec {
            origin: Origin::Blank,
            ..spec.clone()
        };
        self.create(&blank)?;
        let (from, to) = (self.layout.image(source), self.layout.image(spec.id));
        let open = |path: &PathBuf, access: Access| {
            let writes = access == Access::ReadWrite;
            let file = File::options().read(true).write(writes).open(path);
            file.map_err(|error| Error::io(format!("could not open {}", path.display()), error))
        };
        let (from, to) = (
            open(&from, Access::ReadOnly)?,
            open(&to, Access::ReadWrite)?,
        );
        let mut member = Member::default();
        if let Writers::FileSystem(mount_point) = self.writers(source)? {
            // Data that is synced now need not be synced while writers are quiesced.
            fdatasync(&from).map_err(|error| failed_sync(source, error))?;
            member.flushed.push(open(&mount_point, Access::ReadOnly)?);
            for list in [&mut member.settled, &mut member.held] {
                list.push(QuiesceTarget::FileSystem(open(
                    &mount_point,
                    Access::ReadOnly,
                )?));
            }
        }
        let step = match method {
            CopyMethod::Blocks => Step::Copy { from, to },
            CopyMethod::Reflink => Step::Share { from, to },
        };
        // Images without writers can be copied in advance.
        if method == CopyMethod::Blocks && member.held.is_empty() {
            member.before.push(step);
        } else {
            member.within.push(step);
        }
        Ok(member)
    }

    /// Syncs the copies to disk.
    pub(super) fn keep_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        for spec in specs {
            let image = File::open(self.layout.image(spec.id));
            let kept = image.and_then(|image| fsync(&image));
            kept.map_err(|error| failed_sync(spec.id, error))?;
            fail::point("directory.group-snapshot.kept");
        }
        Ok(())
    }
}

fn failed_sync(id: ImageId, error: std::io::Error) -> Error {
    Error::io(format!("could not sync {id} to disk"), error)
}
