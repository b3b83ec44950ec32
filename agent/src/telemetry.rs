//! Logs: one line per change, to standard error, as text or JSON.

use anyhow::Context;
use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A bare level is meant for us: what libraries say of their frames and polls drowns the calls.
fn own(filter: &str) -> String {
    match filter {
        "debug" => "warn,drumlin=debug".to_owned(),
        other => other.to_owned(),
    }
}

/// Begins to log what `filter` lets through, such as `info` or `drumlin=debug,warn`.
pub(crate) fn start(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(own(filter)).with_context(|| {
        format!("log level {filter:?} is not a valid filter; use for example info or drumlin=debug")
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    match format {
        LogFormat::Text => log
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
