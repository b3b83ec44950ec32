//! What holds for mounts on this host of objects of an API server: who may write objects in a namespace need not be
//! trusted with the paths of this host, nor with what is on the file systems that are mounted.
//!
//! Below its root the path of such a mount may lead through what others write. What is said of it here is said early and
//! clearly; it holds because the agent, which is told the root, follows no link below it.

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

/// What holds for a mount whatever its object asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Confined {
    /// The directory below which no link of its path is followed.
    pub(crate) root: String,
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
        let root = blocking(|| root_of(&wanted.path, &mounts.roots));
        let root = root.map_err(|why| stalled("HostMountDenied", why))?;
        let options = mounts.options.clone();
        Ok(Some(Confined { root, options }))
    }

    /// What the agent is told with a volume that it publishes.
    pub(super) fn mount_context(&self) -> BTreeMap<String, String> {
        let confined = self.record.drumlin.confined.iter();
        confined
            .map(|confined| (MOUNT_ROOT.to_owned(), confined.root.clone()))
            .collect()
    }

    /// The directory below which what may be mounted is looked for without following any link.
    pub(super) fn mounted_below(&self, path: &str) -> Option<String> {
        if let Some(confined) = &self.record.drumlin.confined {
            return Some(confined.root.clone());
        }
        self.record.served()?;
        // Where it is not known, and cannot be told by now, no link at all is followed.
        let mounts = self.shared.host_mounts();
        let root = mounts.map(|mounts| blocking(|| root_of(path, &mounts.roots)));
        Some(root.and_then(Result::ok).unwrap_or_else(|| "/".to_owned()))
    }

    /// What the agent refuses of a path that others may change is wrong with that path.
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

/// The root that a path is below, as it is spelled or as links make it; or why nothing is mounted there.
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
