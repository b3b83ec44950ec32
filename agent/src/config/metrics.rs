//! Whether and where metrics are published.

use serde::Deserialize;

use super::key::AtKey;
use crate::{cli::MetricsArguments, metrics::MetricsTargets};

/// The key `metrics` of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    default,
    expecting = "a map such as {listen: '127.0.0.1:9808'}"
)]
pub(super) struct FileMetrics {
    listen: Option<String>,
    textfile: Option<String>,
}

/// Where the metrics of a process without a configuration file are published, if anywhere.
///
/// # Errors
/// The error names the field.
pub(crate) fn metrics_targets(arguments: &MetricsArguments) -> anyhow::Result<MetricsTargets> {
    targets(arguments, FileMetrics::default())
}

/// Where metrics are published, if anywhere: an empty endpoint or path is none.
///
/// # Errors
/// The error names the field.
pub(super) fn targets(
    arguments: &MetricsArguments,
    file: FileMetrics,
) -> anyhow::Result<MetricsTargets> {
    let chosen = |argument: &Option<String>, file: Option<String>| {
        let text = argument.clone().or(file);
        text.filter(|text| !text.is_empty())
    };
    let listen = chosen(&arguments.metrics_listen, file.listen);
    let listen = listen.map(|text| text.parse()).transpose();
    let textfile = chosen(&arguments.metrics_textfile, file.textfile);
    let textfile = textfile.map(|text| text.parse()).transpose();
    Ok(MetricsTargets {
        listen: listen.at_key_without(arguments.metrics_listen.as_ref(), "metrics.listen")?,
        textfile: textfile
            .at_key_without(arguments.metrics_textfile.as_ref(), "metrics.textfile")?,
    })
}
