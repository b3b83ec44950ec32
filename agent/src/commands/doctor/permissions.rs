//! Owners and modes: who can write what the agent trusts, and who can connect to its socket.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use super::{
    check::Check,
    finding::{Finding, shell},
    subject::Subject,
};

/// Write permission of group and others.
const WRITABLE: u32 = 0o022;

/// Looks at the state directory, the socket and the configuration file. Those of manifests are looked at when these are
/// read.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let config = subject.arguments.config.as_deref();
    let state = subject.state_dir();
    let socket = subject.socket();
    let directories = subject.directories();
    let directories = directories
        .map(|(_, settings)| (settings.path.as_path(), "can replace the data of volumes"));
    let all = [
        (state.as_path(), "can replace the state of all objects"),
        (
            socket.as_path(),
            "can call the agent, and so read and destroy all volumes",
        ),
    ];
    let all = all.into_iter().chain(directories);
    let all = all.chain(config.map(|config| (config, "can have the agent use other storage")));
    let found = all.filter_map(|(path, what)| look(path, what));
    found.chain(unprivileged()).collect()
}

/// What this process may not see need not be missing.
fn unprivileged() -> Option<Finding> {
    let us = nix::unistd::Uid::effective();
    (!us.is_root()).then(|| {
        let why = "this user may not see all that the agent has, and root may";
        Finding::not_checked(format!("user {us}"), why).advice("run `drumlin doctor` as root")
    })
}

fn look(path: &Path, what: &str) -> Option<Finding> {
    let file = match fs::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Finding::not_checked(path.display().to_string(), error)),
    };
    let mode = file.mode() & 0o7777;
    let insecure =
        |who: String| Finding::at(Check::InsecurePermissions, path, format!("{who} {what}"));
    let us = nix::unistd::Uid::effective().as_raw();
    if ![0, us].contains(&file.uid()) {
        let finding = insecure(format!("user {}, who owns it,", file.uid()));
        return Some(finding.command(format!("chown root {}", shell(path))));
    }
    if mode & WRITABLE != 0 {
        let finding = insecure(format!("others (mode {mode:04o})"));
        return Some(finding.command(format!("chmod go-w {}", shell(path))));
    }
    None
}
