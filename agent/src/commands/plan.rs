//! `drumlin plan`: what a pass over the manifests would do.

use std::process::ExitCode;

use drumlin_reconciler::plan::{Outcome, Settings, plan};
use serde_json::json;

use super::print::{print, print_styled};
use crate::{
    cli::{DataOutput, PlanArguments},
    config::host_name,
};

/// Exit code if the agent does not answer.
pub(super) const UNREACHABLE: u8 = 5;

/// Prints the plan.
pub(crate) async fn run(arguments: PlanArguments) -> anyhow::Result<ExitCode> {
    let plan = plan(&Settings {
        socket: arguments.host.endpoint.path().to_owned(),
        manifests: arguments.manifests,
        manifest_owners: arguments.owners.manifest_owners,
        state_dir: arguments.host.state_dir,
        node: host_name().unwrap_or_default(),
    })
    .await?;
    match arguments.output {
        None => print_styled(&plan.render()),
        Some(DataOutput::Json) => print(&(serde_json::to_string_pretty(&plan)? + "\n")),
        Some(DataOutput::Yaml) => print(&drumlin_crd::to_yaml(&json!(plan))),
    }
    Ok(ExitCode::from(match plan.outcome() {
        Outcome::Nothing => 0,
        Outcome::Changes => 2,
        Outcome::Invalid => 4,
        Outcome::Unreachable => UNREACHABLE,
    }))
}
