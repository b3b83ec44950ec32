//! `drumlin describe`: one object for a person.

use anyhow::bail;
use drumlin_reconciler::describe::describe;

use super::{object_name, print::print};
use crate::cli::DescribeArguments;

/// Prints the description.
pub(crate) fn run(arguments: &DescribeArguments) -> anyhow::Result<()> {
    let Some(key) = object_name::of(&arguments.object, arguments.name.as_deref())? else {
        bail!("which one? NAMESPACE/NAME is missing");
    };
    print(&describe(&arguments.state_dir, &key)?);
    Ok(())
}
