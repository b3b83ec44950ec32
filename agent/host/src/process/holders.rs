//! Holders of a mount or a device; searched only after the kernel has refused an operation.

use std::{
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::{Error, Kind};
use crate::{
    loop_table,
    mount_table::{DeviceNumber, MountTable},
};

/// Maximum number of holders that are named; one is enough to begin with.
const MOST: usize = 5;

/// A process that uses a mount or device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its name, as in `ps -o comm`.
    pub name: String,
    /// How it uses it.
    pub what: &'static str,
}

/// The resource whose users are searched.
enum Resource<'a> {
    /// A file system with this `st_dev`, below one of these paths.
    FileSystem { dev: u64, targets: &'a [PathBuf] },
    /// The block device with this `st_rdev`.
    Device { rdev: u64 },
    /// The file with this `st_dev` and `st_ino`.
    File { dev: u64, inode: u64 },
}

/// Up to five processes that have their working directory, root, program or an open or mapped file on the mount at `target`.
pub fn of_mount(target: &Path) -> Vec<Holder> {
    let Ok(metadata) = fs::metadata(target) else {
        return Vec::new();
    };
    scan(&Resource::FileSystem {
        dev: metadata.dev(),
        targets: &[target.to_owned()],
    })
}

/// Up to five processes that have the block device `device` open.
pub fn of_device(device: &Path) -> Vec<Holder> {
    match fs::metadata(device) {
        Ok(metadata) => scan(&Resource::Device {
            rdev: metadata.rdev(),
        }),
        Err(_) => Vec::new(),
    }
}

/// Up to five processes that have the file at `path` open, as text for messages.
pub fn users_of_file(path: &Path) -> Vec<String> {
    let Ok(metadata) = fs::metadata(path) else {
        return Vec::new();
    };
    let users = scan(&Resource::File {
        dev: metadata.dev(),
        inode: metadata.ino(),
    });
    users.iter().map(describe).collect()
}

/// The block devices on top of the block device `device`: of device-mapper or md, and loop devices.
pub fn devices_over(device: &Path) -> Vec<PathBuf> {
    let mut above = Vec::new();
    if let Ok(number) = DeviceNumber::of_block_device(device)
        && let Ok(entries) = fs::read_dir(format!("/sys/dev/block/{number}/holders"))
    {
        let entries = entries.flatten();
        above.extend(entries.map(|entry| Path::new("/dev").join(entry.file_name())));
    }
    // The kernel reports stacked devices by its own name, not by udev's links.
    let own_name = fs::canonicalize(device);
    above.extend(loop_table::stacked_on(
        own_name.as_deref().unwrap_or(device),
    ));
    above
}

/// The error for a mount that cannot be unmounted.
pub(crate) fn mount_in_use(target: &Path) -> Error {
    let mut users = of_mount(target).iter().map(describe).collect::<Vec<_>>();
    if let Ok(table) = MountTable::read() {
        let below = table.below(target).filter(|mount| mount.target != target);
        users.extend(
            below
                .take(MOST)
                .map(|mount| format!("mount {}", mount.target.display())),
        );
    }
    in_use(&format!("mount {}", target.display()), &users)
}

/// The mounts, devices and processes that use the block device `device`, as text for messages.
pub fn users_of_device(device: &Path) -> Vec<String> {
    let mut users = lasting_users_of_device(device);
    users.extend(of_device(device).iter().map(describe));
    users
}

/// Only the mounts and devices among them: a process may just be probing it.
pub(crate) fn lasting_users_of_device(device: &Path) -> Vec<String> {
    let mut users = Vec::new();
    if let Ok(number) = DeviceNumber::of_block_device(device)
        && let Ok(table) = MountTable::read()
    {
        let mounts = table.of_block_device(device, number).take(MOST);
        users.extend(mounts.map(|mount| format!("mount {}", mount.target.display())));
    }
    let above = devices_over(device).into_iter();
    users.extend(above.map(|above| format!("device {}", above.display())));
    users
}

/// The error for a block device that cannot be detached.
pub fn device_in_use(device: &Path, users: &[String]) -> Error {
    in_use(&format!("device {}", device.display()), users)
}

fn in_use(what: &str, users: &[String]) -> Error {
    let who = if users.is_empty() {
        "a holder that this agent cannot see, possibly in another mount namespace".to_owned()
    } else {
        users.join(", ")
    };
    Error::new(
        Kind::InUse,
        format!("{what} is in use by {who}; stop that use first"),
    )
}

fn describe(holder: &Holder) -> String {
    format!("process {} ({}: {})", holder.pid, holder.name, holder.what)
}

fn scan(wanted: &Resource<'_>) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let what = use_of(&entry.path(), wanted)?;
            let name = fs::read(entry.path().join("comm")).unwrap_or_default();
            Some(Holder {
                pid,
                name: String::from_utf8_lossy(&name).trim_end().to_owned(),
                what,
            })
        })
        .take(MOST)
        .collect()
}

fn use_of(process: &Path, wanted: &Resource<'_>) -> Option<&'static str> {
    let open_files = || {
        fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| is_wanted(&entry.path(), wanted))
    };
    match wanted {
        Resource::Device { .. } => open_files().then_some("open device"),
        Resource::File { .. } => open_files().then_some("open file"),
        Resource::FileSystem { targets, .. } => [
            ("cwd", "working directory"),
            ("root", "root directory"),
            ("exe", "program"),
        ]
        .into_iter()
        .find(|(link, _)| is_wanted(&process.join(link), wanted))
        .map(|(_, what)| what)
        .or_else(|| open_files().then_some("open file"))
        .or_else(|| maps(process, targets).then_some("mapped file")),
    }
}

/// Returns true if a link in /proc leads to the resource.
fn is_wanted(link: &Path, wanted: &Resource<'_>) -> bool {
    // Following the link costs one call and does not depend on names; a dead network file system cannot block it,
    // because only the path is read until it matches.
    match wanted {
        Resource::Device { rdev } => {
            fs::read_link(link).is_ok_and(|path| path.starts_with("/"))
                && fs::metadata(link).is_ok_and(|file| file.rdev() == *rdev)
        }
        Resource::File { dev, inode } => {
            fs::read_link(link).is_ok_and(|path| path.starts_with("/"))
                && fs::metadata(link).is_ok_and(|file| file.dev() == *dev && file.ino() == *inode)
        }
        Resource::FileSystem { dev, targets } => {
            fs::read_link(link)
                .is_ok_and(|path| targets.iter().any(|target| path.starts_with(target)))
                && fs::metadata(link).is_ok_and(|file| file.dev() == *dev)
        }
    }
}

fn maps(process: &Path, targets: &[PathBuf]) -> bool {
    let Ok(text) = fs::read(process.join("maps")) else {
        return false;
    };
    text.split(|byte| *byte == b'\n').any(|line| {
        let Some(start) = line.iter().position(|byte| *byte == b'/') else {
            return false;
        };
        let path = PathBuf::from(OsString::from(std::ffi::OsStr::from_bytes(
            line.get(start..).unwrap_or_default(),
        )));
        targets.iter().any(|target| path.starts_with(target))
    })
}
