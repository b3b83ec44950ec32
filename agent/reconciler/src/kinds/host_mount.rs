//! What holds for mounts on this host of objects of an API server: who may write objects in a namespace need not be
//! trusted with the paths of this host, nor with what is on the file systems that are mounted.

use std::{
    fs,
    path::{Path, PathBuf},
};

use drumlin_crd::VolumeMount;
use serde::{Deserialize, Serialize};

use super::{Halt, Pass, stalled};
use crate::{blocking::blocking, shared::HostMounts};

/// What holds for a mount whatever its object asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Confined {
    /// Mount options that it has behind those of its object.
    pub(crate) options: Vec<String>,
}

impl Pass<'_> {
    /// What holds for a mount; nothing where a file of this host asks for it.
    pub(super) fn confinement(&self, wanted: &VolumeMount) -> Result<Option<Confined>, Halt> {
        if self.record.served().is_none() {
            return Ok(None);
        }
        let none = HostMounts::default();
        let mounts = self.shared.host_mounts().unwrap_or(&none);
        let why = blocking(|| denied(Path::new(&wanted.path), &mounts.roots));
        why.map_or(Ok(()), |why| Err(stalled("HostMountDenied", why)))?;
        let options = mounts.options.clone();
        Ok(Some(Confined { options }))
    }
}

/// Why nothing is mounted at a path for an object of an API server: who may write objects in a namespace need not be
/// trusted with the paths of this host. A link on the way counts as what it leads to, for tenants write into what is
/// mounted there.
fn denied(path: &Path, roots: &[PathBuf]) -> Option<String> {
    if roots.is_empty() {
        return Some("spec.mount: this agent mounts nothing on its host for objects of an API server; start it with --allow-host-mounts".to_owned());
    }
    let real = |path: &Path| {
        let there = path.ancestors().find_map(|ancestor| {
            let real = fs::canonicalize(ancestor).ok()?;
            Some(real.join(path.strip_prefix(ancestor).ok()?))
        });
        there.unwrap_or_else(|| path.to_owned())
    };
    let path = (path, real(path));
    let is_below = |root: &PathBuf| {
        let root = real(root);
        path.1 != root && path.1.starts_with(&root)
    };
    if roots.iter().any(is_below) {
        return None;
    }
    let roots: Vec<String> = roots
        .iter()
        .map(|root| root.display().to_string())
        .collect();
    Some(format!(
        "spec.mount.path: {} is not below {}, where alone this agent mounts for objects of an API server (--mount-roots)",
        path.0.display(),
        roots.join(" or ")
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn objects_of_a_server_are_mounted_below_the_roots_only_whatever_links_say() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("srv/pg")).unwrap();
        symlink(directory.path(), at("srv/pg/out")).unwrap();
        symlink(at("srv"), at("alias")).unwrap();
        let roots = [at("srv")];
        for good in ["srv/new", "srv/pg/data/deep", "alias/new", "srv/pg"] {
            assert_eq!(denied(&at(good), &roots), None, "{good}");
        }
        for bad in ["srv", "srvx", "etc", "srv/pg/out/etc", "alias"] {
            let why = denied(&at(bad), &roots).unwrap();
            assert!(why.starts_with("spec.mount.path: "), "{why}");
        }
        assert_eq!(denied(&at("etc"), &["/".into()]), None);
        assert!(denied(&at("etc"), &[]).is_some());
    }
}
