//! `drumlin handover`: hands a retained resource over between manifest files and the API server.

use drumlin_reconciler::kept;

use super::{object_name, print::print};
use crate::cli::HandoverArguments;

/// Records the handover for the reconciler.
pub(crate) fn run(arguments: &HandoverArguments) -> anyhow::Result<()> {
    let key = object_name::of_kind(arguments.kind.as_str(), &arguments.name);
    let handle = kept::hand_over(&arguments.state_dir, &key)?;
    print(&format!(
        "{handle} is released for handover: the first object {key} that is declared on this node within an hour adopts it\n"
    ));
    Ok(())
}
