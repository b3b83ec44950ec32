//! The gRPC server: services, limits, and the end of it.

use std::{future::Future, sync::Arc};

use anyhow::Context;
use drumlin_core::ops::Operations;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{service::Routes, transport::Server};
use tower_http::catch_panic::CatchPanicLayer;

use crate::rpc::csi_v1::Front;

/// Serves `operations` on `listener` until `stop`; calls that run then are answered first.
pub(crate) async fn serve(
    operations: Arc<Operations>,
    driver: &str,
    listener: UnixListener,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(drumlin_proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .context("could not describe the services")?;
    let routes = Routes::new(reflection);
    let routes = Front::new(operations, driver).register(routes);
    Server::builder()
        .layer(CatchPanicLayer::custom(panicked))
        .add_routes(routes)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
        .await
        .context("the server failed")
}

/// What a caller gets when a call panics: INTERNAL, and the agent goes on.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(
    cause: Box<dyn std::any::Any + Send + 'static>,
) -> tonic::codegen::http::Response<tonic::body::Body> {
    let text = cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("no reason");
    tracing::error!(error = text, "a call panicked");
    crate::rpc::internal("the call failed inside the agent; its log says why").into_http()
}
