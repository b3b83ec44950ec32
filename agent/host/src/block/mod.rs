//! Block devices: loop devices, device-mapper, and copying, zeroing and watching their bytes.

pub mod block_copy;
pub mod cow_store;
pub mod crypt_mapping;
pub mod device_mapper;
pub(crate) mod direct_io;
pub mod io_limits;
pub mod loop_device;
pub(crate) mod loop_table;
pub mod luks;
pub mod overwritten;
pub mod read_probe;
pub mod udev;
pub mod udev_cookies;
pub(crate) mod write_watch;
pub(crate) mod zeros;
