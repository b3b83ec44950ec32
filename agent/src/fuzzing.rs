//! Entry points for fuzzers: the handlers of untrusted input. Not part of the API.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::Context;
use bytes::{BufMut, Bytes, BytesMut};
use drumlin_core::{
    backend::directory::{Allocation, Directory, DirectorySettings, Missing},
    host::{FileSystem, io_limits::IoLimits},
    ops::{Class, Classes, OnGroupDelete, Operations, Settings, adoption},
    types::NodeName,
};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::{
    Status,
    body::Body,
    codegen::http::{self, Request},
    service::Routes,
};
use tower::ServiceExt;

use crate::server::{self, Offer};

/// All services of an agent with an unavailable class: no request can create anything.
#[derive(Debug)]
pub struct Server {
    routes: Routes,
    methods: Vec<String>,
    /// The methods whose responses are streams; such a stream need not end.
    streams: BTreeSet<String>,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    /// A server without a socket.
    ///
    /// # Errors
    /// If the services cannot be described.
    pub fn new() -> anyhow::Result<Self> {
        let described = FileDescriptorSet::decode(drumlin_proto::FILE_DESCRIPTOR_SET)?;
        let (mut methods, mut streams) = (Vec::new(), BTreeSet::new());
        for file in &described.file {
            for service in &file.service {
                let (package, name) = (file.package(), service.name());
                for method in &service.method {
                    let path = format!("/{package}.{name}/{}", method.name());
                    if method.server_streaming() {
                        streams.insert(path.clone());
                    }
                    methods.push(path);
                }
            }
        }
        methods.sort();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let routes = {
            let _entered = runtime.enter();
            server::routes(&operations()?, "org.example.fuzz", Offer::All)?
        };
        Ok(Self {
            routes,
            methods,
            streams,
            runtime,
        })
    }

    /// Every method of every dialect, served or not.
    pub fn methods(&self) -> &[String] {
        &self.methods
    }

    /// Sends a message to the method with this index and returns the response; of a stream, its first message is enough.
    ///
    /// # Errors
    /// If the method does not exist, or the response has no gRPC status.
    pub fn call(&self, method: usize, message: &[u8]) -> anyhow::Result<tonic::Code> {
        let path = self.methods.get(method).context("method does not exist")?;
        let mut bytes = BytesMut::with_capacity(message.len() + 5);
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(message.len())?);
        bytes.put_slice(message);
        let request = Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .body(Body::new(Whole(Some(bytes.freeze()))))?;
        let routes = self.routes.clone();
        self.runtime.block_on(async {
            let mut answer = routes.prepare().oneshot(request).await?;
            if let Some(status) = Status::from_header_map(answer.headers()) {
                return Ok(status.code());
            }
            let body = answer.body_mut();
            loop {
                let next = std::future::poll_fn(|context| {
                    http_body::Body::poll_frame(std::pin::Pin::new(&mut *body), context)
                });
                let frame = next.await.context("the response has no status")??;
                if frame.is_data() && self.streams.contains(path) {
                    return Ok(tonic::Code::Ok);
                }
                let trailers = frame.trailers_ref().and_then(Status::from_header_map);
                if let Some(status) = trailers {
                    return Ok(status.code());
                }
            }
        })
    }
}

/// A complete body.
struct Whole(Option<Bytes>);

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// Operations on an unavailable class.
pub(crate) fn operations() -> anyhow::Result<Arc<Operations>> {
    let node: NodeName = "n".parse()?;
    let class = Class {
        name: "default".parse()?,
        backend: Arc::new(Directory::new(DirectorySettings {
            path: "/nonexistent".into(),
            allocation: Allocation::Thin,
            file_system: FileSystem::Ext4,
            missing: Missing::Refuse,
            memory: None,
            longest_freeze: None,
            node: node.clone(),
            adoption: adoption(Vec::new()),
        })),
        trash: None,
        limits: IoLimits::default(),
        keys: Arc::default(),
    };
    let classes = Classes::new(vec![class].into());
    let settings = Settings {
        node,
        attach: false,
        mount_group: true,
        max_volumes: None,
        on_group_delete: OnGroupDelete::default(),
        cgroups: "/nonexistent".into(),
    };
    Ok(Operations::new(settings, classes))
}
