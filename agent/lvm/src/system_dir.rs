//! LVM's settings as on the host, except that asynchronous I/O is disabled.
//!
//! Tearing down asynchronous I/O is one system call at the end of each command, which on an ordinary kernel takes
//! longer than everything else. It cannot be disabled on the command line; so the LVM shell gets a private settings
//! directory that mirrors the host's, with one more line in `lvmlocal.conf`. It is rebuilt when the host's settings
//! change.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink},
    path::{Path, PathBuf},
    sync::Mutex,
};

use nix::unistd::Uid;

use crate::{dmeventd::Dmeventd, host::lock};

/// The host's directory.
const HOSTS: &str = "/etc/lvm";
/// The private directory.
const OURS: &str = "/run/drumlin/lvm";
/// The devices file: it lists the disks that LVM may use.
const DEVICES: &str = "devices/system.devices";
/// The file with host-specific settings, which LVM reads last.
const LOCAL: &str = "lvmlocal.conf";
/// Number of rotational disks above which the private settings do not pay off: without asynchronous I/O they are read
/// one after the other.
const TURNING: usize = 4;

/// A stamp to detect changes of the host's settings: inode, length and modification time of the directory and of the
/// files that LVM reads at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingsStamp([Option<(u64, u64, i64, i64)>; 3]);

impl SettingsStamp {
    /// The current stamp.
    pub(crate) fn now() -> Self {
        Self::of(Path::new(HOSTS))
    }

    fn of(hosts: &Path) -> Self {
        let paths = [hosts.to_owned(), hosts.join("lvm.conf"), hosts.join(LOCAL)];
        Self(paths.map(|path| {
            let file = fs::metadata(path).ok()?;
            Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
        }))
    }
}

/// Returns true if LVM must be told to use the host's devices file: it exists, and the host's settings leave its use
/// to LVM's default. The default of the LVM in an image may differ (off in Debian, on in Red Hat), and it would see
/// disks that the host excludes, such as those of virtual machines.
pub(crate) fn needs_devices_file() -> bool {
    has_undecided_devices_file(Path::new(HOSTS))
}

fn has_undecided_devices_file(hosts: &Path) -> bool {
    hosts.join(DEVICES).exists() && devices_file_setting(hosts).is_none()
}

/// The disks in the host's devices file; none where LVM does not use one. Where it does, it ignores filters.
pub(crate) fn listed_disks() -> Option<Vec<PathBuf>> {
    let hosts = Path::new(HOSTS);
    if devices_file_setting(hosts) == Some(false) {
        return None;
    }
    let text = fs::read(hosts.join(DEVICES)).ok()?;
    Some(listed(&String::from_utf8_lossy(&text)))
}

/// The disks in a devices file, by their latest names. LVM updates these names on every scan.
fn listed(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix("DEVNAME="))
    });
    names
        .filter(|name| name.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// The host's setting for the use of its devices file, if it has one.
fn devices_file_setting(hosts: &Path) -> Option<bool> {
    // The file that LVM reads last takes precedence.
    [LOCAL, "lvm.conf"].into_iter().find_map(|name| {
        let text = fs::read(hosts.join(name)).ok()?;
        value(&text, "use_devicesfile").map(|value| value != "0")
    })
}

/// The directory with the settings for the LVM shell; none when the host's own are better, or when it cannot be
/// created.
pub(crate) fn directory() -> Option<PathBuf> {
    static MAKING: Mutex<()> = Mutex::new(());
    // A dmeventd started by this LVM would keep these settings for its lifetime.
    if Dmeventd::now() == Dmeventd::Starts || turning(Path::new("/sys/block")) > TURNING {
        return None;
    }
    let _making = lock(&MAKING);
    match make(Path::new(HOSTS), Path::new(OURS)) {
        Ok(is_made) => is_made.then(|| OURS.into()),
        Err(error) => {
            tracing::debug!(directory = OURS, %error, "running LVM with the host's settings");
            None
        }
    }
}

/// Builds the directory; returns whether the host leaves the setting to us.
fn make(hosts: &Path, ours: &Path) -> io::Result<bool> {
    let read = |name: &str| match fs::read(hosts.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    };
    // An explicit setting of the host is respected.
    let local = read(LOCAL)?;
    if [&read("lvm.conf")?, &local]
        .into_iter()
        .any(|text| decides(text, "use_aio"))
    {
        return Ok(false);
    }
    if let Some(parent) = ours.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(ours) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let directory = fs::symlink_metadata(ours)?;
    if !directory.is_dir() || directory.uid() != Uid::effective().as_raw() {
        return Ok(false);
    }
    for entry in fs::read_dir(hosts)? {
        let (name, theirs) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let link = ours.join(&name);
        if name == LOCAL || fs::read_link(&link).is_ok_and(|to| to == theirs) {
            continue;
        }
        match fs::remove_file(&link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
        symlink(&theirs, &link)?;
    }
    let added = b"\n# Of drumlin: as the host's, and\nglobal { use_aio = 0 }\n";
    let text = [local.as_slice(), added].concat();
    if fs::read(ours.join(LOCAL)).is_ok_and(|there| there == text) {
        return Ok(true);
    }
    // Replaced atomically: LVM may be reading it.
    let new = ours.join(format!(".{LOCAL}.{}", std::process::id()));
    let mut file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&text)?;
    drop(file);
    fs::rename(new, ours.join(LOCAL))?;
    Ok(true)
}

/// Returns true if a settings file contains this setting.
fn decides(text: &[u8], setting: &str) -> bool {
    value(text, setting).is_some()
}

/// The value of a setting in a settings file; its comments may be in any encoding.
fn value(text: &[u8], setting: &str) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.starts_with('#'));
    lines.find_map(|line| {
        let (_, rest) = line.split_once(setting)?;
        let rest = rest.trim_start_matches([' ', '\t', '=']);
        let value = rest.split(|character: char| !character.is_ascii_alphanumeric());
        value.map(str::to_owned).next()
    })
}

/// Number of disks of this host that are rotational, or claim to be.
fn turning(blocks: &Path) -> usize {
    let is_turning = |path: &Path| {
        // A block device without a device below it is virtual or in memory.
        path.join("device").exists()
            && fs::read_to_string(path.join("queue/rotational"))
                .is_ok_and(|text| text.trim() == "1")
    };
    let blocks = fs::read_dir(blocks).into_iter().flatten().flatten();
    blocks.filter(|entry| is_turning(&entry.path())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_the_hosts_but_for_one_setting() {
        let scratch = tempfile::tempdir().unwrap();
        let (hosts, ours) = (scratch.path().join("etc"), scratch.path().join("run/a/lvm"));
        fs::create_dir_all(hosts.join("devices")).unwrap();
        fs::write(hosts.join("lvm.conf"), "# use_aio = 1\n").unwrap();
        let before = SettingsStamp::of(&hosts);
        assert!(make(&hosts, &ours).unwrap());
        let local = |text: &str| fs::read_to_string(ours.join(LOCAL)).unwrap().contains(text);
        assert!(local("global { use_aio = 0 }"));
        fs::write(hosts.join("devices/system.devices"), "x").unwrap();
        assert!(ours.join("devices/system.devices").exists());
        assert_eq!(
            before,
            SettingsStamp::of(&hosts),
            "LVM looks for that itself"
        );

        // Added later, and changed.
        fs::write(hosts.join(LOCAL), "local { system_id = \"a\" }").unwrap();
        fs::write(hosts.join("lvm_tag.conf"), "").unwrap();
        assert_ne!(before, SettingsStamp::of(&hosts));
        assert!(make(&hosts, &ours).unwrap());
        assert!(local("system_id = \"a\"") && local("use_aio = 0"));
        assert!(ours.join("lvm_tag.conf").exists());

        // Comments in another encoding are kept unchanged.
        let comment = b"# of caf\xe9\n".as_slice();
        fs::write(hosts.join(LOCAL), comment).unwrap();
        assert!(make(&hosts, &ours).unwrap());
        assert!(fs::read(ours.join(LOCAL)).unwrap().starts_with(comment));

        // An explicit setting of the host is respected.
        let settings = [comment, b"global {\n\tuse_aio = 1\n}\n"].concat();
        fs::write(hosts.join("lvm.conf"), settings).unwrap();
        assert!(!make(&hosts, &ours).unwrap());
        fs::remove_dir_all(&hosts).unwrap();
        make(&hosts, &ours).unwrap_err();
    }

    #[test]
    fn a_devices_file_is_kept_to_unless_the_host_says_something_of_it() {
        let scratch = tempfile::tempdir().unwrap();
        let hosts = scratch.path();
        fs::create_dir(hosts.join("devices")).unwrap();
        assert!(!has_undecided_devices_file(hosts), "there is none");
        fs::write(hosts.join("devices/system.devices"), "").unwrap();
        assert!(has_undecided_devices_file(hosts));
        fs::write(hosts.join("lvm.conf"), "\t# use_devicesfile = 0\n").unwrap();
        assert!(has_undecided_devices_file(hosts));
        for name in ["lvm.conf", LOCAL] {
            let settings = b"# of caf\xe9\ndevices {\n\tuse_devicesfile = 0\n}\n";
            fs::write(hosts.join(name), settings).unwrap();
            assert!(!has_undecided_devices_file(hosts));
            assert_eq!(devices_file_setting(hosts), Some(false));
            fs::remove_file(hosts.join(name)).unwrap();
        }
    }

    #[test]
    fn disks_that_turn_are_counted() {
        let scratch = tempfile::tempdir().unwrap();
        for (name, is_turning, has_device) in [
            ("sda", "1", true),
            ("nvme0n1", "0", true),
            ("dm-0", "1", false),
        ] {
            let block = scratch.path().join(name);
            fs::create_dir_all(block.join("queue")).unwrap();
            fs::write(block.join("queue/rotational"), format!("{is_turning}\n")).unwrap();
            if has_device {
                fs::create_dir(block.join("device")).unwrap();
            }
        }
        assert_eq!(turning(scratch.path()), 1);
        assert_eq!(turning(Path::new("/no/such/directory")), 0);
    }

    #[test]
    fn the_disks_of_a_devices_file_are_those_with_a_name() {
        let text = "# LVM uses devices listed in this file.\nVERSION=1.1.2\n\
            IDTYPE=devname IDNAME=/dev/vdb DEVNAME=/dev/vdb PVID=a\n\
            IDTYPE=sys_wwid IDNAME=naa.5 DEVNAME=/dev/sda2 PVID=b PART=2\n\
            IDTYPE=sys_serial IDNAME=away DEVNAME=. PVID=c\n";
        assert_eq!(listed(text), ["/dev/vdb", "/dev/sda2"].map(PathBuf::from));
    }
}
