//! Programs that the classes need.

use std::collections::BTreeMap;

use drumlin_core::{
    backend::lvm::Provisioning,
    host::{FileSystem, exec},
};

use super::{check::Check, finding::Finding, subject::Subject};

/// The programs for volumes with a file system, and their package in Debian.
fn of_file_system(file_system: FileSystem) -> (&'static [&'static str], &'static str) {
    match file_system {
        FileSystem::Ext4 => (&["mkfs.ext4", "resize2fs", "e2fsck"], "e2fsprogs"),
        FileSystem::Xfs => (&["mkfs.xfs", "xfs_growfs", "xfs_admin"], "xfsprogs"),
        FileSystem::Btrfs => (&["mkfs.btrfs", "btrfs", "btrfstune"], "btrfs-progs"),
    }
}

/// Looks for each program where the agent looks for it.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut needed: BTreeMap<&str, (&str, Vec<String>)> = BTreeMap::new();
    let mut need = |programs: &[&'static str], package: &'static str, class: String| {
        for program in programs {
            let (_, classes) = needed.entry(program).or_insert((package, Vec::new()));
            classes.push(class.clone());
        }
    };
    for (name, settings) in subject.directories() {
        let (programs, package) = of_file_system(settings.file_system);
        need(programs, package, name.to_string());
    }
    for (name, settings) in subject.volume_groups() {
        let (programs, package) = of_file_system(settings.file_system);
        need(programs, package, name.to_string());
        need(&["lvm"], "lvm2", name.to_string());
        if matches!(settings.provisioning, Provisioning::Thin(_)) {
            let programs = ["thin_check", "thin_ls", "thin_repair"];
            need(&programs, "thin-provisioning-tools", name.to_string());
        }
    }
    let encrypted = subject
        .classes
        .iter()
        .filter(|class| class.encryption.is_some());
    for class in encrypted {
        need(&["cryptsetup"], "cryptsetup-bin", class.name.to_string());
    }
    let missing = needed
        .into_iter()
        .filter(|(program, _)| exec::find(program).is_none());
    missing
        .map(|(program, (package, classes))| {
            Finding::new(
                Check::MissingProgram,
                program,
                format!(
                    "class {} needs it, and it is in none of /usr/sbin, /usr/bin, /sbin and /bin",
                    classes.join(", ")
                ),
            )
            .advice(format!("install it; in Debian it is in {package}"))
        })
        .collect()
}
