//! `drumlin status`: the status of all objects.

use std::process::ExitCode;

use drumlin_reconciler::status::{Form, load};

use super::print::print;
use crate::cli::{Output, StatusArguments};

/// Exit code if any object is not ready.
const NOT_READY: u8 = 3;

/// Prints the table.
pub(crate) fn run(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let table = load(&arguments.state_dir)?;
    print(&table.render(match arguments.output {
        None => Form::Table,
        Some(Output::Wide) => Form::Wide,
        Some(Output::Json) => Form::Json,
    }));
    Ok(if table.is_all_ready() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_READY)
    })
}
