//! What is on a volume that others made, and who uses it: read from the kernel and from the volume itself.

use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::{
    Result,
    backend::ForeignVolume,
    host::{
        DeviceNumber, FileSystem, Fstab, FstabEntry, Mount, MountOptions, MountTable, Probe,
        Superblock, holders, probe,
    },
};

/// Where a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedAt {
    /// The mount point.
    pub path: String,
    /// Its options that differ from the kernel's defaults, as a manifest can ask for them.
    pub options: Vec<String>,
    /// True if this mount is read-only and its file system is not.
    pub read_only: bool,
}

/// What is on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Contents {
    /// Its file system, if this agent mounts that.
    pub(crate) superblock: Option<Superblock>,
    /// Where it is mounted.
    pub(crate) mount: Option<MountedAt>,
    /// Why it cannot be adopted, each with what to do.
    pub(crate) refusals: Vec<String>,
    /// What the administrator should know.
    pub(crate) warnings: Vec<String>,
}

/// What the host has mounted, and what it mounts at its start.
#[derive(Debug)]
pub(crate) struct HostMounts {
    table: Result<MountTable>,
    fstab: Result<Fstab>,
}

impl HostMounts {
    /// Reads both, once for all volumes that are looked at.
    pub(crate) fn read() -> Self {
        Self {
            table: MountTable::read(),
            fstab: Fstab::read(),
        }
    }
}

/// Mount points of the host itself: it does not start, or this agent does not run, without what is there.
const OF_HOST: [&str; 8] = [
    "/",
    "/boot",
    "/boot/efi",
    "/etc",
    "/usr",
    "/var",
    "/var/lib",
    "/run",
];

/// The components of paths at which kubelet mounts the volumes of pods.
const OF_KUBELET: [&str; 2] = ["/volumes/kubernetes.io~csi/", "/plugins/kubernetes.io/csi/"];

impl Contents {
    /// Reads what is on a volume.
    ///
    /// # Errors
    /// `Io` when it, or the mount table, cannot be read.
    pub(crate) fn of(volume: &ForeignVolume, host: &HostMounts) -> Result<Self> {
        let mut contents = Self::default();
        let Some(path) = &volume.contents else {
            return Ok(contents);
        };
        let found = probe(path)?;
        match &found {
            Probe::Known(superblock) => contents.is_file_system(superblock, volume, path)?,
            Probe::Blank => contents.refuse(
                "it has no file system: its beginning and its end are zero; a new volume does the same".to_owned(),
            ),
            Probe::Foreign(name) => contents.refuse(format!(
                "it contains {name}, which this agent does not mount"
            )),
        }
        if let Some(device) = &volume.device {
            contents.look_above(device);
            match &host.table {
                Ok(table) => contents.look_at_mounts(device, table)?,
                Err(error) => contents.refuse(format!(
                    "it is not known whether it is mounted: {}",
                    error.chain()
                )),
            }
        }
        match &host.fstab {
            Ok(fstab) => contents.look_at_fstab(volume, fstab),
            Err(error) => contents.warnings.push(format!(
                "it is not known what mounts it at a start of the host: {}",
                error.chain()
            )),
        }
        Ok(contents)
    }

    fn refuse(&mut self, why: String) {
        self.refusals.push(why);
    }

    fn is_file_system(
        &mut self,
        superblock: &Superblock,
        volume: &ForeignVolume,
        path: &Path,
    ) -> Result<()> {
        if superblock.size_bytes > volume.size.bytes() {
            self.refuse(format!(
                "its file system has {} bytes, more than it has itself; extend it first",
                superblock.size_bytes
            ));
        }
        if superblock.kind == FileSystem::Btrfs && devices_of_btrfs(path)? != 1 {
            self.refuse(
                "its btrfs is on several devices, which a volume cannot be; remove the others with btrfs device remove".to_owned(),
            );
        }
        self.superblock = Some(superblock.clone());
        Ok(())
    }

    /// Devices on top of its device use it without a mount.
    fn look_above(&mut self, device: &Path) {
        let above = holders::devices_over(device);
        if !above.is_empty() {
            let above: Vec<String> = above
                .iter()
                .map(|above| above.display().to_string())
                .collect();
            self.refuse(format!(
                "it is in use by {}; stop that use first",
                above.join(", ")
            ));
        }
    }

    fn look_at_mounts(&mut self, device: &Path, table: &MountTable) -> Result<()> {
        let number = DeviceNumber::of_block_device(device)?;
        let mounts: Vec<&Mount> = table.of_block_device(device, number).collect();
        match mounts.as_slice() {
            [] if is_claimed(device) => self.refuse(format!(
                "its device {} is in use by something that this agent cannot see, possibly a mount in another mount namespace; stop that use first",
                device.display()
            )),
            [] => {}
            [mount] => self.look_at_mount(mount, table),
            several => {
                let targets: Vec<String> = several
                    .iter()
                    .map(|mount| mount.target.display().to_string())
                    .collect();
                self.refuse(format!(
                    "it is mounted at several places ({}), and a volume has one; unmount all but one",
                    targets.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// What mounts it at a start of the host does so after the adoption, too.
    fn look_at_fstab(&mut self, volume: &ForeignVolume, fstab: &Fstab) {
        let device = volume.device.as_ref();
        let entry = device.and_then(|device| fstab.of_source(device));
        let entry = entry.or_else(|| fstab.of_source(Path::new(&volume.source)));
        let target = self.mount.as_ref().map(|mount| Path::new(&mount.path));
        let entry = entry.or_else(|| fstab.at(target?));
        let Some(FstabEntry {
            line,
            target,
            is_needed,
            ..
        }) = entry
        else {
            return;
        };
        let then = match (volume.source.starts_with('/'), is_needed) {
            (false, _) => {
                "remove that line once its object is Ready, or both mount it after a start of the host"
            }
            (true, false) => "after the adoption there is no such file; remove that line",
            (true, true) => {
                "after the adoption there is no such file, and the host does not start with a line that cannot be mounted; remove it"
            }
        };
        self.warnings.push(format!(
            "line {line} of {} mounts it at {}: {then}",
            fstab.path.display(),
            target.display()
        ));
    }

    fn look_at_mount(&mut self, mount: &Mount, table: &MountTable) {
        let shown = mount.target.display();
        let Some(target) = mount.target.to_str() else {
            self.refuse(format!(
                "it is mounted at {shown}, a path that is not UTF-8"
            ));
            return;
        };
        if mount.fs_type == "devtmpfs" {
            self.refuse(format!(
                "its device node is mounted at {shown}, so it may be used raw there; unmount that"
            ));
            return;
        }
        if is_of_kubelet(target) {
            self.refuse(format!(
                "kubelet has it mounted at {shown}, so a pod uses it; stop the pod, and keep its data (PersistentVolume with persistentVolumeReclaimPolicy: Retain)"
            ));
        } else if OF_HOST.contains(&target) {
            self.refuse(format!(
                "it is mounted at {shown}, which the host itself needs"
            ));
        }
        if mount.root != Path::new("/") {
            self.refuse(format!(
                "only {} of its file system is mounted at {shown}, and a volume is mounted as a whole; mount its root there",
                mount.root.display()
            ));
        }
        if table
            .at(&mount.target)
            .is_some_and(|top| top.id != mount.id)
        {
            self.refuse(format!(
                "another mount at {shown} covers it; unmount that first"
            ));
        }
        let kind = self.superblock.as_ref().map(|superblock| superblock.kind);
        let Some(kind) = kind else { return };
        if mount.fs_type != kind.name() {
            self.refuse(format!(
                "it is mounted as {}, not as {kind}; mount it as {kind}",
                mount.fs_type
            ));
        }
        let (options, unknown) = options_of(mount, kind);
        if !unknown.is_empty() {
            self.warnings.push(format!(
                "it is mounted with {}, with which this agent mounts nothing: they are gone when it is mounted next",
                unknown.join(",")
            ));
        }
        self.mount = Some(MountedAt {
            path: target.to_owned(),
            options,
            read_only: mount.read_only && !mount.is_file_system_read_only(),
        });
    }
}

/// The options of a mount that differ from the kernel's defaults: those that this agent mounts with, and the others.
fn options_of(mount: &Mount, kind: FileSystem) -> (Vec<String>, Vec<String>) {
    /// Of the mount: the defaults, and the access, which is not an option of the file system.
    const OF_MOUNT: [&str; 3] = ["rw", "ro", "relatime"];
    // What the kernel shows though nobody asked for it: defaults, the geometry of the file system, security labels.
    let of_kernel: &[&str] = match kind {
        FileSystem::Ext4 => &["seclabel", "stripe="],
        FileSystem::Xfs => &[
            "seclabel",
            "attr2",
            "inode64",
            "logbufs=8",
            "logbsize=32k",
            "noquota",
            "sunit=",
            "swidth=",
            "nouuid",
        ],
        FileSystem::Btrfs => &[
            "seclabel",
            "ssd",
            "space_cache",
            "space_cache=",
            "discard=async",
            "subvolid=",
            "subvol=",
        ],
    };
    let is_default = |option: &str| {
        let is = |default: &&str| {
            option == *default || default.ends_with('=') && option.starts_with(default)
        };
        option == "rw" || of_kernel.iter().any(is)
    };
    let own = mount
        .options
        .split(',')
        .filter(|option| !OF_MOUNT.contains(option));
    let of_file_system = mount
        .super_options
        .split(',')
        .filter(|option| !is_default(option));
    own.chain(of_file_system)
        .filter(|option| !option.is_empty())
        .map(str::to_owned)
        .partition(|option| MountOptions::parse(kind, &[option]).is_ok())
}

/// Returns true if a mount or another device has claimed a block device, in whatever mount namespace.
fn is_claimed(device: &Path) -> bool {
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(device);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Returns true for a path at which kubelet mounts a volume, for a pod or to be shared by pods.
pub(crate) fn is_of_kubelet(target: &str) -> bool {
    OF_KUBELET.iter().any(|part| target.contains(part))
}

/// The number of devices of the btrfs on a device (`linux/include/uapi/linux/btrfs_tree.h`, `num_devices`).
fn devices_of_btrfs(path: &Path) -> Result<u64> {
    const NUMBER: u64 = 65_536 + 0x88;
    let read = || -> std::io::Result<u64> {
        let mut bytes = [0; 8];
        File::open(path)?.read_exact_at(&mut bytes, NUMBER)?;
        Ok(u64::from_le_bytes(bytes))
    };
    read().map_err(|error| crate::Error::io(format!("could not read {}", path.display()), error))
}

/// The path of a device as `GROUP/NAME`, if it is the path of a logical volume: `/dev/GROUP/NAME`, or device-mapper's
/// name for it, in which a dash is doubled.
pub(crate) fn logical_volume(path: &str) -> Option<String> {
    if let Some(name) = path.strip_prefix("/dev/mapper/") {
        let marked = name.replace("--", "\0");
        let (group, volume) = marked.split_once('-')?;
        let plain = |text: &str| text.replace('\0', "-");
        let is_one = !volume.contains(['-', '/']) && !group.is_empty() && !volume.is_empty();
        return is_one.then(|| format!("{}/{}", plain(group), plain(volume)));
    }
    let rest = path.strip_prefix("/dev/")?;
    let mut parts = Path::new(rest).components();
    let is_pair = parts.by_ref().count() == 2;
    is_pair.then(|| PathBuf::from(rest).to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(options: &str, super_options: &str) -> Mount {
        let line = format!(
            "36 35 253:0 / /srv/data {options} shared:1 - ext4 /dev/mapper/vg-data {super_options}\n"
        );
        let table = MountTable::parse(line.as_bytes()).unwrap();
        table.iter().next().unwrap().clone()
    }

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_options_of_a_mount_are_those_that_somebody_asked_for() {
        type Case = (
            FileSystem,
            &'static str,
            &'static str,
            &'static [&'static str],
            &'static [&'static str],
        );
        let cases: [Case; 6] = [
            (FileSystem::Ext4, "rw,relatime", "rw,stripe=16", &[], &[]),
            (
                FileSystem::Ext4,
                "rw,nosuid,noatime",
                "rw,discard,errors=remount-ro",
                &["nosuid", "noatime", "discard", "errors=remount-ro"],
                &[],
            ),
            (FileSystem::Ext4, "ro,relatime", "ro", &["ro"], &[]),
            (
                FileSystem::Ext4,
                "rw,relatime",
                "rw,nobarrier",
                &[],
                &["nobarrier"],
            ),
            (
                FileSystem::Xfs,
                "rw,relatime",
                "rw,attr2,inode64,logbufs=8,logbsize=32k,prjquota",
                &["prjquota"],
                &[],
            ),
            (
                FileSystem::Btrfs,
                "rw,relatime",
                "rw,compress=zstd:3,ssd,discard=async,space_cache=v2,subvolid=5,subvol=/",
                &["compress=zstd:3"],
                &[],
            ),
        ];
        for (kind, options, super_options, known, unknown) in cases {
            let (left, right) = options_of(&mount(options, super_options), kind);
            assert_eq!(
                (left, right),
                (owned(known), owned(unknown)),
                "{options} {super_options}"
            );
        }
    }

    #[test]
    fn a_logical_volume_is_named_by_either_of_its_paths() {
        for (path, name) in [
            ("/dev/vg/data", Some("vg/data")),
            ("/dev/vg-a/data.b", Some("vg-a/data.b")),
            ("/dev/mapper/vg-data", Some("vg/data")),
            ("/dev/mapper/vg--a-pvc--1", Some("vg-a/pvc-1")),
            ("/dev/mapper/vg-data-real", None),
            ("/dev/mapper/data", None),
            ("/dev/sda", None),
            ("/dev/disk/by-id/x", None),
            ("/srv/data", None),
        ] {
            assert_eq!(logical_volume(path).as_deref(), name, "{path}");
        }
    }
}
