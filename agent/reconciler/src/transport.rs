//! How calls reach the agent: over its socket, or through a dry run that lets only those pass that read.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::{body::Body, transport::Channel};
use tower::{BoxError, Service};

use crate::dry_run::DryRun;

/// A way to the agent.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// Its socket.
    Socket(Channel),
    /// A dry run.
    DryRun(Arc<DryRun>),
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Socket(channel) => channel.poll_ready(context).map_err(Into::into),
            Self::DryRun(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self {
            Self::Socket(channel) => {
                let answer = channel.call(request);
                Box::pin(async move { Ok(answer.await?) })
            }
            Self::DryRun(dry_run) => {
                let dry_run = Arc::clone(dry_run);
                Box::pin(async move { dry_run.call(request).await })
            }
        }
    }
}
