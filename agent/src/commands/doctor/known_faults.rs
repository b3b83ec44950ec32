//! Faults of versions of LVM and of the kernel that harm what the agent does. A fault is listed if its developers, or the
//! kernel's list of vulnerabilities, say which versions have it; `docs/src/doctor.md` has a line for each.

use std::fs;

use drumlin_core::{
    backend::{directory::Allocation, lvm::Provisioning},
    host::{FileSystem, MountTable},
    types::ClassName,
};
use drumlin_lvm::preflight;

use super::{check::Check, finding::Finding, subject::Subject};

/// The numbers of a version.
type Version = (u32, u32, u32);

/// What has a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    /// LVM's programs.
    Lvm,
    /// The kernel.
    Kernel,
}

/// The classes that a fault harms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// All over volume groups.
    Lvm,
    /// Thin ones over volume groups.
    ThinPools,
    /// Those whose volumes have an ext4.
    Ext4,
    /// Those over directories of an xfs whose images share blocks.
    SharedXfs,
}

/// A fault, and who has it.
#[derive(Debug)]
struct Fault {
    program: Program,
    /// The first version that has it.
    since: Version,
    /// The first version of each branch that does not have it, the newest branch last. A branch that is not here has it
    /// until then.
    fixed: &'static [Version],
    scope: Scope,
    /// What goes wrong.
    harm: &'static str,
    /// Who says so.
    source: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        program: Program::Lvm,
        since: (0, 0, 0),
        fixed: &[(2, 3, 16)],
        scope: Scope::ThinPools,
        harm: "forgets a deletion that is queued in a thin pool when it extends the pool: a device stays in the pool that no logical volume names",
        source: "https://github.com/lvmteam/lvm2/commit/09371131469f7398c597a5fb30dc565859253cc2",
    },
    Fault {
        program: Program::Lvm,
        since: (2, 3, 27),
        fixed: &[(2, 3, 30)],
        scope: Scope::Lvm,
        harm: "does not lock its memory while it suspends volumes: where swap or the root file system is on one of these, it can wait for itself",
        source: "https://github.com/lvmteam/lvm2/commit/4ef211a187dac348fa1857d577f5c17c9dace190",
    },
    Fault {
        program: Program::Kernel,
        since: (6, 1, 64),
        fixed: &[(6, 1, 66)],
        scope: Scope::Ext4,
        harm: "writes data to wrong places of files on ext4 after direct writes",
        source: "https://bugs.debian.org/1057843",
    },
    Fault {
        program: Program::Kernel,
        since: (4, 11, 0),
        fixed: &[
            (5, 15, 212),
            (6, 1, 178),
            (6, 6, 145),
            (6, 12, 96),
            (6, 18, 39),
            (7, 1, 4),
            (7, 2, 0),
        ],
        scope: Scope::SharedXfs,
        harm: "can write directly to blocks that files on xfs share: a write to a volume then changes a snapshot or another volume",
        source: "https://www.cve.org/CVERecord?id=CVE-2026-64600",
    },
];

impl Fault {
    /// Returns true if a version has it.
    fn is_in(&self, version: Version) -> bool {
        self.since <= version && self.fix_for(version).is_some_and(|fix| version < fix)
    }

    /// The version to update to: of the same branch, if that has one.
    fn fix_for(&self, version: Version) -> Option<Version> {
        let is_of_branch = |fix: &&Version| (fix.0, fix.1) == (version.0, version.1);
        let same = self.fixed.iter().find(is_of_branch);
        same.or(self.fixed.last()).copied()
    }

    /// The finding, if a version has it and a class is harmed by it.
    fn finding(&self, subject: &Subject, version: Version) -> Option<Finding> {
        if !self.is_in(version) {
            return None;
        }
        let class = self.scope.first(subject)?;
        let fix = self.program.shown(self.fix_for(version)?);
        let message = format!(
            "{} {}; this concerns class {class}, for one ({})",
            self.program.shown(version),
            self.harm,
            self.source
        );
        let finding = Finding::new(Check::KnownFault, self.program.object(), message);
        Some(finding.advice(format!("update it to {fix} or newer")))
    }
}

impl Program {
    /// The object of its findings.
    fn object(self) -> &'static str {
        match self {
            Self::Lvm => "lvm",
            Self::Kernel => "kernel",
        }
    }

    /// A version as the program itself writes it.
    fn shown(self, (major, minor, patch): Version) -> String {
        match self {
            Self::Lvm => format!("LVM {major}.{minor:02}.{patch:02}"),
            Self::Kernel => format!("Linux {major}.{minor}.{patch}"),
        }
    }
}

impl Scope {
    /// The first class that it is about.
    fn first(self, subject: &Subject) -> Option<ClassName> {
        let table = MountTable::read().ok();
        let groups = subject.volume_groups().filter(|(_, settings)| match self {
            Self::Lvm => true,
            Self::ThinPools => matches!(settings.provisioning, Provisioning::Thin(_)),
            Self::Ext4 => settings.file_system == FileSystem::Ext4,
            Self::SharedXfs => false,
        });
        let directories = subject.directories().filter(|(_, settings)| match self {
            Self::Lvm | Self::ThinPools => false,
            Self::Ext4 => settings.file_system == FileSystem::Ext4,
            // Links in the path are not followed: a file system that does not answer would hold up other checks.
            Self::SharedXfs => {
                let mount = table
                    .as_ref()
                    .and_then(|table| table.holding(&settings.path));
                settings.allocation == Allocation::Thin
                    && mount.is_some_and(|mount| mount.fs_type == "xfs")
            }
        });
        let groups = groups.map(|(name, _)| name);
        let mut classes = groups.chain(directories.map(|(name, _)| name));
        classes.next().cloned()
    }
}

/// Looks for faults of LVM, by what `lvm version` prints.
pub(super) fn of_lvm(subject: &Subject, text: &str) -> Vec<Finding> {
    preflight::version(text).map_or_else(Vec::new, |version| of(subject, Program::Lvm, version))
}

/// Looks for faults of the kernel that runs.
pub(super) fn of_kernel(subject: &Subject) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let version = kernel_version(
        &read("/proc/sys/kernel/osrelease"),
        &read("/proc/sys/kernel/version"),
        &read("/proc/version_signature"),
    );
    version.map_or_else(Vec::new, |version| of(subject, Program::Kernel, version))
}

fn of(subject: &Subject, program: Program, version: Version) -> Vec<Finding> {
    let faults = FAULTS.iter().filter(|fault| fault.program == program);
    let found = faults.filter_map(|fault| fault.finding(subject, version));
    found.collect()
}

/// The version of kernel.org that a kernel is, if that can be told. Distributions name their kernels otherwise: Debian has
/// it in the version of the build, Ubuntu in a file of its own, and Red Hat and SUSE nowhere, who mend theirs themselves.
fn kernel_version(release: &str, build: &str, signature: &str) -> Option<Version> {
    let debian = build.split_once("Debian ").map(|(_, version)| version);
    let ubuntu = signature.split_ascii_whitespace().last();
    if let Some(text) = debian.or(ubuntu) {
        return numbers(text).map(|(version, _)| version);
    }
    let (version, rest) = numbers(release.trim())?;
    let is_a_name = version.2 == 0 && !rest.is_empty();
    (!is_a_name).then_some(version)
}

/// The three numbers that a text begins with, and what is behind them.
fn numbers(text: &str) -> Option<(Version, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (version, rest) = text.split_at_checked(end.unwrap_or(text.len()))?;
    let mut numbers = version.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(((next()?, next()?, next()?), rest))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_book_names_the_source_of_each_fault() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/doctor.md");
        let page = fs::read_to_string(page).unwrap();
        for fault in FAULTS {
            assert!(page.contains(fault.source), "{}", fault.source);
        }
    }

    #[test]
    fn each_fault_begins_before_it_is_mended_and_its_branches_are_in_order() {
        for fault in FAULTS {
            let fixed = fault.fixed;
            assert!(fixed.is_sorted() && fault.since < fixed[0], "{fault:?}");
            assert!(fault.source.starts_with("https://"), "{fault:?}");
            for fix in fixed {
                assert!(!fault.is_in(*fix), "{fault:?} {fix:?}");
                let before = (fix.0, fix.1, fix.2.saturating_sub(1));
                assert_eq!(fault.is_in(before), before < *fix, "{fault:?} {before:?}");
            }
        }
    }

    /// What a version of a program has, by the words of its harm.
    fn faults(program: Program, version: Version) -> Vec<&'static str> {
        let faults = FAULTS.iter();
        let faults = faults.filter(|fault| fault.program == program && fault.is_in(version));
        faults.map(|fault| fault.harm).collect()
    }

    #[test]
    fn a_version_has_the_faults_of_its_own_branch() {
        for (version, words) in [
            ((2, 3, 11), &["queued"][..]),
            ((2, 3, 15), &["queued"]),
            ((2, 3, 16), &[]),
            ((2, 3, 26), &[]),
            ((2, 3, 29), &["memory"]),
            ((2, 3, 31), &[]),
        ] {
            let found = faults(Program::Lvm, version);
            assert_eq!(found.len(), words.len(), "{version:?} {found:?}");
            let pairs = found.iter().zip(words);
            assert!(pairs.into_iter().all(|(harm, word)| harm.contains(word)));
        }
        for (version, words) in [
            ((4, 9, 300), &[][..]),
            ((5, 10, 262), &["xfs"]),
            ((6, 1, 63), &["xfs"]),
            ((6, 1, 64), &["ext4", "xfs"]),
            ((6, 1, 66), &["xfs"]),
            ((6, 1, 178), &[]),
            ((6, 17, 9), &["xfs"]),
            ((6, 18, 39), &[]),
            ((7, 0, 20), &["xfs"]),
            ((7, 2, 0), &[]),
        ] {
            let found = faults(Program::Kernel, version);
            assert_eq!(found.len(), words.len(), "{version:?} {found:?}");
            let pairs = found.iter().zip(words);
            assert!(pairs.into_iter().all(|(harm, word)| harm.contains(word)));
        }
    }

    #[test]
    fn the_version_of_a_kernel_is_that_of_kernel_org_or_none() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.64-1 (2023-11-30)";
        let ubuntu = "Ubuntu 6.8.0-31.31-generic 6.8.1";
        for (release, build, signature, version) in [
            ("6.1.0-14-amd64\n", debian, "", Some((6, 1, 64))),
            (
                "6.8.0-31-generic\n",
                "#31-Ubuntu SMP",
                ubuntu,
                Some((6, 8, 1)),
            ),
            ("6.6.87-1-lts\n", "#1 SMP", "", Some((6, 6, 87))),
            ("6.6.58+\n", "#1 SMP", "", Some((6, 6, 58))),
            ("7.2.0\n", "#2", "", Some((7, 2, 0))),
            ("5.14.0-427.el9.x86_64\n", "#1 SMP", "", None),
            ("6.4.0-150600.23-default\n", "#1 SMP", "", None),
            ("7.2.0-rc3\n", "#1", "", None),
            ("", "", "", None),
        ] {
            assert_eq!(
                kernel_version(release, build, signature),
                version,
                "{release}"
            );
        }
    }
}
