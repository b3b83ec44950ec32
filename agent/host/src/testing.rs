//! Small file systems on loop devices, for tests; all are removed when their value is dropped.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tempfile::TempDir;

use super::{Access, FileSystem, LoopDevice, MountOptions, MountTable, loop_device, mount};

/// A temporary directory whose mounts are unmounted before it is removed.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "it creates a directory")]
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("drumlin-test-")
            .tempdir()
            .unwrap();
        Self { directory }
    }

    /// Its path, without links.
    pub fn path(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap()
    }

    /// A sparse file of `bytes` bytes.
    pub fn image(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path().join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// An empty directory.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A backing file may be on a mount of another device: each round frees what the previous one could not.
        for _ in 0..4 {
            if take_away(&self.path()).is_empty() {
                return;
            }
        }
        for (command, error) in take_away(&self.path()) {
            report(&command, &error);
        }
    }
}

/// Removes all mounts and loop devices of a directory; returns what is left, with the command that would remove it.
fn take_away(path: &Path) -> Vec<(String, crate::Error)> {
    let mut left = Vec::new();
    let table = MountTable::read().unwrap_or_default();
    // Later mounts may cover earlier ones.
    for mount in table.below(path).collect::<Vec<_>>().into_iter().rev() {
        if let Err(error) = mount::unmount(&mount.target) {
            left.push((format!("umount {}", mount.target.display()), error));
        }
    }
    for device in loop_device::list().unwrap_or_default() {
        if device.backing.path.starts_with(path)
            && let Err(error) = loop_device::detach(&device)
        {
            left.push((format!("losetup -d {}", device.path.display()), error));
        }
    }
    left
}

#[expect(clippy::print_stderr, reason = "who runs the tests cleans up by hand")]
fn report(command: &str, error: &crate::Error) {
    eprintln!("could not clean up ({error:?}); run manually: {command}");
}

/// Runs a program for a test and waits for it.
#[expect(
    clippy::disallowed_methods,
    reason = "tests compare with what programs say, and make what they look at"
)]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program for a test and kills it after `delay`, if it has not ended by then.
#[expect(
    clippy::disallowed_methods,
    reason = "tests make what an interruption leaves"
)]
pub fn run_and_kill(program: &str, arguments: &[&str], delay: Duration) {
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The timing itself is tested here, so there is no event to await.
    std::thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A mounted file system on a loop device, all in a temporary directory.
#[derive(Debug)]
pub struct Mounted {
    /// The directory that all of it is in.
    pub scratch: Scratch,
    /// The loop device.
    pub device: LoopDevice,
    /// The file behind it.
    pub image: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
}

impl Mounted {
    /// A new file system of `kind` of `bytes` bytes; xfs and btrfs have reflinks.
    pub fn new(kind: FileSystem, bytes: u64) -> Self {
        let scratch = Scratch::new();
        let image = scratch.image("image", bytes);
        format(kind, &image);
        let device = loop_device::attach(&image, Access::ReadWrite).unwrap();
        let target = scratch.directory("mnt");
        mount::mount_device(&device.path, &target, kind, &MountOptions::new(kind)).unwrap();
        Self {
            scratch,
            device,
            image,
            target,
        }
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        &self.target
    }
}

/// Creates a file system with the standard program.
pub fn format(kind: FileSystem, image: &Path) {
    let image = image.to_str().unwrap();
    match kind {
        FileSystem::Ext4 => run("mkfs.ext4", &["-q", "-F", image]),
        FileSystem::Xfs => run("mkfs.xfs", &["-q", "-f", image]),
        FileSystem::Btrfs => run("mkfs.btrfs", &["-q", "-f", image]),
    };
}
