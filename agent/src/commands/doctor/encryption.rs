//! What classes that encrypt need: dm-crypt, and their keys.

use std::{
    fs,
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use drumlin_core::backend::encrypted::KeySource;

use super::{
    check::Check,
    finding::{Finding, shell},
    subject::Subject,
};

/// Permissions of group and others.
const OTHERS: u32 = 0o077;
/// With one of these, group or others reach what is in a directory.
const SEARCHABLE: u32 = 0o011;

/// Looks at the kernel and at each key. A program that prints a key is not run.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut is_used = false;
    for class in &subject.classes {
        let Some(encryption) = &class.encryption else {
            continue;
        };
        is_used = true;
        for key in encryption.all() {
            let object = format!("class {}", class.name);
            found.extend(unusable(key, object));
            if let KeySource::File(path) = key {
                found.extend(exposed(path));
            }
        }
    }
    if is_used && !has_dm_crypt() {
        let message = "classes that encrypt need dm-crypt, and the kernel does not have it loaded, nor as a module";
        found
            .push(Finding::new(Check::NoDmCrypt, "dm-crypt", message).command("modprobe dm-crypt"));
    }
    found
}

fn unusable(key: &KeySource, object: String) -> Option<Finding> {
    // Only the agent's own service has its credentials.
    if matches!(key, KeySource::Credential(_))
        && std::env::var_os("CREDENTIALS_DIRECTORY").is_none()
    {
        return None;
    }
    let error = key.check().err()?;
    let finding = Finding::new(Check::KeyUnusable, object, error.chain());
    Some(finding.advice(
        "restore the key, without which its volumes cannot be opened; what is open stays open",
    ))
}

fn exposed(path: &Path) -> Option<Finding> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    (mode & OTHERS != 0 && !is_out_of_reach(path)).then(|| {
        let message = format!("others (mode {mode:04o}) can read the key");
        Finding::at(Check::ExposedKey, path, message).command(format!("chmod go= {}", shell(path)))
    })
}

/// Returns true if a directory above the file lets nobody but root and this user through.
fn is_out_of_reach(path: &Path) -> bool {
    let Ok(real) = fs::canonicalize(path) else {
        return false;
    };
    let us = nix::unistd::Uid::effective().as_raw();
    let mut above = real.ancestors().skip(1);
    above.any(|directory| {
        fs::metadata(directory).is_ok_and(|directory| {
            directory.mode() & SEARCHABLE == 0 && [0, us].contains(&directory.uid())
        })
    })
}

/// Returns true if the kernel has dm-crypt or can load it; also where that cannot be told.
fn has_dm_crypt() -> bool {
    if Path::new("/sys/module/dm_crypt").exists() {
        return true;
    }
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else {
        return true;
    };
    let modules = Path::new("/lib/modules").join(release.trim());
    let mut lists = ["modules.dep", "modules.builtin"]
        .iter()
        .filter_map(|list| {
            let mut text = String::new();
            let mut file = fs::File::open(modules.join(list)).ok()?;
            file.read_to_string(&mut text).ok()?;
            Some(text)
        });
    // A container need not have the modules of its host.
    let Some(first) = lists.next() else {
        return true;
    };
    first.contains("/dm-crypt.ko") || lists.any(|list| list.contains("/dm-crypt.ko"))
}
