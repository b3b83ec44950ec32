//! Detects processes that have a file open for writing.
//!
//! A lease (`F_SETLEASE`) would show this, but no library wraps it safely, and a writer that opens the file during the
//! lease raises a signal that ends a process by default. `/proc` shows the same for one host, and is read only for
//! changed files.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::statfs::{self, FsType, fstatfs},
};

/// The known writers of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writers {
    /// No process has it open for writing.
    None,
    /// A process has it open for writing.
    Some,
    /// Unknown: not all processes are visible, or it can be written from another host.
    Unknown,
}

/// All files that processes have open for writing; built at most once for a scan of the directory, when needed.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    written: Option<Written>,
}

#[derive(Debug, Default)]
struct Written {
    /// The descriptors in `/proc`, by inode. A descriptor is resolved only if the inode matches: a file on an
    /// unresponsive network file system would block.
    files: HashMap<u64, Vec<PathBuf>>,
    is_all: bool,
}

impl OpenFiles {
    /// Returns the writers of `file`.
    pub(super) fn writers(&mut self, file: &File, metadata: &fs::Metadata) -> Writers {
        let written = self.written.get_or_insert_with(|| look(Path::new("/proc")));
        let mut candidates = written.files.get(&metadata.ino()).into_iter().flatten();
        let is_it = |link: &PathBuf| {
            fs::metadata(link)
                .is_ok_and(|found| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino()))
        };
        if candidates.any(is_it) {
            Writers::Some
        } else if written.is_all && is_local(file) {
            Writers::None
        } else {
            Writers::Unknown
        }
    }
}

/// Returns true if only processes of this host can write the file.
fn is_local(file: &File) -> bool {
    let local: [FsType; 6] = [
        statfs::EXT4_SUPER_MAGIC,
        statfs::XFS_SUPER_MAGIC,
        statfs::BTRFS_SUPER_MAGIC,
        statfs::TMPFS_MAGIC,
        statfs::OVERLAYFS_SUPER_MAGIC,
        statfs::HOSTFS_SUPER_MAGIC,
    ];
    fstatfs(file).is_ok_and(|found| local.contains(&found.filesystem_type()))
}

fn look(proc: &Path) -> Written {
    let mut written = Written {
        is_all: is_first_namespace(proc),
        ..Written::default()
    };
    let Ok(processes) = fs::read_dir(proc) else {
        return Written::default();
    };
    for process in processes.flatten() {
        let name = process.file_name();
        let is_process = name
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if is_process && let Err(error) = process_files(&process.path(), &mut written.files) {
            // A process that ended meanwhile has closed its files; one whose descriptors are hidden may write.
            written.is_all &= is_gone(&error);
        }
    }
    written
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error().map(Errno::from_raw) == Some(Errno::ESRCH)
}

fn process_files(process: &Path, files: &mut HashMap<u64, Vec<PathBuf>>) -> io::Result<()> {
    for descriptor in fs::read_dir(process.join("fd"))? {
        let descriptor = descriptor?;
        // The mode of the link shows how the file was opened: the owner's write bit is set if it is open for writing.
        let Ok(link) = descriptor.metadata() else {
            continue;
        };
        if link.mode() & 0o200 == 0 {
            continue;
        }
        let about = process.join("fdinfo").join(descriptor.file_name());
        if let Ok(about) = fs::read_to_string(about)
            && let Some(inode) = inode(&about)?
        {
            files.entry(inode).or_default().push(descriptor.path());
        }
    }
    Ok(())
}

/// The inode in a `/proc/<pid>/fdinfo/<descriptor>`; `None` if it was just closed.
fn inode(about: &str) -> io::Result<Option<u64>> {
    if about.is_empty() {
        return Ok(None);
    }
    let line = about.lines().find_map(|line| line.strip_prefix("ino:"));
    match line.and_then(|inode| inode.trim().parse().ok()) {
        Some(inode) => Ok(Some(inode)),
        // Kernels before 5.14 do not report it.
        None => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

/// Returns true if all processes of the host are visible: the kernel gives its first process namespace a fixed number.
fn is_first_namespace(proc: &Path) -> bool {
    fs::read_link(proc.join("self/ns/pid"))
        .is_ok_and(|namespace| namespace.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn writers(file: &File) -> Writers {
        OpenFiles::default().writers(file, &file.metadata().unwrap())
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_told_from_one_that_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        assert_ne!(writers(&file), Writers::Some, "a reader is no writer");
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(writers(&file), Writers::Some);
        drop(writer);
        assert_ne!(writers(&file), Writers::Some);
    }

    #[test]
    fn the_inode_of_a_descriptor_is_read() {
        let about = "pos:\t0\nflags:\t02100001\nmnt_id:\t29\nino:\t1234\n";
        assert_eq!(inode(about).unwrap(), Some(1234));
        assert_eq!(inode("").unwrap(), None);
        assert!(inode("pos:\t0\nflags:\t02100001\n").is_err());
    }

    #[test]
    fn where_processes_hide_nothing_is_claimed() {
        let proc = tempfile::tempdir().unwrap();
        assert!(!look(proc.path()).is_all);
        assert!(!look(&proc.path().join("missing")).is_all);
    }
}
