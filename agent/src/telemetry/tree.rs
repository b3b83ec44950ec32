//! The spans of each call, written to the log in one piece when the last one of them has ended: lines of calls that run
//! at the same time do not mix.

use std::{
    io::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use drumlin_core::host::trace::RPC;
use tracing::{
    Subscriber,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use super::{
    LogFormat,
    trace::{Fields, Trace},
};

/// Collects the spans of each call, and hands them to `write` when the call has ended.
pub(super) struct TreeLayer<W> {
    write: W,
}

/// The place of a span in the trace of its call.
#[derive(Clone)]
struct Place {
    trace: Arc<Mutex<Trace>>,
    number: usize,
}

impl TreeLayer<()> {
    /// Writes to the log.
    pub(super) fn to_log(format: LogFormat) -> TreeLayer<impl Fn(&Trace) + Send + Sync> {
        TreeLayer::new(move |trace| {
            let text = match format {
                LogFormat::Text => trace.text(),
                LogFormat::Json => trace.json(),
            };
            // Where the log cannot be written, nothing can be reported.
            let _ = std::io::stderr().lock().write_all(text.as_bytes());
        })
    }
}

impl<W: Fn(&Trace)> TreeLayer<W> {
    fn new(write: W) -> Self {
        Self { write }
    }
}

/// The place of a span, if it belongs to a call.
fn place<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>) -> Option<Place> {
    span.extensions().get::<Place>().cloned()
}

impl Place {
    /// Changes the trace.
    fn change<T>(&self, change: impl FnOnce(&mut Trace) -> T) -> T {
        change(&mut self.trace.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S, W> Layer<S> for TreeLayer<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn(&Trace) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let (name, fields) = (span.name(), Fields::of(|fields| attributes.record(fields)));
        let above = span.parent().and_then(|parent| place(&parent));
        let new = match above {
            Some(above) => {
                let number = above.change(|trace| trace.add(above.number, name, fields));
                number.map(|number| Place { number, ..above })
            }
            None if name == RPC => Some(Place {
                trace: Arc::new(Mutex::new(Trace::new(name, fields))),
                number: Trace::ROOT,
            }),
            None => None,
        };
        if let Some(place) = new {
            span.extensions_mut().insert(place);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(place) = context.span(id).as_ref().and_then(place) else {
            return;
        };
        let fields = Fields::of(|fields| values.record(fields));
        // The result of a call is known: it ends here, even if a part of it goes on.
        place.change(|trace| trace.complete(place.number, fields, Instant::now()));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let Some(place) = span.extensions_mut().remove::<Place>() else {
            return;
        };
        place.change(|trace| {
            trace.complete(place.number, Fields::default(), Instant::now());
            // A span closes after all that are below it.
            if place.number == Trace::ROOT {
                (self.write)(trace);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_core::host::trace::{self, Wait};
    use tracing::{Dispatch, Instrument, dispatcher::set_default, subscriber::with_default};
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use crate::telemetry::filter::InCalls;

    type Traces = Arc<Mutex<Vec<String>>>;

    /// A subscriber that keeps each trace as an outline: its names, each indented below the one that it is a part of.
    fn subscriber() -> (impl Subscriber + Send + Sync, Traces) {
        let traces = Traces::default();
        let kept = Arc::clone(&traces);
        let layer = TreeLayer::new(move |trace| kept.lock().unwrap().push(trace.outline()));
        (Registry::default().with(layer.with_filter(InCalls)), traces)
    }

    #[test]
    fn a_trace_is_written_once_when_its_last_span_has_ended() {
        let (subscriber, traces) = subscriber();
        with_default(subscriber, || {
            let call = trace::rpc(7, "p.S/M", &"v");
            let operation = call.in_scope(|| trace::operation(&"volume v"));
            call.record("rpc.code", "Ok");
            drop(call);
            assert!(traces.lock().unwrap().is_empty());
            operation.in_scope(|| drop(trace::wait(Wait::Lock)));
            drop(operation);
        });
        assert_eq!(*traces.lock().unwrap(), ["rpc\n operation\n  wait\n"]);
    }

    #[test]
    fn what_runs_beside_calls_leaves_no_trace() {
        let (subscriber, traces) = subscriber();
        with_default(subscriber, || {
            let operation = trace::operation(&"volume v");
            operation.in_scope(|| drop(trace::program("true")));
        });
        assert!(traces.lock().unwrap().is_empty());
    }

    #[test]
    fn work_on_another_thread_belongs_to_its_call() {
        let (subscriber, traces) = subscriber();
        let dispatch = Dispatch::new(subscriber);
        // Threads have the default of the process, which a test does not set.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .on_thread_start(move || std::mem::forget(set_default(&dispatch)))
            .build()
            .unwrap();
        let call = |number, name| async move {
            let work = drumlin_core::host::blocking(move || {
                drop(trace::command(name));
                Ok(())
            });
            work.instrument(trace::rpc(number, "p.S/M", &name)).await
        };
        let calls = [(1, "a"), (2, "b")].map(|(number, name)| runtime.spawn(call(number, name)));
        for call in calls {
            runtime.block_on(call).unwrap().unwrap();
        }
        // The last span of a call may end on its thread.
        drop(runtime);
        let expected = "rpc\n wait\n command\n";
        assert_eq!(*traces.lock().unwrap(), [expected, expected]);
    }
}
