//! What is looked for. `docs/src/doctor.md` has a line for each.

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Worth knowing; nothing has to be done.
    Info,
    /// Nothing fails yet, or only something that is not used.
    Warning,
    /// Something does not work, or data is in danger.
    Error,
}

impl Severity {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! checks {
    ($($(#[$doc:meta])+ $name:ident $word:literal $severity:ident,)+) => {
        /// What is looked for; its name is stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub(crate) enum Check {
            $($(#[$doc])+ #[serde(rename = $word)] $name,)+
        }

        impl Check {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name.
            pub(super) fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }

            /// How bad it is if it is found.
            pub(super) fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)+
                }
            }
        }
    };
}

checks! {
    // The agent and its settings.
    /// A part of the checks could not be made.
    NotChecked "not-checked" Warning,
    /// The configuration is not valid.
    InvalidConfiguration "invalid-configuration" Error,
    /// No agent runs.
    AgentDown "agent-down" Warning,
    /// The agent does not answer.
    AgentSilent "agent-silent" Error,
    /// A socket that no process serves.
    StaleSocket "stale-socket" Warning,
    /// The agent says that a class cannot be used.
    ClassUnavailable "class-unavailable" Error,
    /// Another agent uses the same storage.
    OtherAgent "other-agent" Error,
    /// The running agent has other settings than those looked at.
    OtherConfiguration "other-configuration" Warning,
    /// A change of the configuration needs a restart.
    ChangeNotApplied "change-not-applied" Warning,
    /// There are manifests, and nothing reconciles them.
    NoReconciler "no-reconciler" Warning,
    /// Other users can write what the agent trusts.
    InsecurePermissions "insecure-permissions" Error,
    /// An environment variable of an unknown name.
    UnknownVariable "unknown-variable" Warning,
    /// A key of the file that a flag or the environment overrides.
    OverriddenSetting "overridden-setting" Info,
    /// A setting that does nothing without another one.
    SettingWithoutEffect "setting-without-effect" Warning,
    /// Storage that belongs to another node.
    OtherNode "other-node" Error,

    // Objects and their state.
    /// An object without a manifest.
    Orphan "orphan" Warning,
    /// A state file that cannot be read.
    UnreadableStateFile "unreadable-state-file" Error,
    /// A manifest that is not valid.
    InvalidManifest "invalid-manifest" Error,
    /// A file that may be a manifest, and is ignored.
    IgnoredFile "ignored-file" Warning,
    /// The manifests cannot be read.
    ManifestsUnavailable "manifests-unavailable" Error,
    /// A resource that no object refers to.
    KeptResource "kept-resource" Info,
    /// An object whose volume does not exist any more.
    LostVolume "lost-volume" Error,
    /// A time that is in the future.
    ClockJump "clock-jump" Warning,

    // Directory classes.
    /// A change of an image that was begun and not ended.
    HalfMadeImage "half-made-image" Warning,
    /// An image whose record is missing or cannot be read.
    UnreadableRecord "unreadable-record" Error,
    /// An image whose file is missing, or not as its record says.
    DamagedImage "damaged-image" Error,
    /// The directory of a class is missing.
    DirectoryMissing "directory-missing" Error,
    /// Another directory is where that of a class was.
    DirectoryReplaced "directory-replaced" Error,
    /// The file system of a class cannot be written.
    DirectoryReadOnly "directory-read-only" Error,
    /// The file system of a class is nearly full.
    LowSpace "low-space" Warning,
    /// More is promised to volumes than there is.
    Overcommitted "overcommitted" Info,
    /// Copies in a class are whole copies.
    NoReflinks "no-reflinks" Info,

    // Loop devices, mounts and file systems.
    /// A loop device of an image that is gone, or that nothing uses.
    LeakedLoopDevice "leaked-loop-device" Warning,
    /// Several loop devices of one image.
    DuplicateLoopDevice "duplicate-loop-device" Warning,
    /// A mount of a volume that is gone.
    LeakedMount "leaked-mount" Error,
    /// A mount below another one.
    HiddenMount "hidden-mount" Warning,
    /// A line of `/etc/fstab` mounts a volume.
    MountedByHost "mounted-by-host" Warning,
    /// A file system that is read-only after an error.
    ReadOnlyAfterError "read-only-after-error" Error,
    /// A file system that has counted errors.
    FileSystemErrors "file-system-errors" Error,
    /// A file system that has shut itself down.
    FileSystemShutDown "file-system-shut-down" Error,
    /// A file system that is nearly full.
    VolumeFull "volume-full" Warning,
    /// A file system whose writers wait.
    FrozenFileSystem "frozen-file-system" Error,
    /// A thaw watchdog without its agent.
    LeftoverThawWatchdog "leftover-thaw-watchdog" Warning,

    // Device-mapper.
    /// A device whose I/O waits.
    SuspendedDevice "suspended-device" Error,
    /// A device whose table was not activated.
    HalfBuiltDevice "half-built-device" Warning,
    /// A device that no logical volume has.
    OrphanDevice "orphan-device" Warning,
    /// A decrypted device that nothing uses.
    LeakedMapping "leaked-mapping" Warning,
    /// A thin pool at the threshold of warnings.
    PoolFilling "pool-filling" Warning,
    /// A thin pool at its limit.
    PoolFull "pool-full" Error,
    /// A thin pool that has failed, is read-only or must be checked.
    PoolFailed "pool-failed" Error,
    /// An exception store that is nearly full.
    SnapshotStoreFilling "snapshot-store-filling" Warning,
    /// An exception store that overflowed.
    SnapshotOverflowed "snapshot-overflowed" Error,

    // LVM.
    /// A volume group of a class is missing.
    VolumeGroupMissing "volume-group-missing" Error,
    /// A volume group that the agent refuses.
    VolumeGroupRefused "volume-group-refused" Error,
    /// Two volume groups of one name.
    DuplicateVolumeGroup "duplicate-volume-group" Error,
    /// A volume group without all of its disks.
    MissingDisk "missing-disk" Error,
    /// A disk that does not answer.
    SilentDisk "silent-disk" Error,
    /// A disk that LVM's settings hide.
    HiddenDisk "hidden-disk" Error,
    /// A tag of the agent that cannot be parsed.
    UnparsableTag "unparsable-tag" Warning,
    /// A volume whose creation or deletion was begun and not ended.
    HalfMadeVolume "half-made-volume" Warning,
    /// A volume that keeps an orphan thin device.
    OrphanThinDevice "orphan-thin-device" Warning,
    /// The metadata area of a volume group is nearly full.
    MetadataAreaFilling "metadata-area-filling" Warning,
    /// A program has the lock of a volume group for long.
    LockHeld "lock-held" Warning,
    /// The pool of a class is missing, or unsafe.
    PoolUnusable "pool-unusable" Error,
    /// LVM is too old.
    OldLvm "old-lvm" Error,
    /// A version of LVM that the tests do not run with.
    UntestedLvm "untested-lvm" Info,
    /// The version of LVM or of the kernel has a known fault that harms a class.
    KnownFault "known-fault" Warning,
    /// Nothing extends the pool of a class.
    NoAutoextend "no-autoextend" Info,

    // This host.
    /// A program that a class needs.
    MissingProgram "missing-program" Error,
    /// The kernel has no loop devices.
    NoLoopDevices "no-loop-devices" Error,
    /// The kernel has no device-mapper.
    NoDeviceMapper "no-device-mapper" Error,
    /// The kernel has no dm-crypt, and classes that encrypt.
    NoDmCrypt "no-dm-crypt" Error,
    /// A class has limits of reads and writes that this host cannot set.
    LimitsNotInForce "limits-not-in-force" Warning,
    /// A key of a class is missing, or is none.
    KeyUnusable "key-unusable" Error,
    /// Others can read a key.
    ExposedKey "exposed-key" Warning,
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn read(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        fs::read_to_string(root.join(path)).unwrap()
    }

    #[test]
    fn the_book_has_a_line_for_each_check_and_for_no_other() {
        let page = read("docs/src/doctor.md");
        let (_, table) = page.split_once("\n## Checks\n").unwrap();
        let lines = table.lines().filter_map(|line| line.strip_prefix("| `"));
        let written: Vec<Vec<&str>> = lines
            .map(|line| {
                line.split(" | ")
                    .map(|cell| cell.trim_matches(['`', ' ', '|']))
                    .collect()
            })
            .collect();
        let checks = Check::ALL.iter();
        let known: Vec<_> = checks
            .map(|check| [check.word(), check.severity().word()])
            .collect();
        let found: Vec<_> = written.iter().map(|cells| [cells[0], cells[1]]).collect();
        assert_eq!(found, known);
        for cells in written {
            let [_, _, meaning, mend] = cells.as_slice() else {
                panic!("{cells:?}");
            };
            assert!(!meaning.is_empty() && !mend.is_empty(), "{cells:?}");
        }
    }

    #[test]
    fn a_test_makes_each_check_find_something() {
        let tests = ["black_box/doctor", "lvm/doctor"];
        let folders = tests
            .iter()
            .map(|folder| format!("{}/../tests/tests/{folder}", env!("CARGO_MANIFEST_DIR")));
        let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
        let code: String = files
            .map(|file| fs::read_to_string(file.path()).unwrap())
            .collect();
        for check in Check::ALL {
            let quoted = format!("\"{}\"", check.word());
            assert!(code.contains(&quoted), "{quoted} is in no test");
        }
    }
}
