//! Capabilities of volumes (CSI, `VolumeCapability`).

use crate::host::FileSystem;

/// Access mode of a volume (CSI, `VolumeCapability.AccessMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// One node writes; any number of workloads on it.
    SingleNodeWriter,
    /// One node reads.
    SingleNodeReaderOnly,
    /// One workload on one node writes.
    SingleNodeSingleWriter,
    /// Several workloads on one node write.
    SingleNodeMultiWriter,
    /// Several nodes read.
    MultiNodeReaderOnly,
    /// Several nodes read, one of them writes.
    MultiNodeSingleWriter,
    /// Several nodes write.
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// Returns true if more than one node would use the volume, which a local volume does not support.
    pub fn is_multi_node(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter
        )
    }

    /// Returns true if the mode permits no writes.
    pub fn is_reader_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// The name of the mode in the specification.
    pub fn word(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "SINGLE_NODE_WRITER",
            Self::SingleNodeReaderOnly => "SINGLE_NODE_READER_ONLY",
            Self::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
            Self::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
            Self::MultiNodeSingleWriter => "MULTI_NODE_SINGLE_WRITER",
            Self::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
        }
    }
}

/// Access type: raw or mounted (CSI, `VolumeCapability.access_type`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessType {
    /// A block device.
    Block,
    /// A mounted file system.
    Mount {
        /// The file system; none for the default of the class.
        file_system: Option<FileSystem>,
        /// Mount flags as sent by the caller; checked against an allowlist when they are used.
        flags: Vec<String>,
        /// The group that shall own the files of the file system.
        group: Option<u32>,
    },
}

/// A capability: the intended use of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The access type.
    pub access_type: AccessType,
    /// The access mode.
    pub mode: AccessMode,
}

impl Capability {
    /// Returns true if the volume is requested as a block device.
    pub fn is_block(&self) -> bool {
        self.access_type == AccessType::Block
    }

    /// The requested file system, if any.
    pub fn file_system(&self) -> Option<FileSystem> {
        match &self.access_type {
            AccessType::Block => None,
            AccessType::Mount { file_system, .. } => *file_system,
        }
    }
}
