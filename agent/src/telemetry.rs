//! Logs: one line per change, to standard error, as text or JSON.

use anyhow::Context;
use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

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

/// A bare level applies to the crates of this project only: logs of the libraries would bury the others.
fn own(filter: &str) -> String {
    match filter {
        "debug" => "warn,drumlin=debug".to_owned(),
        other => other.to_owned(),
    }
}

/// Starts logging with `filter`, such as `info` or `drumlin=debug,warn`.
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
