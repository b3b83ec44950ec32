//! An OpenTelemetry collector that keeps the spans that it gets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    trace::v1::Span,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::agent::eventually;

/// A collector on loopback, until it is dropped.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    kept: Kept,
    serving: JoinHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let kept = Kept::default();
        let service = TraceServiceServer::new(kept.clone());
        let serving = tokio::spawn(async move {
            let routes = Server::builder().add_service(service);
            let served = routes.serve_with_incoming(TcpIncoming::from(listener));
            served.await.expect("the collector serves");
        });
        Self {
            address,
            kept,
            serving,
        }
    }

    /// What an agent is told.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let kept = self.kept.0.lock();
        kept.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a call of this method has ended, and returns its span, and all spans of its trace.
    pub async fn trace_of(&self, method: &str) -> (Span, Vec<Span>) {
        let is_root = |span: &&Span| span.name == method;
        let spans = eventually(
            || self.spans(),
            |spans| spans.iter().any(|span| is_root(&span)),
        );
        let spans = spans.await;
        let root = spans.iter().find(is_root).expect("it was there").clone();
        let of_trace = |span: &Span| span.trace_id == root.trace_id;
        let trace = spans.into_iter().filter(of_trace).collect();
        (root, trace)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The value of an attribute, if it is text.
pub fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    let found = span.attributes.iter().find(|one| one.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}
