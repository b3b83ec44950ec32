//! The host's calls on real loop devices, file systems and mounts; these tests need root.

mod copies;
mod file_systems;
mod loop_devices;
mod mounts;
mod places;
mod probes;
mod programs;
mod speed;
