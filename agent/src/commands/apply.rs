//! `drumlin apply`: one pass over the manifests, for scripts.

use std::{pin::pin, process::ExitCode, time::Duration};

use drumlin_reconciler::{Error, Settings, apply};
use tokio::time::timeout;

use super::{
    hooks::HOOKS, known_manifests::known, plan::UNREACHABLE, print::note,
    progress_bars::ProgressBars, status,
};
use crate::cli::ApplyArguments;

/// Interval at which the state files are read for what is in progress.
const INTERVAL: Duration = Duration::from_millis(200);

/// Applies the manifests and shows the status.
pub(crate) async fn run(arguments: ApplyArguments) -> anyhow::Result<ExitCode> {
    arguments.log.start(None)?;
    let state_dir = arguments.host.state_dir;
    let manifests = known(&arguments.manifests, &state_dir)?;
    let settings = Settings {
        cluster: None,
        socket: arguments.host.endpoint.path().to_owned(),
        manifests: Some(manifests.directory),
        // One pass sees a manifest missing once, which is not enough.
        prune: None,
        manifest_owners: manifests.owners,
        state_dir: state_dir.clone(),
        hooks: HOOKS,
    };
    let mut bars = ProgressBars::default();
    let mut applying = pin!(apply(settings, arguments.timeout));
    let applied = loop {
        match timeout(INTERVAL, &mut applying).await {
            Ok(applied) => break applied,
            Err(_) => bars.show_objects(&state_dir),
        }
    };
    drop(bars);
    match applied {
        Err(error @ Error::Unreachable(_)) => {
            note(&error.to_string());
            Ok(ExitCode::from(UNREACHABLE))
        }
        Err(error) => Err(error.into()),
        Ok(()) => status::show(&state_dir, arguments.output),
    }
}
