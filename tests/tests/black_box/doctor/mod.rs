//! `drumlin doctor`: each of its checks finds what it looks for, and is content once that is mended.

mod agents;
mod directories;
mod file_systems;
mod hosts;
mod leaks;
mod output;
mod settings;
mod states;
