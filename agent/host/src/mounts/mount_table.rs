//! The mount table: `/proc/self/mountinfo`, read on every use.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use crate::{Access, Error, Result};

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The kernel's number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device within its driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Converts a `dev_t`, as in `st_dev` and `st_rdev`.
    pub fn from_dev(dev: u64) -> Self {
        Self {
            major: libc::major(dev),
            minor: libc::minor(dev),
        }
    }

    /// The number of the block device at `path`.
    ///
    /// # Errors
    /// `Io` when it does not exist, or when `path` is not a block device.
    pub fn of_block_device(path: &Path) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let metadata = fs::metadata(path).map_err(|error| {
            Error::io(format!("could not stat device {}", path.display()), error)
        })?;
        if !metadata.file_type().is_block_device() {
            return Err(Error::io(
                format!("{} is not a block device", path.display()),
                io::Error::from_raw_os_error(libc::ENOTBLK),
            ));
        }
        Ok(Self::from_dev(metadata.rdev()))
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The id of the mount.
    pub id: u64,
    /// The id of the mount that it is mounted on.
    pub parent: u64,
    /// The device of its file system; an anonymous number for btrfs.
    pub device: DeviceNumber,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub target: PathBuf,
    /// True if this mount is read-only, independent of its file system.
    pub read_only: bool,
    /// The options of this mount, separated by commas.
    pub options: String,
    /// The file system type.
    pub fs_type: String,
    /// The mount source: mostly a device.
    pub source: OsString,
    /// The options of its file system, separated by commas.
    pub super_options: String,
}

impl Mount {
    /// Returns true if the file system itself is mounted read-only.
    pub fn is_file_system_read_only(&self) -> bool {
        self.super_options.split(',').any(|option| option == "ro")
    }

    /// The access that this mount permits, independent of its file system.
    pub fn access(&self) -> Access {
        if self.read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }

    /// The access that this mount and its file system permit.
    pub fn effective_access(&self) -> Access {
        if self.is_file_system_read_only() {
            return Access::ReadOnly;
        }
        self.access()
    }

    /// Returns true if the mount or its file system has this option.
    pub fn has_option(&self, option: &str) -> bool {
        [&self.options, &self.super_options]
            .into_iter()
            .any(|options| options.split(',').any(|one| one == option))
    }
}

/// The mounts that are visible to this process, in the kernel's order: a mount comes after those that it covers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the current table.
    pub fn read() -> Result<Self> {
        let text = fs::read(MOUNTINFO)
            .map_err(|error| Error::io(format!("could not read {MOUNTINFO}"), error))?;
        Self::parse(&text)
    }

    /// Parses the text of a mountinfo file.
    ///
    /// # Errors
    /// `Io` with the line that cannot be parsed. The line is not skipped: "not mounted" permits deletion.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        let mounts = lines.map(|line| parse_line(line).ok_or_else(|| unreadable(line)));
        Ok(Self {
            mounts: mounts.collect::<Result<_>>()?,
        })
    }

    /// All mounts.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// The topmost mount exactly at `target`, a path without symbolic links.
    pub fn at(&self, target: &Path) -> Option<&Mount> {
        let wanted = target.as_os_str();
        // Comparing bytes keeps thousands of mounts cheap; paths are compared by component.
        self.mounts
            .iter()
            .rfind(|mount| mount.target.as_os_str() == wanted)
    }

    /// All mounts stacked exactly at `target`, the topmost first.
    pub fn all_at<'a>(&'a self, target: &'a Path) -> impl Iterator<Item = &'a Mount> {
        let wanted = target.as_os_str();
        self.mounts
            .iter()
            .rev()
            .filter(move |mount| mount.target.as_os_str() == wanted)
    }

    /// All mounts of the file system with this device number.
    pub fn of_device(&self, device: DeviceNumber) -> impl Iterator<Item = &Mount> {
        self.mounts
            .iter()
            .filter(move |mount| mount.device == device)
    }

    /// All mounts of the file system on the block device at `path`, and bind mounts of the device node itself.
    ///
    /// btrfs mounts have an anonymous device number, so there the source is compared instead. A bind-mounted node is
    /// recognised by its name below `/dev`: `path`, or the target of that link, as udev creates them for
    /// device-mapper.
    pub fn of_block_device<'a>(
        &'a self,
        path: &'a Path,
        device: DeviceNumber,
    ) -> impl Iterator<Item = &'a Mount> {
        let node = node_root(path).map(OsStr::to_owned);
        let linked = fs::canonicalize(path).ok();
        let linked = linked.and_then(|path| node_root(&path).map(OsStr::to_owned));
        self.mounts.iter().filter(move |mount| {
            let is_node =
                |node: &Option<OsString>| node.as_ref().is_some_and(|node| shows_node(mount, node));
            mount.device == device
                || (mount.device.major == 0 && is_source(&mount.source, path, device))
                || (mount.fs_type == "devtmpfs" && (is_node(&node) || is_node(&linked)))
        })
    }

    /// The mounts of the file system on the block device at `path`.
    ///
    /// # Errors
    /// When `path` is not a block device.
    pub fn file_systems_of(&self, path: &Path) -> Result<Vec<&Mount>> {
        let device = DeviceNumber::of_block_device(path)?;
        let is_on_it = |mount: &&Mount| {
            mount.device == device
                || (mount.device.major == 0 && is_source(&mount.source, path, device))
        };
        Ok(self.mounts.iter().filter(is_on_it).collect())
    }

    /// All mounts at `target` or below it.
    pub fn below<'a>(&'a self, target: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts
            .iter()
            .filter(move |mount| mount.target.starts_with(target))
    }

    /// The mount with this id.
    pub fn by_id(&self, id: u64) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.id == id)
    }

    /// Returns true if another mount is on top of the mount with this id.
    pub fn has_on(&self, id: u64) -> bool {
        self.mounts.iter().any(|mount| mount.parent == id)
    }

    /// The mount that contains `path`, which has no symbolic links.
    pub fn holding(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }
}

/// The root in mountinfo of a bind mount of the device node `/dev/<name>`: `/<name>`.
fn node_root(path: &Path) -> Option<&OsStr> {
    path.as_os_str()
        .as_bytes()
        .strip_prefix(b"/dev")
        .map(OsStr::from_bytes)
}

/// Returns true if a mount shows the node with this root, even if the node was removed since, or replaced by a link.
fn shows_node(mount: &Mount, node: &OsStr) -> bool {
    const REMOVED: &[u8] = b"//deleted";
    let root = mount.root.as_os_str().as_bytes();
    root.strip_suffix(REMOVED).unwrap_or(root) == node.as_bytes()
}

fn is_source(source: &OsStr, path: &Path, device: DeviceNumber) -> bool {
    source == path.as_os_str()
        || (source.as_bytes().starts_with(b"/dev/")
            && fs::metadata(source).is_ok_and(|node| DeviceNumber::from_dev(node.rdev()) == device))
}

fn unreadable(line: &[u8]) -> Error {
    Error::io(
        format!(
            "could not parse the line {:?} of {MOUNTINFO}; unmount the mount in that line, or upgrade this agent",
            String::from_utf8_lossy(line)
        ),
        io::ErrorKind::InvalidData,
    )
}

/// One line: `36 35 98:0 /root /target rw,noatime optional:fields - ext4 /dev/sda rw,errors=continue`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = parse_device(fields.next()?)?;
    let root = PathBuf::from(unescape(fields.next()?));
    let target = PathBuf::from(unescape(fields.next()?));
    let options = text(fields.next()?);
    // Any number of optional fields, terminated by a single dash.
    fields.by_ref().find(|field| *field == b"-")?;
    let fs_type = text(fields.next()?);
    let source = unescape(fields.next()?);
    let super_options = text(fields.next().unwrap_or_default());
    Some(Mount {
        id,
        parent,
        device,
        root,
        target,
        read_only: options.split(',').any(|option| option == "ro"),
        options,
        fs_type,
        source,
        super_options,
    })
}

fn parse_device(field: &[u8]) -> Option<DeviceNumber> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(unescape(field).as_bytes()).into_owned()
}

/// Decodes space, tab, newline, backslash and `#`, which are encoded as a backslash and three octal digits.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                tail @ ..,
            ] => (((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'), tail),
            _ => (*first, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escape(bytes: &[u8]) -> Vec<u8> {
        let mut escaped = Vec::new();
        for byte in bytes {
            if b" \t\n\\#".contains(byte) {
                escaped.extend(format!("\\{byte:03o}").bytes());
            } else {
                escaped.push(*byte);
            }
        }
        escaped
    }

    #[test]
    fn a_line_of_the_kernels_is_read() {
        let table = MountTable::parse(
            b"36 35 98:0 /mnt1 /mnt\\0402 ro,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n",
        )
        .unwrap();
        let mount = table.iter().next().unwrap();
        assert_eq!((mount.id, mount.parent), (36, 35));
        assert_eq!(mount.device.to_string(), "98:0");
        assert_eq!(mount.root, Path::new("/mnt1"));
        assert_eq!(mount.target, Path::new("/mnt 2"));
        assert_eq!(mount.fs_type, "ext3");
        assert_eq!(mount.source, "/dev/root");
        assert!(mount.read_only && !mount.is_file_system_read_only());
        assert!(mount.has_option("noatime") && mount.has_option("errors=continue"));
    }

    #[test]
    fn what_covers_is_found_before_what_it_covers() {
        let table = MountTable::parse(
            b"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /mnt rw - ext4 /dev/b rw\n3 2 8:3 / /mnt rw - ext4 /dev/c rw\n",
        )
        .unwrap();
        assert_eq!(table.at(Path::new("/mnt")).unwrap().id, 3);
        assert_eq!(table.holding(Path::new("/mnt/a/b")).unwrap().id, 3);
        assert_eq!(table.holding(Path::new("/mntx")).unwrap().id, 1);
        assert_eq!(table.all_at(Path::new("/mnt")).count(), 2);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_an_error_that_shows_it() {
        let whole = "1 0 8:1 / / rw - ext4 /dev/a rw";
        for line in [
            "2 1 8:2 / /mnt rw shared:1 ext4 /dev/b rw",
            "2 1 8-2 / /mnt rw - ext4 /dev/b rw",
            "two 1 8:2 / /mnt rw - ext4 /dev/b rw",
            "2 1 8:2 / /mnt rw -",
        ] {
            let text = format!("{whole}\n{line}\n{whole}\n");
            let error = MountTable::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), crate::Kind::Io, "{error}");
            assert!(error.to_string().contains(line), "{error}");
        }
    }

    #[test]
    fn this_machines_table_has_a_root() {
        assert!(MountTable::read().unwrap().at(Path::new("/")).is_some());
    }

    proptest! {
        #[test]
        fn any_path_survives_the_kernels_escapes(
            path in prop::collection::vec(1_u8.., 1..40),
            optional in prop::collection::vec("[a-z]{1,6}:[0-9]{1,3}", 0..4),
        ) {
            let mut line = b"7 6 0:5 / ".to_vec();
            line.extend(escape(&path));
            line.extend(b" rw ");
            for field in optional {
                line.extend(field.bytes());
                line.push(b' ');
            }
            line.extend(b"- tmpfs ");
            line.extend(escape(&path));
            line.extend(b" rw\n");
            let table = MountTable::parse(&line).unwrap();
            let mount = table.iter().next().unwrap();
            prop_assert_eq!(mount.target.as_os_str().as_bytes(), &path);
            prop_assert_eq!(mount.source.as_bytes(), &path);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = MountTable::parse(&text);
        }
    }
}
