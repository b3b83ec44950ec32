//! One line per RPC, at debug: method, object, code, milliseconds. Nothing else of a request is ever logged.

use std::{fmt, future::Future, time::Instant};

use drumlin_core::Result;
use tonic::{Response, Status};

use super::status::status;

/// Answers an RPC about `object` with what `work` returns.
pub(super) async fn answer<T>(
    method: &'static str,
    object: impl fmt::Display,
    work: impl Future<Output = Result<T>>,
) -> Result<Response<T>, Status> {
    let begun = Instant::now();
    let answer = work.await.map_err(|error| status(&error));
    if tracing::enabled!(tracing::Level::DEBUG) {
        let code = answer.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        let object = object.to_string();
        tracing::debug!(
            rpc.method = method,
            object = %object.escape_debug(),
            rpc.code = ?code,
            elapsed_ms = begun.elapsed().as_secs_f64() * 1000.0,
            "rpc"
        );
    }
    answer.map(Response::new)
}
