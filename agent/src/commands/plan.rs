//! `drumlin plan`: what a pass over the manifests would do.

use std::process::ExitCode;

use drumlin_reconciler::plan::{Outcome, Settings, plan};

use super::{known_manifests::known, print::print_styled};
use crate::{
    cli::{DataOutput, PlanArguments},
    config::node_name,
};

/// Exit code if the agent does not answer.
pub(super) const UNREACHABLE: u8 = 5;

/// Prints the plan.
pub(crate) async fn run(arguments: PlanArguments) -> anyhow::Result<ExitCode> {
    let node = node_name(arguments.manifests.config.as_deref())?;
    let plan = plan(&Settings {
        socket: arguments.host.endpoint.path().to_owned(),
        manifests: known(&arguments.manifests, &arguments.host.state_dir)?,
        state_dir: arguments.host.state_dir,
        node,
    })
    .await?;
    let data = DataOutput::form(arguments.output).data(&plan);
    print_styled(&data.unwrap_or_else(|| plan.render()));
    Ok(ExitCode::from(match plan.outcome() {
        Outcome::Nothing => 0,
        Outcome::Changes => 2,
        Outcome::Invalid => 4,
        Outcome::Unreachable => UNREACHABLE,
    }))
}
