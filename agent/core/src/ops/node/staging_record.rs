//! The record of the last staging: what the mount table does not show.
//!
//! A raw volume has no mount at its staging path, and a mount shows the options of its file system in the words of the
//! kernel, which leaves out defaults. Without the record a repeated stage with other options would look identical, and
//! an unstage of another path would detach a raw volume.
//!
//! The record is one label, which stays until the next staging differs: most volumes never need one.

use std::path::Path;

use uuid::Uuid;

use crate::ops::{
    labels::{self, Read},
    lookup::LocatedImage,
};
use crate::{Result, backend::LabelChange, host::MountOptions};

/// The UUID namespace of the digests in the label.
const NAMESPACE: Uuid = Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a05);

/// How a volume was staged last. In the label: nothing, `raw:<digest of the path>`, or
/// `mount:<digest of the options of the file system>:<digest of the flags of the mount>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StagingRecord {
    /// Mounted without options, or never staged.
    Plain,
    /// As a block device, at this path.
    Raw { path: Uuid },
    /// Mounted with options.
    Mounted { file_system: Uuid, flags: Uuid },
    /// A label that this version cannot read.
    Unknown,
}

impl StagingRecord {
    /// The record of a raw volume that is staged at `path`.
    pub(crate) fn raw(path: &Path) -> Self {
        // Without doubled and trailing slashes.
        let path: std::path::PathBuf = path.components().collect();
        Self::Raw {
            path: digest(path.as_os_str().as_encoded_bytes()),
        }
    }

    /// The record of a volume that is mounted with `options`.
    pub(crate) fn mounted(options: &MountOptions) -> Self {
        if options.are_defaults() {
            return Self::Plain;
        }
        Self::Mounted {
            file_system: digest(options.of_file_system().as_bytes()),
            flags: digest(options.of_mount().as_bytes()),
        }
    }

    /// The record of an image.
    pub(crate) fn of(image: &impl Read) -> Self {
        let Some(text) = image.label(labels::STAGED) else {
            return Self::Plain;
        };
        let read = match text.split_once(':') {
            Some(("raw", path)) => Uuid::try_parse(path).ok().map(|path| Self::Raw { path }),
            Some(("mount", rest)) => rest.split_once(':').and_then(|(file_system, flags)| {
                Some(Self::Mounted {
                    file_system: Uuid::try_parse(file_system).ok()?,
                    flags: Uuid::try_parse(flags).ok()?,
                })
            }),
            _ => None,
        };
        read.unwrap_or(Self::Unknown)
    }

    /// Returns true if the volume was staged as a block device.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self, Self::Raw { .. })
    }

    /// Returns true if the volume was staged as a block device at `path`.
    pub(crate) fn is_raw_at(&self, path: &Path) -> bool {
        self.is_raw() && *self == Self::raw(path)
    }

    /// Returns true if the file system is mounted with the options for the file system among `options`; a publication
    /// without any takes those of the staging.
    pub(crate) fn provides(&self, options: &MountOptions) -> bool {
        let wanted = options.of_file_system();
        wanted.is_empty()
            || matches!(self, Self::Mounted { file_system, .. } if *file_system == digest(wanted.as_bytes()))
    }

    /// Adds the record to a change of the labels.
    fn set_in(&self, change: &mut LabelChange) {
        let text = match self {
            Self::Raw { path } => format!("raw:{path}"),
            Self::Mounted { file_system, flags } => format!("mount:{file_system}:{flags}"),
            Self::Plain | Self::Unknown => {
                change.remove.push(labels::STAGED.to_owned());
                return;
            }
        };
        change.set.insert(labels::STAGED.to_owned(), text);
    }
}

fn digest(bytes: &[u8]) -> Uuid {
    Uuid::new_v5(&NAMESPACE, bytes)
}

impl LocatedImage {
    /// Records how the volume is staged, together with `change`; costs nothing if both are so already.
    pub(crate) async fn record_staging(
        &self,
        record: &StagingRecord,
        mut change: LabelChange,
    ) -> Result<()> {
        if StagingRecord::of(&self.image) != *record {
            record.set_in(&mut change);
        }
        if change.apply(&self.image.labels).is_some() {
            self.class.backend.relabel(self.image.id, &change).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Labels, host::FileSystem};

    fn options(flags: &[&str]) -> MountOptions {
        MountOptions::parse(FileSystem::Ext4, flags).unwrap()
    }

    fn recorded(record: &StagingRecord) -> Labels {
        let mut change = LabelChange::default();
        record.set_in(&mut change);
        change.apply(&Labels::new()).unwrap_or_default()
    }

    #[test]
    fn what_was_recorded_is_read_back() {
        for record in [
            StagingRecord::Plain,
            StagingRecord::raw(Path::new("/a/b")),
            StagingRecord::mounted(&options(&["discard"])),
        ] {
            assert_eq!(StagingRecord::of(&recorded(&record)), record);
        }
        let newer = Labels::from([(labels::STAGED.to_owned(), "striped:1".to_owned())]);
        assert_eq!(StagingRecord::of(&newer), StagingRecord::Unknown);
    }

    #[test]
    fn a_path_is_the_same_however_many_slashes_it_has() {
        let record = StagingRecord::raw(Path::new("/a/b"));
        assert!(record.is_raw_at(Path::new("/a//b/")));
        assert!(!record.is_raw_at(Path::new("/a/c")));
        assert!(!StagingRecord::Plain.is_raw_at(Path::new("/a/b")));
    }

    #[test]
    fn options_differ_by_what_they_do_and_not_by_their_order() {
        let record = |flags: &[&str]| StagingRecord::mounted(&options(flags));
        assert_eq!(record(&[]), StagingRecord::Plain);
        assert_eq!(record(&["ro", "defaults", "rw"]), StagingRecord::Plain);
        assert_eq!(
            record(&["discard,commit=5"]),
            record(&["commit=5", "discard"])
        );
        assert_eq!(record(&["commit=5,commit=9"]), record(&["commit=9"]));
        assert_eq!(record(&["discard,nodiscard"]), record(&["nodiscard"]));
        for other in [&["discard"][..], &["commit=6"], &["sync"], &["noexec"], &[]] {
            assert_ne!(record(&["commit=5"]), record(other), "{other:?}");
        }
        assert!(record(&["discard"]).provides(&options(&["noexec"])));
        assert!(record(&["discard"]).provides(&options(&["discard,noexec"])));
        assert!(!record(&["discard"]).provides(&options(&["commit=5"])));
        assert!(!StagingRecord::Plain.provides(&options(&["discard"])));
    }
}
