//! `drumlin describe`: one object for a person.

use drumlin_reconciler::describe::describe;

use super::{object_name, print::print};
use crate::cli::DescribeArguments;

/// Prints the description.
pub(crate) fn run(arguments: &DescribeArguments) -> anyhow::Result<()> {
    let key = object_name::of_kind(arguments.kind.as_str(), &arguments.name);
    print(&describe(&arguments.state_dir, &key)?);
    Ok(())
}
