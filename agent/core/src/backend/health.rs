//! The health of images and classes: what is wrong, in one word for machines and in a sentence for people.

/// What a fault means for whoever uses the volume (CSI, `VolumeHealthErrorType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// It can be used, but has lost redundancy, headroom or the ability to be written.
    Degraded,
    /// It cannot be used.
    Inaccessible,
    /// Data is lost, or very likely so.
    DataLoss,
}

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident: $impact:ident,)+) => {
        /// What is wrong (CSI, `VolumeHealthEntry.reason`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])+ $name,)+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The word for it, in CamelCase.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// What it means for whoever uses the volume.
            pub fn impact(self) -> Impact {
                match self {
                    $(Self::$name => Impact::$impact,)+
                }
            }
        }
    };
}

reasons! {
    /// The cache of a volume has failed.
    CacheFailed: Inaccessible,
    /// The metadata of the cache of a volume is damaged.
    CacheMetadataDamaged: Degraded,
    /// The class of the volume cannot be read: its directory or volume group is missing, or does not answer.
    ClassUnavailable: Inaccessible,
    /// The device-mapper device of the volume has failed.
    DeviceFailed: Inaccessible,
    /// The block device of a volume that is mounted is gone.
    DeviceMissing: Inaccessible,
    /// A disk of the volume is missing.
    DiskMissing: Inaccessible,
    /// The disk does not answer.
    DiskStalled: Inaccessible,
    /// The file system has counted errors.
    FileSystemErrors: Degraded,
    /// The file system became read-only.
    FileSystemReadOnly: Degraded,
    /// The file system has shut down, or does not answer.
    FileSystemShutDown: Inaccessible,
    /// The image file is missing.
    ImageMissing: DataLoss,
    /// The image is not a regular file.
    ImageReplaced: Inaccessible,
    /// The image file is shorter than its record says.
    ImageTruncated: DataLoss,
    /// The image file cannot be read.
    ImageUnreadable: Inaccessible,
    /// A leg of a mirror is lost.
    MirrorLegLost: Degraded,
    /// Several legs of a mirror are on one disk.
    MirrorLegsShareDisk: Degraded,
    /// The thin pool has failed, or cannot be read.
    PoolFailed: Inaccessible,
    /// The thin pool takes nothing new: its data or metadata is over its limit.
    PoolFull: Degraded,
    /// The thin pool is filling up: its data is over the threshold for warnings.
    PoolSpaceLow: Degraded,
    /// The record cannot be read, or was written by a newer version.
    RecordUnreadable: Inaccessible,
    /// The volume is in a rollback that has not ended.
    RollbackInProgress: Inaccessible,
    /// The exception store of the snapshot overflowed.
    SnapshotOverflowed: DataLoss,
    /// The VDO pool below the volume is read-only.
    VdoReadOnly: Inaccessible,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// What it is, for machines.
    pub reason: Reason,
    /// What it is and what to do, for people.
    pub message: String,
}

impl Fault {
    /// A fault with a message for people.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// The health of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The image is healthy.
    Good,
    /// It is usable, but has lost redundancy or headroom.
    Degraded(Fault),
    /// The record is intact, but the data does not match it.
    Damaged(Fault),
    /// The record is unreadable, or has a newer version; nothing may be changed.
    Unreadable(Fault),
}

impl Health {
    /// [`Health::Degraded`].
    pub fn degraded(reason: Reason, message: impl Into<String>) -> Self {
        Self::Degraded(Fault::new(reason, message))
    }

    /// [`Health::Damaged`].
    pub fn damaged(reason: Reason, message: impl Into<String>) -> Self {
        Self::Damaged(Fault::new(reason, message))
    }

    /// [`Health::Unreadable`], for [`Reason::RecordUnreadable`].
    pub fn unreadable(message: impl Into<String>) -> Self {
        Self::Unreadable(Fault::new(Reason::RecordUnreadable, message))
    }

    /// What is wrong, if anything is.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Good => None,
            Self::Degraded(fault) | Self::Damaged(fault) | Self::Unreadable(fault) => Some(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_has_a_line_for_each_reason() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/health.md");
        let page = std::fs::read_to_string(page).unwrap();
        for reason in Reason::ALL {
            let status = match reason.impact() {
                Impact::Degraded => "DEGRADED",
                Impact::Inaccessible => "INACCESSIBLE",
                Impact::DataLoss => "DATA_LOSS",
            };
            let line = format!("| `{}` | {status} | ", reason.word());
            assert!(page.contains(&line), "{line}");
        }
    }

    #[test]
    fn a_reason_is_one_brief_word_in_camel_case() {
        for reason in Reason::ALL {
            let word = reason.word();
            assert!(word.len() <= 32 && word.chars().all(|one| one.is_ascii_alphabetic()));
            assert!(word.starts_with(|first: char| first.is_ascii_uppercase()));
        }
    }
}
