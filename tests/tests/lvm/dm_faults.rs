//! Disks that fail, stall and come back when a test says so: loop devices with a device of device-mapper over them.

use drumlin_tests::{
    agent::{Agent, Options},
    programs::{output, run},
    storage::Scratch,
};

use crate::helpers::text;

/// So many sectors below are left out, or LVM would find the same disk twice.
const HEAD: u64 = 2048;

/// A disk.
#[derive(Debug)]
pub(crate) struct Disk {
    name: String,
    below: String,
    sectors: u64,
}

impl Disk {
    fn new(scratch: &Scratch, name: &str, mebibytes: u64) -> Self {
        let below = scratch.disk(name, mebibytes);
        let of = scratch.path().file_name().unwrap().to_string_lossy();
        let disk = Self {
            name: format!("{of}-{name}"),
            below,
            sectors: (mebibytes << 11) - HEAD,
        };
        run("dmsetup", &["create", &disk.name, "--table", &disk.table()]);
        // There may be no udevd that would do it.
        run("dmsetup", &["mknodes", &disk.name]);
        disk
    }

    fn table(&self) -> String {
        format!("0 {} linear {} {HEAD}", self.sectors, self.below)
    }

    pub(crate) fn path(&self) -> String {
        format!("/dev/mapper/{}", self.name)
    }

    fn becomes(&self, table: &str) {
        run(
            "dmsetup",
            &["suspend", "--nolockfs", "--noflush", &self.name],
        );
        run("dmsetup", &["load", &self.name, "--table", table]);
        run("dmsetup", &["resume", &self.name]);
    }

    /// All reads and writes fail from now on.
    pub(crate) fn fails(&self) {
        self.becomes(&format!("0 {} error", self.sectors));
    }

    /// All reads and writes fail every other second from now on.
    pub(crate) fn flickers(&self) {
        let Self { below, sectors, .. } = self;
        self.becomes(&format!("0 {sectors} flakey {below} {HEAD} 1 1"));
    }

    /// No read or write ends from now on.
    pub(crate) fn stalls(&self) {
        run(
            "dmsetup",
            &["suspend", "--nolockfs", "--noflush", &self.name],
        );
    }

    /// It is as it was.
    pub(crate) fn works(&self) {
        self.becomes(&self.table());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        output("dmsetup", &["remove", "--retry", &self.name]);
        output("dmsetup", &["mknodes", &self.name]);
    }
}

/// An agent with three classes: one over such disks, one over a disk that always works, and one over a directory.
#[derive(Debug)]
pub(crate) struct Bench {
    // They go in this order: nothing can be removed from disks that do not work.
    _works: Works,
    pub(crate) agent: Agent,
    disks: Vec<Disk>,
}

/// Has the disks work when a test ends.
#[derive(Debug)]
struct Works(Vec<(String, String)>);

impl Bench {
    /// The first class is over so many disks of so many mebibytes each, and is told `class` with `GROUP` for their
    /// group, in which `prepare` makes what it needs.
    pub(crate) async fn new(
        (disks, mebibytes): (usize, u64),
        class: &str,
        prepare: impl Fn(&str),
    ) -> Self {
        let scratch = Scratch::new();
        let disks: Vec<Disk> = (0..disks)
            .map(|number| Disk::new(&scratch, &format!("disk-{number}"), mebibytes))
            .collect();
        let paths: Vec<String> = disks.iter().map(Disk::path).collect();
        let group = scratch.volume_group_over(&paths);
        prepare(&group);
        let steady = scratch.volume_group_over(&[scratch.disk("disk-steady", 256)]);
        let files = text(scratch.directory("files"));
        let classes = [
            format!(
                "- {{name: fast, default: true, {}}}\n",
                class.replace("GROUP", &group)
            ),
            format!("- {{name: steady, thick: {{volumeGroup: {steady}}}}}\n"),
            format!("- {{name: files, directory: {{path: {files}}}}}\n"),
        ];
        let options = Options {
            config: Some(format!("classes:\n{}", classes.concat())),
            ..Options::default()
        };
        Self {
            _works: Works(
                disks
                    .iter()
                    .map(|disk| (disk.name.clone(), disk.table()))
                    .collect(),
            ),
            agent: Agent::with(scratch, options).await,
            disks,
        }
    }

    /// One of the disks.
    pub(crate) fn disk(&self, number: usize) -> &Disk {
        &self.disks[number]
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        for (name, table) in &self.0 {
            output("dmsetup", &["suspend", "--nolockfs", "--noflush", name]);
            output("dmsetup", &["load", name, "--table", table]);
            output("dmsetup", &["resume", name]);
        }
    }
}
