//! Volumes that others made: by hand, or by another manager of local volumes. They are adopted in place.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use async_trait::async_trait;

use super::{Change, Image, Labels};
use crate::{
    Error, Kind, Result,
    types::{ImageId, Size},
};

/// A volume that others made, as the back end of one class sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignVolume {
    /// Its location: `GROUP/NAME` of a logical volume, or the path of an image file.
    pub source: String,
    /// Its size in bytes.
    pub size: Size,
    /// Who made it, as far as its name tells.
    pub maker: Maker,
    /// Its block device, if it has one.
    pub device: Option<PathBuf>,
    /// Where its contents can be read, if they can.
    pub contents: Option<PathBuf>,
    /// Why the class cannot have such a volume, if it cannot; another class may.
    pub misfit: Option<String>,
    /// Why it cannot be adopted, each with what to do.
    pub refusals: Vec<String>,
    /// What the administrator should know before it is adopted.
    pub warnings: Vec<String>,
}

/// Who made a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// A person, or a program that this agent does not know.
    Hand,
    /// TopoLVM: the name of the volume is the UID of its `LogicalVolume`.
    Topolvm,
    /// OpenEBS LVM LocalPV: the name of the volume is that of its `PersistentVolume`.
    OpenebsLvm,
}

impl Maker {
    /// The maker of a logical volume with this name. Both managers set no tags: TopoLVM names a volume by the UID of its
    /// `LogicalVolume` (`internal/controller/logicalvolume_controller.go`), OpenEBS by its `PersistentVolume`
    /// (`pkg/lvm/lvm_util.go`), which external-provisioner calls `pvc-<UID of the claim>`.
    pub fn of_logical_volume(name: &str) -> Self {
        match name.strip_prefix("pvc-") {
            Some(uid) if is_uid(uid) => Self::OpenebsLvm,
            None if is_uid(name) => Self::Topolvm,
            _ => Self::Hand,
        }
    }

    /// The word for it in messages and answers.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hand => "hand",
            Self::Topolvm => "topolvm",
            Self::OpenebsLvm => "openebs-lvm",
        }
    }

    /// What to do in the maker's cluster before its volume is adopted, if anything.
    pub fn warning(self, name: &str) -> Option<String> {
        match self {
            Self::Hand => None,
            Self::Topolvm => Some(format!(
                "it has the name of a volume of TopoLVM: if a cluster still has the LogicalVolume with the UID {name}, TopoLVM removes {name}, with its data, when that object is deleted; remove the object's finalizer before, and do not use both"
            )),
            Self::OpenebsLvm => Some(format!(
                "it has the name of a volume of OpenEBS LVM LocalPV: if a cluster still has the LVMVolume {name}, OpenEBS removes {name}, with its data, when that object is deleted; remove the object's finalizer before, and do not use both"
            )),
        }
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Returns true for a UID as Kubernetes writes it.
fn is_uid(text: &str) -> bool {
    text.len() == 36
        && !text.bytes().any(|byte| byte.is_ascii_uppercase())
        && uuid::Uuid::try_parse(text).is_ok()
}

/// An adoption: which volume, and what it becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptionSpec {
    /// The location of the volume.
    pub source: String,
    /// The image that it becomes.
    pub id: ImageId,
    /// Its labels.
    pub labels: Labels,
}

/// Which volumes a back end looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection<'a> {
    /// All that it can find.
    All,
    /// The one at this location.
    One(&'a str),
}

/// The volumes of others in the storage of a class. What is written is its record only, never a byte of it.
#[async_trait]
pub trait ForeignVolumes {
    /// The volumes in the storage of the class that this agent has not made. Changes nothing.
    async fn foreign(&self, selection: Selection<'_>) -> Result<Vec<ForeignVolume>>;

    /// Refuses what [`ForeignVolumes::adopt`] would refuse. Changes nothing.
    ///
    /// # Errors
    /// `Precondition` with what to do.
    async fn check_adoption(&self, spec: &AdoptionSpec) -> Result<()>;

    /// Makes a volume an image of the class, in place. Idempotent; after an interruption it is adopted or it is not.
    ///
    /// # Errors
    /// `Precondition` with what to do.
    async fn adopt(&self, spec: &AdoptionSpec) -> Result<Change<Image>>;

    /// Refuses what [`ForeignVolumes::release`] would refuse; returns the location that it would return. Changes
    /// nothing.
    ///
    /// # Errors
    /// `Invalid` for `to`, `Precondition` with what to do.
    async fn check_release(&self, id: ImageId, to: Option<&Path>) -> Result<String>;

    /// Removes the record of an image, whose data stays, and returns its location: that of `to`, or the one it has.
    ///
    /// # Errors
    /// As those of [`ForeignVolumes::check_release`].
    async fn release(&self, id: ImageId, to: Option<&Path>) -> Result<String>;
}

/// The error for a volume that cannot be adopted.
pub(crate) fn not_adoptable(source: &str, refusals: &[String]) -> Error {
    Error::new(
        Kind::Precondition,
        format!("{source} cannot be adopted: {}", refusals.join("; ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_of_a_volume_is_told_by_its_name() {
        for (name, maker) in [
            ("8376b776-75f9-4786-8311-f8780adfabdb", Maker::Topolvm),
            (
                "pvc-8376b776-75f9-4786-8311-f8780adfabdb",
                Maker::OpenebsLvm,
            ),
            ("8376B776-75F9-4786-8311-F8780ADFABDB", Maker::Hand),
            ("8376b77675f947868311f8780adfabdb", Maker::Hand),
            ("pvc-data", Maker::Hand),
            ("pvc-pvc-8376b776-75f9-4786-8311-f8780adfabdb", Maker::Hand),
            ("data", Maker::Hand),
        ] {
            assert_eq!(Maker::of_logical_volume(name), maker, "{name}");
        }
    }
}
