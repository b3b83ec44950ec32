//! Changes the group of all files of a mounted file system (CSI, `volume_mount_group`).
//!
//! A tenant may modify the tree at the same time to redirect the change to foreign files. So no file is accessed by its
//! path: each file is opened by its name relative to an open directory, without following symbolic links and without
//! leaving the mount, and changed through that descriptor. One directory is open at a time; of each directory above it,
//! only identity and read position are kept.

#[cfg(test)]
mod tests;
mod walk;

pub(crate) use walk::give;
