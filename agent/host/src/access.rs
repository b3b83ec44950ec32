//! Whether something may be written.

/// What may be done with a device or a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// It can be read and written.
    ReadWrite,
    /// It can be read.
    ReadOnly,
}
