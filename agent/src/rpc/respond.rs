//! Logs one line per RPC: method, object, code, milliseconds. No other part of a request is ever logged.

use std::{fmt, future::Future, time::Instant};

use drumlin_core::{Error, Kind, Result};
use tonic::{Code, Response, Status};

use super::status::{code, status};

/// Maximum number of characters of caller-supplied text in a log line.
const LOGGED_CHARACTERS: usize = 300;

/// Responds to an RPC about `object` with the result of `work`.
pub(super) async fn answer<T>(
    method: &'static str,
    object: impl fmt::Display,
    work: impl Future<Output = Result<T>>,
) -> Result<Response<T>, Status> {
    let begun = Instant::now();
    match work.await {
        Ok(answer) => {
            tracing::debug!(
                rpc.method = method,
                object = %Quoted(&object),
                rpc.code = "Ok",
                elapsed_ms = milliseconds(begun),
                "rpc"
            );
            Ok(Response::new(answer))
        }
        Err(error) => {
            log(method, &object, begun, &error);
            Err(status(&error))
        }
    }
}

/// Like [`answer`], for calls that are polled, such as Probe: failures are logged where they are detected, not here.
pub(super) async fn answer_quietly<T>(
    method: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<Response<T>, Status> {
    let begun = Instant::now();
    let answer = work.await;
    tracing::debug!(
        rpc.method = method,
        rpc.code = ?answer.as_ref().map_or_else(|error| code(error.kind()), |_| Code::Ok),
        elapsed_ms = milliseconds(begun),
        "rpc"
    );
    answer.map(Response::new).map_err(|error| status(&error))
}

/// The only place where a failed call is logged, with all causes. Errors that only the caller can correct are logged at
/// debug level.
fn log(method: &str, object: &dyn fmt::Display, begun: Instant, error: &Error) {
    // A level is part of an event's static description, so each level has its own.
    macro_rules! event {
        ($level:ident, $message:literal) => {
            tracing::$level!(
                rpc.method = method,
                object = %Quoted(object),
                rpc.code = ?code(error.kind()),
                elapsed_ms = milliseconds(begun),
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

fn milliseconds(begun: Instant) -> f64 {
    // Computed from whole microseconds, to avoid long binary fractions in the output.
    (begun.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

/// Caller-supplied text, escaped to one line and truncated.
struct Quoted<'a>(&'a dyn fmt::Display);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let mut left = text.chars();
        for character in left.by_ref().take(LOGGED_CHARACTERS) {
            if character.is_control() {
                write!(f, "{}", character.escape_debug())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        if left.next().is_some() {
            f.write_str("…")?;
        }
        Ok(())
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
            for part in
                parts
                    .into_iter()
                    .chain(["rpc.method=\"p.S/M\"", "object=v-1", "elapsed_ms="])
            {
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
