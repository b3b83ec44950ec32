//! Agents with classes that encrypt, and looking below their volumes.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use drumlin_tests::{
    agent::{Agent, Options},
    programs::{output, run},
    storage::{Scratch, lvm},
};

use crate::place::Place;

impl Place {
    /// An agent with one class, whose key is `key`.
    pub(crate) async fn agent(self) -> Agent {
        let scratch = Scratch::new();
        let config = self.config(&scratch, &encryption(&scratch.key("key"), &[]));
        let options = Options {
            config: Some(config),
            ..Options::default()
        };
        Agent::with(scratch, options).await
    }

    /// The device or file of a volume, below its encryption.
    pub(crate) fn below(self, agent: &Agent, id: &str) -> PathBuf {
        let key = id.rsplit('/').next().unwrap();
        match self {
            Self::Images => agent.path(&format!("images/volumes/{key}/image")),
            Self::Lvm => {
                let group = agent.scratch.group().unwrap();
                Path::new("/dev").join(group).join(format!("dl-v-{key}"))
            }
        }
    }
}

/// The setting of a class with this key and these former ones.
pub(crate) fn encryption(key: &Path, previous: &[&Path]) -> String {
    let previous = previous
        .iter()
        .map(|key| format!("{{file: {}}}", key.display()));
    let previous: Vec<String> = previous.collect();
    format!(
        ", encryption: {{type: luks2, key: {{file: {}}}, previousKeys: [{}]}}",
        key.display(),
        previous.join(", ")
    )
}

/// Whether these bytes are anywhere in a device or file.
pub(crate) fn has_bytes(path: &Path, wanted: &str) -> bool {
    // What is cached of a device is not what is on it.
    if !fs::metadata(path).unwrap().is_file() {
        run("blockdev", &["--flushbufs", &path.to_string_lossy()]);
    }
    let mut file = File::open(path).unwrap();
    let (mut part, zeros) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut part).unwrap();
        if read == 0 {
            return false;
        }
        // Most of a disk is empty; what is searched begins no such part in its last bytes.
        let is_empty = part[..read] == zeros[..read];
        if !is_empty
            && part[..read]
                .windows(wanted.len())
                .any(|one| one == wanted.as_bytes())
        {
            return true;
        }
    }
}

/// The names of the decrypted devices.
pub(crate) fn mappings() -> Vec<String> {
    let listed = fs::read_dir("/dev/mapper").unwrap().flatten();
    let names = listed.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("drumlin-")).collect()
}

/// Whether a key file opens a header.
pub(crate) fn opens(device: &Path, key: &Path) -> bool {
    let (device, key) = (device.to_string_lossy(), key.to_string_lossy());
    let words = ["open", "--test-passphrase", &device, "--key-file", &key];
    output("cryptsetup", &words).status.success()
}

/// Writes a copy of the header of a disk of the agent's group to a raw volume, as its user may.
pub(crate) fn write_header_of_disk(agent: &Agent, target: &str) {
    let group = agent.scratch.group().unwrap();
    let selected = format!("vg_name={group}");
    let disks = lvm("pvs", &["--noheadings", "-o", "pv_name", "-S", &selected]);
    let disk = disks.split_whitespace().next().unwrap().to_owned();
    let copy = ["bs=1M", "count=2", "conv=fsync,notrunc"];
    let ends = [format!("if={disk}"), format!("of={target}")];
    run("dd", &[&[&*ends[0], &*ends[1]], &copy[..]].concat());
    run("udevadm", &["settle"]);
}
