//! Thin volumes: their blocks are allocated in a pool on the first write.

mod changed;
pub(crate) mod class;
pub(crate) mod create_pool;
mod devices;
mod freed;
mod hidden_device;
pub(crate) mod orphan_thin_devices;
pub(crate) mod pool;
mod rollback;
mod space;
mod volume_type;
