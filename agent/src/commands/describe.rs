//! `drumlin describe`: one object with what belongs to it.

use anyhow::bail;
use drumlin_reconciler::describe::describe;

use super::{object_name, print::print_styled};
use crate::cli::{DataOutput, DescribeArguments};

/// Prints the description.
pub(crate) fn run(arguments: &DescribeArguments) -> anyhow::Result<()> {
    let Some(key) = object_name::of(
        &arguments.object,
        arguments.name.as_deref(),
        &arguments.namespace,
    )?
    else {
        bail!("which one? NAMESPACE/NAME is missing");
    };
    let description = describe(&arguments.state_dir, &key)?;
    print_styled(&description.render(DataOutput::form(arguments.output)));
    Ok(())
}
