//! Access modes.

/// The access mode of a device or a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read-write.
    ReadWrite,
    /// Read-only.
    ReadOnly,
}
