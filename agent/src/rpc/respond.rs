//! Runs each RPC in a span of its own, and logs one line for it: request id, method, object, code, milliseconds. No
//! other part of a request is ever logged.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use drumlin_cluster::Refusal;
use drumlin_core::{Error, Kind, Result, host::trace};
use futures::future::Either;
use tonic::{Code, Response, Status};
use tracing::{Instrument, Span, field, instrument::Instrumented};

use super::status::{self, code, status};
use crate::telemetry::{Quoted, milliseconds};

/// A call that is being answered.
struct Call {
    method: &'static str,
    /// Numbers the calls of this process: the log lines and the trace of a call have the same one.
    request: u64,
    begun: Instant,
    span: Span,
}

impl Call {
    fn begin(method: &'static str, object: &dyn fmt::Display) -> Self {
        static REQUESTS: AtomicU64 = AtomicU64::new(1);
        let request = REQUESTS.fetch_add(1, Ordering::Relaxed);
        Self {
            method,
            request,
            begun: Instant::now(),
            span: trace::rpc(request, method, &Quoted(object)),
        }
    }

    /// Runs `work` within the span of the call.
    ///
    /// The wrapped form is on the heap, and there is none while nobody records spans: it would be a second copy of the
    /// future in each call, and many calls may wait at once.
    fn run<F: Future>(&self, work: F) -> Either<F, Pin<Box<Instrumented<F>>>> {
        if self.span.is_disabled() {
            Either::Left(work)
        } else {
            Either::Right(Box::pin(work.instrument(self.span.clone())))
        }
    }

    /// Completes the span.
    fn end(&self, code: Code) {
        self.span.record("rpc.code", field::debug(code));
        if code != Code::Ok {
            self.span.record("otel.status_code", "ERROR");
        }
    }

    fn milliseconds(&self) -> f64 {
        milliseconds(self.begun.elapsed())
    }
}

/// Responds to an RPC about `object` with the result of `work`.
pub(super) async fn answer<T>(
    method: &'static str,
    object: impl fmt::Display,
    work: impl Future<Output = Result<T>>,
) -> Result<Response<T>, Status> {
    let call = Call::begin(method, &object);
    match call.run(work).await {
        Ok(answer) => {
            call.end(Code::Ok);
            tracing::debug!(
                request.id = call.request,
                rpc.method = method,
                object = %Quoted(&object),
                rpc.code = "Ok",
                elapsed_ms = call.milliseconds(),
                "rpc"
            );
            Ok(Response::new(answer))
        }
        Err(error) => {
            call.end(code(error.kind()));
            log(&call, &object, &error);
            Err(status(&error))
        }
    }
}

/// Like [`answer`], for calls that are polled, such as Probe: failures are logged where they are detected, not here.
pub(super) async fn answer_quietly<T>(
    method: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<Response<T>, Status> {
    let call = Call::begin(method, &"");
    let answer = call.run(work).await;
    let code = answer
        .as_ref()
        .map_or_else(|error| code(error.kind()), |_| Code::Ok);
    log_quietly(&call, code);
    answer.map(Response::new).map_err(|error| status(&error))
}

/// Like [`answer`], for a call that is answered by a node of the cluster.
pub(super) async fn forward<T>(
    method: &'static str,
    object: impl fmt::Display,
    work: impl Future<Output = Result<T, Refusal>>,
) -> Result<Response<T>, Status> {
    let call = Call::begin(method, &object);
    let answer = call.run(Box::pin(work)).await;
    let code = answer
        .as_ref()
        .map_or_else(|refusal| refusal.code, |_| Code::Ok);
    call.end(code);
    let elapsed_ms = call.milliseconds();
    match answer {
        Ok(answer) => {
            tracing::debug!(request.id = call.request, rpc.method = method, object = %Quoted(&object), rpc.code = "Ok", elapsed_ms, "rpc");
            Ok(Response::new(answer))
        }
        Err(refusal) => {
            tracing::info!(request.id = call.request, rpc.method = method, object = %Quoted(&object), rpc.code = ?code, elapsed_ms, error = %Quoted(&refusal), "call failed");
            Err(status::refused(&refusal))
        }
    }
}

/// Responds to an RPC that is neither implemented nor advertised.
pub(super) fn unimplemented(method: &'static str) -> Status {
    log_quietly(&Call::begin(method, &""), Code::Unimplemented);
    status::unimplemented(method)
}

fn log_quietly(call: &Call, code: Code) {
    call.end(code);
    tracing::debug!(
        request.id = call.request,
        rpc.method = call.method,
        rpc.code = ?code,
        elapsed_ms = call.milliseconds(),
        "rpc"
    );
}

/// The only place where a failed call is logged, with all causes. Errors that only the caller can correct are logged at
/// debug level.
fn log(call: &Call, object: &dyn fmt::Display, error: &Error) {
    // A level is part of an event's static description, so each level has its own.
    macro_rules! event {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                request.id = call.request,
                rpc.method = call.method,
                object = %Quoted(object),
                rpc.code = ?code(error.kind()),
                elapsed_ms = call.milliseconds(),
                error = %Quoted(&error.chain()),
                $message
            )
        };
    }
    match error.kind() {
        Kind::Bug => event!(error, "internal error"),
        Kind::Command | Kind::Io | Kind::HalfDone | Kind::NoSpace | Kind::Precondition => {
            event!(warn, "operation failed");
        }
        _ => event!(debug, "rpc"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        sync::{Arc, Mutex, PoisonError},
    };
    use tracing::{Level, subscriber::with_default};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is logged up to `level` when a call about `object` gives `result`.
    fn logged(level: Level, object: &str, result: Result<()>) -> Vec<String> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        with_default(subscriber, || {
            let _ = runtime.block_on(answer("p.S/M", object, async { result }));
        });
        let bytes = lines.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_call_is_one_line_whatever_became_of_it() {
        let failed = || Error::io("could not write", std::io::Error::other("on fire"));
        for (level, result, parts) in [
            (Level::DEBUG, Ok(()), ["DEBUG", "rpc.code=\"Ok\""]),
            (
                Level::DEBUG,
                Err(Error::not_found("no v")),
                ["DEBUG", "error=no v"],
            ),
            (
                Level::INFO,
                Err(failed()),
                ["WARN", "error=could not write: on fire"],
            ),
            (
                Level::INFO,
                Err(Error::new(Kind::Bug, "x")),
                ["ERROR", "rpc.code=Internal"],
            ),
        ] {
            let lines = logged(level, "v-1", result);
            assert_eq!(lines.len(), 1, "{lines:?}");
            for part in parts.into_iter().chain([
                "request.id=",
                "rpc.method=\"p.S/M\"",
                "object=v-1",
                "elapsed_ms=",
            ]) {
                assert!(lines[0].contains(part), "{part}: {lines:?}");
            }
        }
    }

    #[test]
    fn at_info_a_call_that_went_well_or_was_refused_is_silent() {
        assert!(logged(Level::INFO, "v", Ok(())).is_empty());
        assert!(logged(Level::INFO, "v", Err(Error::invalid("x"))).is_empty());
    }

    #[test]
    fn a_callers_text_can_neither_forge_a_line_nor_fill_the_log() {
        let lines = logged(Level::DEBUG, &format!("v\n{}", "ä".repeat(100_000)), Ok(()));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("v\\n") && lines[0].len() < 2000);
    }
}
