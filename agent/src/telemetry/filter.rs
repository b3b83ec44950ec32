//! Which events and spans are recorded, and by whom.

use anyhow::Context as _;
use drumlin_core::host::trace;
use tracing::{Metadata, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    EnvFilter,
    layer::{Context, Filter},
    registry::LookupSpan,
};

/// The filter that a log level stands for.
///
/// # Errors
/// If it is neither a level nor a filter.
pub(super) fn parse(level: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(own(level)).with_context(|| {
        format!("log level {level:?} is not a valid filter; use for example info or drumlin=debug")
    })
}

/// A bare level applies to the crates of this project only: logs of the libraries would bury the others.
fn own(level: &str) -> &str {
    match level {
        "debug" => "warn,drumlin=debug",
        other => other,
    }
}

/// The same without spans: they are written as a tree, and would be repeated in each log line.
pub(super) fn events(filter: EnvFilter) -> anyhow::Result<EnvFilter> {
    let no_spans = format!("{}=off", trace::TARGET);
    Ok(filter.add_directive(no_spans.parse().context("the target of spans")?))
}

/// Records the spans of calls: those of what runs beside calls, such as recovery, have no root.
#[derive(Debug, Clone, Copy)]
pub(super) struct InCalls;

impl InCalls {
    fn is_ours(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == trace::TARGET
    }
}

impl<S> Filter<S> for InCalls
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        let is_in_call = || metadata.name() == trace::RPC || context.lookup_current().is_some();
        Self::is_ours(metadata) && is_in_call()
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::is_ours(metadata) {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }
}
