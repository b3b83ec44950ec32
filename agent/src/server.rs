//! The gRPC server: services, limits and shutdown.
//!
//! All services are on one socket. A second socket can serve only the services beyond CSI.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Context;
use drumlin_core::ops::Operations;
use tokio::net::UnixListener;
use tonic::{body::Body, service::Routes, transport::Server};
use tower::util::{MapRequestLayer, MapResponseLayer, option_layer};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    arriving::RequestBudget,
    connections::Connections,
    quiet::Calls,
    rpc::{csi_v0, csi_v0_1, csi_v1, drumlin_v1, identity, reclaimspace, volumegroup},
};

/// The set of services on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Every service.
    All,
    /// The services beyond CSI.
    BesideCsi,
}

/// Maximum number of concurrent calls of a connection.
const CALLS: u32 = 128;
/// Maximum size of the headers of a request, in bytes.
const HEADERS: u32 = 16 << 10;
/// HTTP/2 flow-control window, in bytes: the initial value of HTTP/2.
const WINDOW: u32 = 65_535;
/// Interval of keepalive pings, and the timeout of their answer.
const PING: Duration = Duration::from_mins(1);
const PONG: Duration = Duration::from_secs(20);

/// Serves `routes` on `listener` until `stop`, then completes in-flight calls.
pub(crate) async fn serve(
    routes: Routes,
    listener: UnixListener,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let connections = Connections::of(listener);
    let room = RequestBudget::default();
    let calls = Calls::default();
    let noted = calls.clone();
    let serving = Server::builder()
        .max_concurrent_streams(CALLS)
        .http2_max_header_list_size(HEADERS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PONG))
        .layer(MapRequestLayer::new(move |request| room.limit(request)))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(MapResponseLayer::new(move |response| {
            noted.note();
            response
        }))
        .layer(MapResponseLayer::new(crate::rpc::with_words::<Body>))
        .layer(option_layer(mutation()?))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, stop);
    let served = tokio::select! {
        served = serving => served,
        never = calls.trim_when_quiet() => match never {},
    };
    served.context("the server failed")
}

/// The mutation of a test build that the environment asks for.
#[cfg(debug_assertions)]
use crate::mutation::layer as mutation;

/// There are no mutations in a release build.
#[cfg(not(debug_assertions))]
fn mutation() -> anyhow::Result<Option<tower::layer::util::Identity>> {
    Ok(None)
}

/// All services of an agent; reflection lists exactly these.
///
/// # Errors
/// If the services cannot be described, which is a bug.
pub(crate) fn routes(
    operations: &Arc<Operations>,
    driver: &str,
    offer: Offer,
) -> anyhow::Result<Routes> {
    let reflection = services(offer)
        .fold(
            tonic_reflection::server::Builder::configure(),
            tonic_reflection::server::Builder::with_service_name,
        )
        .register_encoded_file_descriptor_set(drumlin_proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .context("could not build the reflection service")?;
    let own = || Arc::clone(operations);
    let routes = Routes::new(reflection);
    let routes = volumegroup::Front::new(own()).register(routes);
    let routes = identity::Front::new(own(), driver).register(routes);
    let routes = reclaimspace::Front::new(own()).register(routes);
    if offer == Offer::BesideCsi {
        return Ok(routes);
    }
    let routes = csi_v1::Front::new(own(), driver).register(routes);
    let routes = csi_v0::Front::new(own(), driver).register(routes);
    let routes = csi_v0_1::Front::new(own(), driver).register(routes);
    Ok(drumlin_v1::Front::new(own()).register(routes))
}

/// The names of the services.
fn services(offer: Offer) -> impl Iterator<Item = &'static str> {
    let beside = volumegroup::SERVICES.into_iter();
    let beside = beside
        .chain(identity::SERVICES)
        .chain(reclaimspace::SERVICES);
    let csi = csi_v1::SERVICES.into_iter();
    let csi = csi
        .chain(csi_v0::SERVICES)
        .chain(csi_v0_1::SERVICES)
        .chain(drumlin_v1::SERVICES);
    beside.chain(csi.filter(move |_| offer == Offer::All))
}

/// The response for a handler that panicked: INTERNAL; the agent continues.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(
    cause: Box<dyn std::any::Any + Send + 'static>,
) -> tonic::codegen::http::Response<Body> {
    let text = cause
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| cause.downcast_ref::<&str>().copied())
        .unwrap_or("no reason");
    tracing::error!(error = text, "rpc handler panicked");
    crate::rpc::internal("the call failed because of a bug in the agent; see the log of the agent")
        .into_http()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::operations;
    use std::convert::Infallible;

    use drumlin_proto::csi::v1::{GetPluginInfoRequest, identity_client::IdentityClient};
    use tokio_util::sync::CancellationToken;
    use tonic::{
        Code, Status,
        codegen::http::{Request, Response},
    };
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    use tower::{Layer, ServiceExt, service_fn};

    #[tokio::test]
    async fn a_panic_becomes_internal_and_tells_the_caller_nothing_of_it() {
        let calls: [fn() -> Response<Body>; 3] = [
            || panic!("a constant secret"),
            || std::panic::panic_any(format!("a {} secret", "made")),
            || std::panic::panic_any(1),
        ];
        for panicking in calls {
            let service = CatchPanicLayer::custom(panicked).layer(service_fn(
                move |_: Request<Body>| async move { Ok::<_, Infallible>(panicking()) },
            ));
            let answer = service
                .oneshot(Request::new(Body::default()))
                .await
                .unwrap();
            let status = Status::from_header_map(answer.headers()).unwrap();
            assert_eq!(status.code(), Code::Internal);
            assert!(!status.message().contains("secret"), "{status}");
        }
    }

    /// What reflection names on a socket.
    async fn named(channel: tonic::transport::Channel) -> Vec<String> {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut answers = ServerReflectionClient::new(channel)
            .server_reflection_info(tokio_stream::once(request))
            .await
            .unwrap()
            .into_inner();
        let answer = answers.message().await.unwrap().unwrap().message_response;
        let Some(MessageResponse::ListServicesResponse(list)) = answer else {
            unreachable!("{answer:?}");
        };
        list.service.into_iter().map(|one| one.name).collect()
    }

    #[tokio::test]
    async fn reflection_names_what_is_served_and_a_stop_ends_the_server() {
        let directory = tempfile::tempdir().unwrap();
        for offer in [Offer::All, Offer::BesideCsi] {
            let path = directory.path().join(format!("{offer:?}.sock"));
            let listener = UnixListener::bind(&path).unwrap();
            let stop = CancellationToken::new();
            let serving = tokio::spawn({
                let stopped = stop.clone().cancelled_owned();
                let routes = routes(&operations().unwrap(), "org.example.test", offer).unwrap();
                async move { serve(routes, listener, stopped).await }
            });
            let channel = drumlin_proto::connect(&path).unwrap();
            let names = named(channel.clone()).await;
            assert_eq!(names, services(offer).collect::<Vec<_>>());
            let info = IdentityClient::new(channel.clone())
                .get_plugin_info(GetPluginInfoRequest {})
                .await;
            match offer {
                Offer::All => {
                    let info = info.unwrap().into_inner();
                    assert_eq!(info.name, "org.example.test");
                    assert!(info.vendor_version.starts_with(env!("CARGO_PKG_VERSION")));
                }
                Offer::BesideCsi => {
                    let error = info.unwrap_err();
                    assert_eq!(error.code(), Code::Unimplemented);
                    assert!(error.message().contains("method"), "{error}");
                }
            }
            let beside = drumlin_proto::identity::identity_client::IdentityClient::new(channel)
                .get_identity(drumlin_proto::identity::GetIdentityRequest {})
                .await
                .unwrap();
            assert_eq!(beside.into_inner().name, "org.example.test");
            stop.cancel();
            serving.await.unwrap().unwrap();
        }
    }
}
