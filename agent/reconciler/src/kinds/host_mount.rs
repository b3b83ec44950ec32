//! Restrictions for host mounts of API server objects: a tenant who may write objects in a namespace is not trusted
//! with the paths of this host, nor with the contents of mounted file systems.
//!
//! Below its root, the path of such a mount may pass through directories that tenants write. The checks here report
//! mistakes early and clearly; they are enforced by the agent, which receives the root and follows no symbolic link
//! below it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use drumlin_crd::VolumeMount;
use drumlin_proto::MOUNT_ROOT;
use serde::{Deserialize, Serialize};
use tonic::Code;

use super::{Halt, Pass, stalled};
use crate::{blocking::blocking, client::Failure, state::HostMounts};

/// Restrictions of a mount, whatever its object requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Confined {
    /// The root directory below which no symbolic link is followed.
    pub(crate) root: String,
    /// Mount options that are appended to those of its object.
    pub(crate) options: Vec<String>,
}

impl Pass<'_> {
    /// The restrictions of a mount; `None` for an object of a manifest file.
    pub(super) fn confinement(&self, wanted: &VolumeMount) -> Result<Option<Confined>, Halt> {
        if self.record.is_of_file() {
            return Ok(None);
        }
        let none = HostMounts::default();
        let mounts = self.shared.host_mounts().unwrap_or(&none);
        let root = blocking(|| root_of(&wanted.path, &mounts.roots));
        let root = root.map_err(|why| stalled("HostMountDenied", why))?;
        let options = mounts.options.clone();
        Ok(Some(Confined { root, options }))
    }

    /// The volume context of a publish call.
    pub(super) fn mount_context(&self) -> BTreeMap<String, String> {
        let confined = self.record.drumlin.confined.iter();
        confined
            .map(|confined| (MOUNT_ROOT.to_owned(), confined.root.clone()))
            .collect()
    }

    /// The root below which a mount is looked up without following any symbolic link.
    pub(super) fn mounted_below(&self, path: &str) -> Option<String> {
        if let Some(confined) = &self.record.drumlin.confined {
            return Some(confined.root.clone());
        }
        self.record.served()?;
        // If the root is unknown and cannot be determined any more, no symbolic link at all is followed.
        let mounts = self.shared.host_mounts();
        let root = mounts.map(|mounts| blocking(|| root_of(path, &mounts.roots)));
        Some(root.and_then(Result::ok).unwrap_or_else(|| "/".to_owned()))
    }

    /// A refusal of the agent for a path that tenants may change is a problem of that path.
    pub(super) fn judge_denial<T>(
        &self,
        answer: Result<T, Failure>,
    ) -> Result<Result<T, Failure>, Halt> {
        match answer {
            Err(failure)
                if failure.code == Code::InvalidArgument
                    && self.record.drumlin.confined.is_some() =>
            {
                let why = format!("spec.mount.path: {}", failure.message);
                Err(stalled("HostMountDenied", why))
            }
            other => Ok(other),
        }
    }
}

/// The root that contains a path, as configured or with symbolic links resolved; or why the path cannot be mounted.
fn root_of(path: &str, roots: &[PathBuf]) -> Result<String, String> {
    if roots.is_empty() {
        return Err("spec.mount: this agent does not mount volumes of API server objects on its host; start it with --allow-host-mounts to permit that".to_owned());
    }
    let spelled = roots
        .iter()
        .filter_map(|root| std::path::absolute(root).ok());
    let real = roots.iter().filter_map(|root| fs::canonicalize(root).ok());
    let is_above = |root: &PathBuf| Path::new(path) != root && Path::new(path).starts_with(root);
    let above = spelled.chain(real).filter(is_above);
    let Some(root) = above.max_by_key(|root| root.as_os_str().len()) else {
        let roots: Vec<String> = roots
            .iter()
            .map(|root| root.display().to_string())
            .collect();
        return Err(format!(
            "spec.mount.path: {path} is not below {}, the only directories where this agent mounts volumes of API server objects (--mount-roots)",
            roots.join(" or ")
        ));
    };
    let below = Path::new(path).ancestors();
    let mut below = below.take_while(|part| *part != root);
    if let Some(link) = below.find(|part| part.is_symlink()) {
        return Err(format!(
            "spec.mount.path: {path} passes through the symbolic link {}, which is not allowed below {} (--mount-roots)",
            link.display(),
            root.display()
        ));
    }
    let root = root.into_os_string().into_string();
    root.map_err(|root| format!("spec.mount.path: {} is not UTF-8", root.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn objects_of_a_server_are_mounted_below_the_roots_only_and_through_no_link_there() {
        let directory = tempfile::tempdir().unwrap();
        let directory = fs::canonicalize(directory.path()).unwrap();
        let at = |name: &str| directory.join(name).to_string_lossy().into_owned();
        fs::create_dir_all(at("srv/pg")).unwrap();
        symlink(&directory, at("srv/pg/out")).unwrap();
        symlink(at("srv/pg"), at("srv/inside")).unwrap();
        symlink(at("srv"), at("alias")).unwrap();
        let (spelled, real) = ([PathBuf::from(at("alias"))], [PathBuf::from(at("srv"))]);
        for good in ["srv/new", "srv/pg/data/deep", "srv/pg"] {
            assert_eq!(root_of(&at(good), &real).unwrap(), at("srv"), "{good}");
            assert_eq!(root_of(&at(good), &spelled).unwrap(), at("srv"), "{good}");
        }
        assert_eq!(root_of(&at("alias/new"), &spelled).unwrap(), at("alias"));
        for bad in ["srv", "srvx", "etc", "alias/new", "alias"] {
            let why = root_of(&at(bad), &real).unwrap_err();
            assert!(why.starts_with("spec.mount.path: "), "{why}");
            assert!(why.contains("--mount-roots"), "{why}");
        }
        for (bad, link) in [
            ("srv/pg/out/etc", "srv/pg/out"),
            ("srv/inside/data", "srv/inside"),
            ("srv/inside", "srv/inside"),
        ] {
            let why = root_of(&at(bad), &real).unwrap_err();
            assert!(why.contains(&format!("link {}, ", at(link))), "{why}");
        }
        assert_eq!(root_of("/etc/x", &["/".into()]).unwrap(), "/");
        let nested = ["/".into(), at("srv").into()];
        assert_eq!(root_of(&at("srv/new"), &nested).unwrap(), at("srv"));
        assert!(root_of(&at("etc"), &[]).is_err());
    }
}
