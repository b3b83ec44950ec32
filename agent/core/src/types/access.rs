//! How a volume is to be used (CSI, `VolumeCapability`).

use crate::host::FileSystem;

/// Who may use a volume at a time (CSI, `VolumeCapability.AccessMode`).
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
    /// Whether more than one node would have the volume, which no local volume can give.
    pub fn is_multi_node(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter
        )
    }

    /// Whether nobody may write.
    pub fn is_reader_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// The specification's name of the mode.
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

/// Raw or mounted (CSI, `VolumeCapability.access_type`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessType {
    /// A block device.
    Block,
    /// A mounted file system.
    Mount {
        /// The file system; none means the class's own.
        file_system: Option<FileSystem>,
        /// Mount flags as the caller sent them; checked against the list of safe ones when they are used.
        flags: Vec<String>,
        /// The group that shall own the file system's files.
        group: Option<u32>,
    },
}

/// How a volume is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Raw or mounted.
    pub access_type: AccessType,
    /// By whom.
    pub mode: AccessMode,
}

impl Capability {
    /// Whether the volume is wanted as a block device.
    pub fn is_block(&self) -> bool {
        self.access_type == AccessType::Block
    }

    /// The file system that is asked for, if one is.
    pub fn file_system(&self) -> Option<FileSystem> {
        match &self.access_type {
            AccessType::Block => None,
            AccessType::Mount { file_system, .. } => *file_system,
        }
    }
}
