//! `drumlin doctor`: looks for what is wrong on this host, and changes nothing.
//!
//! - [`command`]: runs the parts, each in a process of its own with a deadline, and prints the report.
//! - [`check`]: the list of all checks. [`finding`], [`report`]: what was found, and how it is shown.
//! - [`subject`], [`processes`]: what is looked at: the settings of the agent, whether it runs or not.
//! - The other files are the checks, one for each part or group of them.
//!
//! **Invariant:** nothing is written, mounted, thawed or resumed, and no lock is taken that another process waits for.
//! **Invariant:** what could not be looked at is a finding.

mod agent;
mod check;
mod clock;
mod command;
mod decrypted_devices;
mod device_mapper;
mod directory_class;
mod encryption;
mod finding;
mod frozen;
mod host_mounts;
mod kernel;
mod known_faults;
mod limits;
mod logical_volumes;
mod loop_devices;
mod lvm;
mod lvm_tools;
mod mapped_devices;
mod mounts;
mod own_mounts;
mod part;
mod permissions;
mod pools;
mod processes;
mod programs;
mod report;
mod settings;
mod state;
mod subject;
mod two_agents;

pub(crate) use command::run;
pub(crate) use part::Part;
