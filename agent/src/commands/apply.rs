//! `drumlin apply`: one pass over the manifests, for scripts.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use drumlin_reconciler::{Error, Settings, apply};

use super::{hooks::HOOKS, plan::UNREACHABLE, print::note, status};
use crate::cli::ApplyArguments;

/// Applies the manifests and shows the status.
pub(crate) async fn run(arguments: ApplyArguments) -> anyhow::Result<ExitCode> {
    arguments.log.start(None)?;
    if arguments.timeout.is_negative() {
        bail!("--timeout: a time cannot be negative");
    }
    let patience = Duration::from(arguments.timeout);
    let state_dir = arguments.host.state_dir;
    let settings = Settings {
        cluster: None,
        socket: arguments.host.endpoint.path().to_owned(),
        manifests: Some(arguments.manifests),
        // One pass sees a manifest missing once, which is not enough.
        prune: None,
        manifest_owners: arguments.owners.manifest_owners,
        state_dir: state_dir.clone(),
        hooks: HOOKS,
    };
    match apply(settings, patience).await {
        Err(error @ Error::Unreachable(_)) => {
            note(&error.to_string());
            Ok(ExitCode::from(UNREACHABLE))
        }
        Err(error) => Err(error.into()),
        Ok(()) => status::show(&state_dir, arguments.output),
    }
}
