//! Whether and where the driver is registered with kubelet.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use drumlin_proto::Endpoint;
use serde::Deserialize;

use crate::{
    cli::KubeletArguments,
    registration::{self, Target},
};

/// Where kubelet looks for registration sockets, unless it was given another `--root-dir`.
const REGISTRATION_DIR: &str = "/var/lib/kubelet/plugins_registry";

/// The key `kubelet` of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
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
        let directory = arguments.kubelet_registration_dir.clone();
        let directory = directory.or(file.registration_dir);
        let directory = directory.unwrap_or_else(|| PathBuf::from(REGISTRATION_DIR));
        let registration = directory.join(registration::file_name(driver));
        // A socket's path has a limit, and the longer one is that of the hidden name.
        let hidden = registration::hidden_path(&registration);
        let hidden: Result<Endpoint, _> = hidden.to_string_lossy().parse();
        hidden.context("kubelet.registrationDir")?;
        let endpoint = arguments.kubelet_endpoint.clone().or(file.endpoint);
        let endpoint = endpoint.map(|text| text.parse::<Endpoint>()).transpose();
        let endpoint = endpoint.context("kubelet.endpoint")?;
        let endpoint = endpoint.map_or_else(|| csi.to_owned(), |path| path.path().to_owned());
        if endpoint == registration {
            bail!("kubelet.endpoint is the registration socket; it must be the CSI socket");
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
