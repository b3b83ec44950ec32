//! Whether and where metrics can be scraped.

use anyhow::Context;
use serde::Deserialize;

use crate::{cli::MetricsArguments, metrics::MetricsEndpoint};

/// The key `metrics` of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct FileMetrics {
    listen: Option<String>,
}

/// Where the metrics of a process without a configuration file can be scraped, if anywhere.
///
/// # Errors
/// The error names the field.
pub(crate) fn metrics_endpoint(
    arguments: &MetricsArguments,
) -> anyhow::Result<Option<MetricsEndpoint>> {
    endpoint(arguments, FileMetrics::default())
}

/// Where metrics can be scraped, if anywhere: an empty endpoint is none.
///
/// # Errors
/// The error names the field.
pub(super) fn endpoint(
    arguments: &MetricsArguments,
    file: FileMetrics,
) -> anyhow::Result<Option<MetricsEndpoint>> {
    let listen = arguments.metrics_listen.clone().or(file.listen);
    let listen = listen.filter(|text| !text.is_empty());
    let listen = listen.map(|text| text.parse()).transpose();
    listen.context("metrics.listen")
}
