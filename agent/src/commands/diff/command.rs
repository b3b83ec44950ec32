//! From the arguments to the search and its output.

use std::io::{self, BufWriter};

use anyhow::Context;

use super::{
    report::{Named, Report},
    search::Search,
};
use crate::{
    cli::{ComparedKind, DiffArguments},
    commands::object_handle::handle,
};

/// Prints the ranges as the agent finds them.
///
/// # Errors
/// If not all ranges were printed; the output then has no end.
pub(crate) async fn run(arguments: DiffArguments) -> anyhow::Result<()> {
    let ComparedKind::Snapshot = arguments.kind;
    let host = arguments.host;
    let named = |name: String| -> anyhow::Result<Named> {
        let handle = handle(&host.state_dir, "Snapshot", (&name, &arguments.namespace))?;
        Ok(Named {
            name,
            handle,
            uuid: String::new(),
        })
    };
    let (base, target) = (named(arguments.base)?, named(arguments.target)?);
    let what = format!(
        "comparing {} with {} at {}",
        base.name, target.name, host.endpoint
    );
    let channel = drumlin_proto::connect(host.endpoint.path())?;
    let output = BufWriter::new(io::stdout());
    let report = Report::new(output, arguments.output, [base, target]);
    Search::new(channel, report).run().await.context(what)
}
