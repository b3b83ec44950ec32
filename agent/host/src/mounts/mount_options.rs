//! Mount flags of a request, checked against an allowlist.

use std::collections::BTreeMap;

use nix::mount::MsFlags;

use crate::{Access, FileSystem, Mount};
use crate::{Error, Result};

/// The value that an option takes.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// No value.
    None,
    /// A number.
    Number,
    /// A number, optionally followed by `k`, `m` or `g`.
    Size,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// No value, or one of these words, optionally followed by `:` and a level.
    Maybe(&'static [&'static str]),
}

use Value::{Maybe, None as Bare, Number, OneOf, Size};

/// Options that are flags of mount(2): name, the flags that it sets, the flags that it clears.
const FLAGS: &[(&str, MsFlags, MsFlags)] = &[
    ("defaults", MsFlags::empty(), MsFlags::empty()),
    ("ro", MsFlags::MS_RDONLY, MsFlags::empty()),
    ("rw", MsFlags::empty(), MsFlags::MS_RDONLY),
    (
        "noatime",
        MsFlags::MS_NOATIME,
        MsFlags::MS_STRICTATIME.union(MsFlags::MS_RELATIME),
    ),
    (
        "relatime",
        MsFlags::MS_RELATIME,
        MsFlags::MS_STRICTATIME.union(MsFlags::MS_NOATIME),
    ),
    (
        "strictatime",
        MsFlags::MS_STRICTATIME,
        MsFlags::MS_NOATIME.union(MsFlags::MS_RELATIME),
    ),
    ("nodiratime", MsFlags::MS_NODIRATIME, MsFlags::empty()),
    ("diratime", MsFlags::empty(), MsFlags::MS_NODIRATIME),
    ("noexec", MsFlags::MS_NOEXEC, MsFlags::empty()),
    ("exec", MsFlags::empty(), MsFlags::MS_NOEXEC),
    ("nosuid", MsFlags::MS_NOSUID, MsFlags::empty()),
    ("suid", MsFlags::empty(), MsFlags::MS_NOSUID),
    ("nodev", MsFlags::MS_NODEV, MsFlags::empty()),
    ("dev", MsFlags::empty(), MsFlags::MS_NODEV),
    ("sync", MsFlags::MS_SYNCHRONOUS, MsFlags::empty()),
    ("async", MsFlags::empty(), MsFlags::MS_SYNCHRONOUS),
    ("dirsync", MsFlags::MS_DIRSYNC, MsFlags::empty()),
    ("lazytime", MsFlags::MS_LAZYTIME, MsFlags::empty()),
    ("nolazytime", MsFlags::empty(), MsFlags::MS_LAZYTIME),
];

// Excluded on purpose: options that reduce safety after a crash (`nobarrier`, `norecovery`, `noload`;
// `data=writeback` is allowed because it only exposes stale blocks of the volume itself), that mount another tree
// than the volume's (`subvol`), that can stop the host (`errors=panic`), and that name other devices (`logdev`,
// `device`).
const EXT4: &[(&str, Value)] = &[
    ("acl", Bare),
    ("auto_da_alloc", Bare),
    ("barrier", OneOf(&["1"])),
    ("block_validity", Bare),
    ("commit", Number),
    ("data", OneOf(&["ordered", "writeback", "journal"])),
    ("delalloc", Bare),
    ("dioread_lock", Bare),
    ("dioread_nolock", Bare),
    ("discard", Bare),
    ("errors", OneOf(&["remount-ro", "continue"])),
    ("grpquota", Bare),
    ("init_itable", Number),
    ("inode_readahead_blks", Number),
    ("journal_checksum", Bare),
    ("max_batch_time", Number),
    ("min_batch_time", Number),
    ("nodelalloc", Bare),
    ("nodiscard", Bare),
    ("noinit_itable", Bare),
    ("noquota", Bare),
    ("prjquota", Bare),
    ("stripe", Number),
    ("user_xattr", Bare),
    ("usrquota", Bare),
];

const XFS: &[(&str, Value)] = &[
    ("allocsize", Size),
    ("discard", Bare),
    ("filestreams", Bare),
    ("gquota", Bare),
    ("grpquota", Bare),
    ("inode32", Bare),
    ("inode64", Bare),
    ("largeio", Bare),
    ("logbsize", Size),
    ("logbufs", Number),
    ("nodiscard", Bare),
    ("nolargeio", Bare),
    ("noquota", Bare),
    ("nouuid", Bare),
    ("pquota", Bare),
    ("prjquota", Bare),
    ("sunit", Number),
    ("swalloc", Bare),
    ("swidth", Number),
    ("uquota", Bare),
    ("usrquota", Bare),
    ("wsync", Bare),
];

const BTRFS: &[(&str, Value)] = &[
    ("acl", Bare),
    ("autodefrag", Bare),
    ("barrier", Bare),
    ("commit", Number),
    ("compress", Maybe(&["zlib", "lzo", "zstd", "no", "none"])),
    ("compress-force", Maybe(&["zlib", "lzo", "zstd"])),
    ("discard", Maybe(&["sync", "async"])),
    ("flushoncommit", Bare),
    ("max_inline", Size),
    ("metadata_ratio", Number),
    ("noautodefrag", Bare),
    ("nodiscard", Bare),
    ("noflushoncommit", Bare),
    ("nossd", Bare),
    ("space_cache", OneOf(&["v2"])),
    ("ssd", Bare),
    ("ssd_spread", Bare),
    ("thread_pool", Number),
];

/// The flags that restrict each mount of a file system individually: name, flag, `MOUNT_ATTR_*` of linux/mount.h.
const RESTRICTIONS: [(&str, MsFlags, u64); 5] = [
    ("nosuid", MsFlags::MS_NOSUID, 0x02),
    ("nodev", MsFlags::MS_NODEV, 0x04),
    ("noexec", MsFlags::MS_NOEXEC, 0x08),
    ("noatime", MsFlags::MS_NOATIME, 0x10),
    ("nodiratime", MsFlags::MS_NODIRATIME, 0x80),
];

/// The flags after applying an option; none if it is not a flag.
fn with_flag(flags: MsFlags, option: &str) -> Option<MsFlags> {
    let (_, set, cleared) = FLAGS.iter().find(|(name, ..)| *name == option)?;
    Some(flags.difference(*cleared).union(*set))
}

/// Restrictions of one mount of a file system, independent of its other mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restrictions(MsFlags);

impl Restrictions {
    /// No restrictions.
    pub const NONE: Self = Self(MsFlags::empty());

    /// The restrictions among the mount flags of a request, which have been checked.
    pub fn among(flags: &[impl AsRef<str>]) -> Self {
        let mut found = MsFlags::empty();
        for option in flags.iter().flat_map(|flags| flags.as_ref().split(',')) {
            found = with_flag(found, option.trim()).unwrap_or(found);
        }
        Self(found)
    }

    fn each(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = RESTRICTIONS.into_iter();
        let asked = all.filter(move |(_, flag, _)| self.0.contains(*flag));
        asked.map(|(name, _, attribute)| (name, attribute))
    }

    /// The restrictions of a mount.
    pub fn at(mount: &Mount) -> Self {
        let has = RESTRICTIONS
            .into_iter()
            .filter(|(name, ..)| mount.has_option(name));
        Self(has.fold(MsFlags::empty(), |all, (_, flag, _)| all.union(flag)))
    }

    /// These and others.
    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0.union(others.0))
    }

    /// Returns true if a mount has these and no other restrictions.
    pub fn are_those_of(self, mount: &Mount) -> bool {
        self.attributes() == Self::at(mount).attributes()
    }

    /// Returns true if a mount has all of them, and perhaps others.
    pub fn hold_at(self, mount: &Mount) -> bool {
        self.each().all(|(name, _)| mount.has_option(name))
    }

    /// The attributes for `mount_setattr(2)`.
    pub(crate) fn attributes(self) -> u64 {
        self.each().fold(0, |all, (_, attribute)| all | attribute)
    }
}

/// Checked options of one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    kind: FileSystem,
    flags: MsFlags,
    data: Vec<String>,
}

impl MountOptions {
    /// The default options of a file system of this kind.
    pub fn new(kind: FileSystem) -> Self {
        let data = match kind {
            // A copy has its source's UUID, and xfs refuses to mount both without this.
            FileSystem::Xfs => vec!["nouuid".to_owned()],
            FileSystem::Ext4 | FileSystem::Btrfs => Vec::new(),
        };
        Self {
            kind,
            flags: MsFlags::empty(),
            data,
        }
    }

    /// Parses the mount flags of a request; each may contain several, separated by commas.
    ///
    /// # Errors
    /// `Invalid` naming the option that is not allowed, never its value, which may be a secret.
    pub fn parse(kind: FileSystem, flags: &[impl AsRef<str>]) -> Result<Self> {
        let mut options = Self::new(kind);
        for option in flags.iter().flat_map(|flags| flags.as_ref().split(',')) {
            options.add(option.trim())?;
        }
        Ok(options)
    }

    /// The same options with this access mode.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.flags
            .set(MsFlags::MS_RDONLY, access == Access::ReadOnly);
        self
    }

    /// The access mode.
    pub fn access(&self) -> Access {
        if self.flags.contains(MsFlags::MS_RDONLY) {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }

    /// The restrictions of the mount, independent of the options of its file system.
    pub fn restrictions(&self) -> Restrictions {
        Restrictions(self.flags)
    }

    /// Returns true if no option was requested but the access mode.
    pub fn are_defaults(&self) -> bool {
        self.of_mount().is_empty() && self.of_file_system().is_empty()
    }

    /// The requested options of the file system, separated by commas, in one order; of options that undo each other
    /// the last.
    pub fn of_file_system(&self) -> String {
        let built_in = Self::new(self.kind).data;
        let requested = self.data.iter().filter(|option| !built_in.contains(option));
        let by_name: BTreeMap<&str, &str> = requested
            .map(|option| {
                let name = option.split('=').next().unwrap_or(option);
                (name.strip_prefix("no").unwrap_or(name), option.as_str())
            })
            .collect();
        by_name.into_values().collect::<Vec<_>>().join(",")
    }

    /// The requested flags of the mount but the access mode, separated by commas, in one order.
    pub fn of_mount(&self) -> String {
        let set = FLAGS.iter().filter(|(_, set, _)| {
            !set.is_empty() && *set != MsFlags::MS_RDONLY && self.flags.contains(*set)
        });
        set.map(|(name, ..)| *name).collect::<Vec<_>>().join(",")
    }

    /// The flags for mount(2).
    pub(crate) fn flags(&self) -> MsFlags {
        self.flags
    }

    /// The data string for mount(2).
    pub(crate) fn data(&self) -> String {
        self.data.join(",")
    }

    /// The options of the file system, one by one.
    pub(crate) fn words(&self) -> Vec<String> {
        self.data.clone()
    }

    fn add(&mut self, option: &str) -> Result<()> {
        let kind = self.kind;
        if option.is_empty() {
            return Ok(());
        }
        if let Some(flags) = with_flag(self.flags, option) {
            self.flags = flags;
            return Ok(());
        }
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let list = match kind {
            FileSystem::Ext4 => EXT4,
            FileSystem::Xfs => XFS,
            FileSystem::Btrfs => BTRFS,
        };
        let shown = || name.escape_debug().to_string();
        let (_, wanted) = list
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "mount option `{}` is not allowed for {kind} volumes",
                    shown()
                ))
            })?;
        if !wanted.fits(value) {
            return Err(Error::invalid(format!(
                "mount option `{}` of {kind} {}",
                shown(),
                wanted.demand()
            )));
        }
        // The last of several counts.
        self.data.retain(|known| known != option);
        self.data.push(option.to_owned());
        Ok(())
    }
}

impl Value {
    fn fits(self, value: Option<&str>) -> bool {
        match (self, value) {
            (Bare | Maybe(_), None) => true,
            (Number, Some(text)) => is_number(text),
            (Size, Some(text)) => is_number(
                text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G'])
                    .unwrap_or(text),
            ),
            (OneOf(words), Some(text)) => words.contains(&text),
            (Maybe(words), Some(text)) => match text.split_once(':') {
                Some((word, level)) => words.contains(&word) && is_number(level),
                None => words.contains(&text),
            },
            (Bare, Some(_)) | (Number | Size | OneOf(_), None) => false,
        }
    }

    fn demand(self) -> String {
        match self {
            Bare => "takes no value".to_owned(),
            Number => "requires a number".to_owned(),
            Size => "requires a size such as 64k".to_owned(),
            OneOf(words) | Maybe(words) => format!("must be one of {}", words.join(", ")),
        }
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn later_flags_undo_earlier_ones() {
        let options =
            MountOptions::parse(FileSystem::Ext4, &["ro,noexec", "rw", "exec", "nosuid"]).unwrap();
        assert_eq!(options.flags(), MsFlags::MS_NOSUID);
        assert_eq!(options.access(), Access::ReadWrite);
    }

    #[test]
    fn what_a_mount_takes_away_is_told_from_what_a_file_system_is_told() {
        let flags = ["noatime,discard", "noexec", "nosuid", "suid", "commit=5"];
        let asked = Restrictions::among(&flags);
        assert_eq!(asked.attributes(), 0x18);
        let options = MountOptions::parse(FileSystem::Ext4, &flags).unwrap();
        assert_eq!(options.restrictions().attributes(), 0x18);
        assert_eq!(Restrictions::NONE.attributes(), 0);
    }

    #[test]
    fn xfs_always_ignores_the_uuid_and_says_so_once() {
        let options = MountOptions::parse(FileSystem::Xfs, &["nouuid", "logbsize=64k"]).unwrap();
        assert_eq!(options.data(), "nouuid,logbsize=64k");
    }

    #[test]
    fn an_option_off_the_list_is_refused_by_name_and_without_its_value() {
        for (kind, option) in [
            (FileSystem::Ext4, "nobarrier"),
            (FileSystem::Ext4, "barrier=0"),
            (FileSystem::Ext4, "errors=panic"),
            (FileSystem::Ext4, "journal_dev=2049"),
            (FileSystem::Ext4, "commit=+5"),
            (FileSystem::Ext4, "commit="),
            (FileSystem::Ext4, "bind"),
            (FileSystem::Ext4, "remount"),
            (FileSystem::Ext4, "loop"),
            (FileSystem::Xfs, "norecovery"),
            (FileSystem::Xfs, "logdev=/dev/sda"),
            (FileSystem::Btrfs, "subvol=/other"),
            (FileSystem::Btrfs, "compress=zstd:x"),
            (FileSystem::Btrfs, "degraded"),
            (FileSystem::Ext4, "password=hunter2"),
            (FileSystem::Ext4, "acl=yes"),
            (FileSystem::Ext4, "no\0such"),
        ] {
            let error = MountOptions::parse(kind, &[option]).unwrap_err();
            let (name, value) = option.split_once('=').unwrap_or((option, "hunter2"));
            assert_eq!(error.kind(), Kind::Invalid);
            let text = error.to_string();
            assert!(text.contains(&name.escape_debug().to_string()), "{text}");
            assert!(
                !text.contains("hunter2") && (value.len() < 4 || !text.contains(value)),
                "{text}"
            );
        }
    }

    #[test]
    fn known_options_are_passed_on() {
        let options = MountOptions::parse(
            FileSystem::Btrfs,
            &["compress=zstd:3", "ssd,space_cache=v2", "discard=async"],
        );
        assert_eq!(
            options.unwrap().data(),
            "compress=zstd:3,ssd,space_cache=v2,discard=async"
        );
        let options =
            MountOptions::parse(FileSystem::Ext4, &["commit=5,data=ordered", "discard", ""]);
        assert_eq!(options.unwrap().data(), "commit=5,data=ordered,discard");
    }
}
