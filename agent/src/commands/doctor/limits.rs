//! What limits of reads and writes need: cgroup v2 with the io controller.

use std::fs;

use drumlin_core::host::io_limits::Cgroups;

use super::{
    check::Check,
    finding::{Finding, shell},
    subject::Subject,
};

/// Looks at the hierarchy if a class has limits.
pub(super) fn check(subject: &Subject) -> Option<Finding> {
    let limited = subject.classes.iter().find(|class| !class.limits.is_none());
    let class = limited?.name.clone();
    let root = &subject.config.as_ref().ok()?.settings.cgroups;
    let finding = |why: &str| {
        let message = format!("limits are not in force: {why}");
        Finding::new(Check::LimitsNotInForce, format!("class {class}"), message)
    };
    if let Err(error) = Cgroups::new(root.clone()).check() {
        return Some(finding(&error.chain()).advice(
            "boot with cgroup v2 alone, and in a pod mount the hierarchy of the host (docs: limits)",
        ));
    }
    let control = root.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    let is_enabled = enabled.split_ascii_whitespace().any(|name| name == "io");
    let command = format!("echo +io > {}", shell(&control));
    let off = "the io controller is off below the root, until the agent looks again";
    (!is_enabled).then(|| finding(off).command(command))
}
