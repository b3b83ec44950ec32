//! The start of logging, and of the export of traces.

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::{
    Layer, Registry, filter::FilterExt, layer::SubscriberExt, util::SubscriberInitExt,
};

use super::{
    Exporter, filter,
    filter::InCalls,
    journal::{EntryFormat, Journal},
    tree::TreeLayer,
};
use crate::metrics::{Metrics, MetricsLayer};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text for humans.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging with `level`: a level such as `info`, or a filter such as `drumlin=debug,warn`. The exporter gets all
/// spans of calls, whatever the level, and metrics those that they measure.
pub(crate) fn start(
    format: LogFormat,
    level: &str,
    exporter: Option<&Exporter>,
    metrics: Option<&Metrics>,
) -> anyhow::Result<()> {
    let lines = lines(format);
    let lines = lines.with_filter(filter::events(filter::parse(level)?)?);
    let trees = TreeLayer::to_log(format).with_filter(filter::parse(level)?.and(InCalls));
    let export = exporter.map(|exporter| exporter.layer().with_filter(InCalls));
    let measure = metrics
        .map(|metrics| MetricsLayer::new(metrics.clone()).with_filter(MetricsLayer::filter()));
    tracing_subscriber::registry()
        .with(lines)
        .with(trees)
        .with(export)
        .with(measure)
        .init();
    Ok(())
}

/// The layer that writes log lines.
fn lines(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let lines = tracing_subscriber::fmt::layer();
    let journal = match format {
        LogFormat::Text => Journal::of_standard_error(),
        LogFormat::Json => None,
    };
    if let Some(journal) = journal {
        return lines.event_format(EntryFormat).with_writer(journal).boxed();
    }
    let lines = lines.with_writer(std::io::stderr).with_target(false);
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    match format {
        LogFormat::Text => lines.with_ansi(is_terminal).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}
