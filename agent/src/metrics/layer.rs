//! Takes the times of calls, programs, LVM commands and freeze barriers from their spans.

use std::{fmt, time::Instant};

use drumlin_core::host::trace::{RPC, TARGET};
use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    filter::{FilterFn, filter_fn},
    layer::Context,
    registry::LookupSpan,
};

use super::Metrics;

/// A layer that measures spans.
pub(crate) struct MetricsLayer {
    metrics: Metrics,
}

/// A span that is open.
struct Open {
    begun: Instant,
    /// The value of the field that names what is measured.
    subject: String,
}

impl MetricsLayer {
    /// A layer that adds to `metrics`.
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics }
    }

    /// Enables the spans that are measured, of calls or not.
    pub(crate) fn filter() -> FilterFn<fn(&Metadata<'_>) -> bool> {
        let is_measured: fn(&Metadata<'_>) -> bool = |metadata| {
            let is_ours = metadata.is_span() && metadata.target() == TARGET;
            is_ours && subject(metadata.name()).is_some()
        };
        filter_fn(is_measured).with_max_level_hint(LevelFilter::DEBUG)
    }
}

/// The field that names what a span of this name measures; empty if nothing does.
fn subject(name: &str) -> Option<&'static str> {
    match name {
        RPC => Some("rpc.method"),
        "program" => Some("line"),
        "command" => Some("name"),
        "quiesce" => Some(""),
        _ => None,
    }
}

impl<S> Layer<S> for MetricsLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let Some(wanted) = subject(span.name()) else {
            return;
        };
        let mut value = Value::of(wanted);
        attributes.record(&mut value);
        span.extensions_mut().insert(Open {
            begun: Instant::now(),
            subject: value.text,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut code = Value::of("rpc.code");
        values.record(&mut code);
        if code.text.is_empty() {
            return;
        }
        // The call is answered: it ends here, even if a part of it goes on.
        if let Some(open) = span.extensions_mut().remove::<Open>() {
            self.metrics
                .answered(&open.subject, &code.text, open.begun.elapsed());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let Some(open) = span.extensions_mut().remove::<Open>() else {
            return;
        };
        let took = open.begun.elapsed();
        match span.name() {
            // Its caller has left before it was answered.
            RPC => self.metrics.answered(&open.subject, "Cancelled", took),
            "program" => self.metrics.ran(&open.subject, took),
            "command" => self.metrics.commanded(&open.subject, took),
            _ => self.metrics.quiesced(took),
        }
    }
}

/// The value of one field.
struct Value {
    field: &'static str,
    text: String,
}

impl Value {
    fn of(field: &'static str) -> Self {
        Self {
            field,
            text: String::new(),
        }
    }
}

impl Visit for Value {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == self.field {
            value.clone_into(&mut self.text);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == self.field {
            self.text = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use drumlin_core::host::trace;
    use tracing::{field, subscriber::with_default};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// The metrics after `work`.
    fn measured(work: impl FnOnce()) -> String {
        let metrics = Metrics::of_agent();
        let layer = MetricsLayer::new(metrics.clone()).with_filter(MetricsLayer::filter());
        with_default(tracing_subscriber::registry().with(layer), work);
        metrics.text()
    }

    #[test]
    fn each_span_counts_once_within_a_call_or_without_one() {
        let text = measured(|| {
            let call = trace::rpc(1, "p.S/M", &"v-1");
            call.in_scope(|| drop(trace::command("lvcreate")));
            call.record("rpc.code", field::debug(tonic::Code::NotFound));
            drop(call);
            drop(trace::rpc(2, "p.S/M", &"v-2"));
            drop(trace::program("/sbin/mkfs.xfs /dev/secret"));
        });
        for line in [
            r#"drumlin_rpc_duration_seconds_count{method="p.S/M",code="NotFound"} 1"#,
            r#"drumlin_rpc_duration_seconds_count{method="p.S/M",code="Cancelled"} 1"#,
            r#"drumlin_lvm_command_duration_seconds_count{command="lvcreate"} 1"#,
            r#"drumlin_program_duration_seconds_count{program="mkfs.xfs"} 1"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("v-1") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn other_spans_and_events_are_not_recorded() {
        let is_disabled = |work: fn() -> bool| {
            let metrics = MetricsLayer::new(Metrics::of_agent());
            let layer = metrics.with_filter(MetricsLayer::filter());
            with_default(tracing_subscriber::registry().with(layer), work)
        };
        assert!(is_disabled(|| trace::wait(trace::Wait::Lock).is_disabled()));
        assert!(!is_disabled(|| trace::command("lvs").is_disabled()));
    }
}
