//! Whether and where the driver is registered with kubelet.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use drumlin_proto::Endpoint;
use serde::Deserialize;

use super::key::AtKey;
use crate::{
    cli::KubeletArguments,
    registration::{self, Target},
};

/// Where kubelet looks for registration sockets, unless it was given another `--root-dir`.
const REGISTRATION_DIR: &str = "/var/lib/kubelet/plugins_registry";

/// The key `kubelet` of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    default,
    expecting = "a map such as {register: true}"
)]
pub(super) struct FileKubelet {
    register: Option<bool>,
    registration_dir: Option<PathBuf>,
    endpoint: Option<String>,
}

/// What the agent does about kubelet's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kubelet {
    /// Nothing: something else registers the driver, or there is no kubelet.
    Untouched,
    /// The registration socket at this path is removed if nobody serves it, so that kubelet forgets the driver.
    Withdrawn(PathBuf),
    /// The driver is kept registered.
    Registered(Target),
}

impl Kubelet {
    /// Merges the arguments and the file.
    ///
    /// # Errors
    /// The error names the invalid field.
    pub(super) fn load(
        arguments: &KubeletArguments,
        file: FileKubelet,
        driver: &str,
        csi: &Path,
    ) -> anyhow::Result<Self> {
        let given = arguments.kubelet_registration_dir.as_ref();
        let directory = given.cloned().or(file.registration_dir);
        let directory = directory.unwrap_or_else(|| PathBuf::from(REGISTRATION_DIR));
        let registration = directory.join(registration::file_name(driver));
        // A socket's path has a limit, and the longer one is that of the hidden name.
        let hidden = registration::hidden_path(&registration);
        let hidden: Result<Endpoint, _> = hidden.to_string_lossy().parse();
        hidden.at_key_without(given, "kubelet.registrationDir")?;
        let given = arguments.kubelet_endpoint.as_ref();
        let endpoint = given.cloned().or(file.endpoint);
        let endpoint = endpoint.map(|text| text.parse::<Endpoint>()).transpose();
        let endpoint = endpoint.at_key_without(given, "kubelet.endpoint")?;
        let endpoint = endpoint.map_or_else(|| csi.to_owned(), |path| path.path().to_owned());
        if endpoint == registration {
            let why = anyhow!("it is the registration socket; it must be the CSI socket");
            return Err(why).at_key_without(given, "kubelet.endpoint");
        }
        Ok(match arguments.kubelet_register.or(file.register) {
            None => Self::Untouched,
            Some(false) => Self::Withdrawn(registration),
            Some(true) => Self::Registered(Target {
                driver: driver.to_owned(),
                registration,
                endpoint,
                csi: csi.to_owned(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str) -> anyhow::Result<Kubelet> {
        let file = drumlin_crd::yaml::from_str(file)?;
        let arguments = KubeletArguments::default();
        let csi = Path::new("/run/csi.sock");
        Kubelet::load(&arguments, file, "org.example.test", csi)
    }

    #[test]
    fn nothing_is_done_unless_it_is_asked_for() {
        assert_eq!(load("{}").unwrap(), Kubelet::Untouched);
        let elsewhere = load("{registrationDir: /registry, endpoint: /csi.sock}");
        assert_eq!(elsewhere.unwrap(), Kubelet::Untouched);
    }

    #[test]
    fn a_registration_has_the_paths_of_kubelet_and_its_own() {
        let socket = PathBuf::from("/var/lib/kubelet/plugins_registry/org.example.test-reg.sock");
        let withdrawn = load("{register: false}").unwrap();
        assert_eq!(withdrawn, Kubelet::Withdrawn(socket.clone()));
        let target = |registration, endpoint: &str| {
            Kubelet::Registered(Target {
                driver: "org.example.test".to_owned(),
                registration,
                endpoint: endpoint.into(),
                csi: "/run/csi.sock".into(),
            })
        };
        let registered = load("{register: true}").unwrap();
        assert_eq!(registered, target(socket, "/run/csi.sock"));
        let elsewhere = "{register: true, registrationDir: /r, endpoint: 'unix:///host/csi.sock'}";
        let elsewhere = load(elsewhere).unwrap();
        let socket = PathBuf::from("/r/org.example.test-reg.sock");
        assert_eq!(elsewhere, target(socket, "/host/csi.sock"));
    }

    #[test]
    fn what_cannot_be_a_socket_is_named_with_its_field() {
        let long = "x".repeat(100);
        for (file, field) in [
            ("{registrationDir: registry}", "kubelet.registrationDir"),
            (
                &*format!("{{registrationDir: /{long}}}"),
                "kubelet.registrationDir",
            ),
            ("{endpoint: 'tcp://a'}", "kubelet.endpoint"),
            ("{endpoint: csi.sock}", "kubelet.endpoint"),
            (
                "{registrationDir: /r, endpoint: /r/org.example.test-reg.sock}",
                "kubelet.endpoint",
            ),
            ("{registrationdir: /r}", "registrationdir"),
        ] {
            let error = format!("{:#}", load(file).unwrap_err());
            assert!(error.contains(field), "{file}: {error}");
        }
    }
}
