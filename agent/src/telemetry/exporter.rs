//! The export of traces to an OpenTelemetry collector: OTLP over gRPC, without TLS.
//!
//! **Invariant:** a collector that is away, slow or wrong costs spans, and nothing else: what does not fit into the
//! queue is dropped, and no call waits for it.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use tonic::codegen::http::Uri;
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

/// Timeout of one export.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of the last export, at the end of the process.
const LAST: Duration = Duration::from_millis(500);

/// The address of a collector: `http://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtlpEndpoint(String);

impl FromStr for OtlpEndpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let form = || format!("{text:?} is not of the form http://host:port");
        let address: Uri = text.parse().with_context(form)?;
        match (address.scheme_str(), address.authority(), address.path()) {
            (Some("http"), Some(_), "" | "/") => Ok(Self(text.to_owned())),
            (Some("https"), ..) => bail!(
                "{text:?} asks for TLS, which is not supported: name a collector on this host or in its network, such as http://127.0.0.1:4317"
            ),
            _ => bail!(form()),
        }
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The running export.
#[derive(Debug)]
pub(crate) struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Starts to export the traces of the agent of `node`. Does not wait for the collector.
    ///
    /// # Errors
    /// If the exporter cannot be built.
    pub(crate) fn start(endpoint: &OtlpEndpoint, node: &str) -> anyhow::Result<Self> {
        let exporter = OtlpExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint.to_string())
            .with_timeout(PATIENCE)
            .build()
            .with_context(|| format!("could not export traces to {endpoint}"))?;
        let resource = Resource::builder()
            .with_service_name("drumlin")
            .with_attributes([
                KeyValue::new("service.version", crate::VERSION),
                KeyValue::new("service.instance.id", node.to_owned()),
            ])
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(Reported::new(exporter, endpoint))
            .build();
        Ok(Self { provider })
    }

    /// The layer that exports spans.
    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("drumlin"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
    }

    /// Exports what is left, and ends the export; waits for the collector for half a second at most.
    pub(crate) async fn stop(self) {
        let last = move || self.provider.shutdown_with_timeout(LAST);
        // Only lost spans: that a collector is away has been reported.
        let _ = tokio::time::timeout(LAST, tokio::task::spawn_blocking(last)).await;
    }
}

/// An exporter whose first failure in a row is logged.
#[derive(Debug)]
struct Reported {
    exporter: OtlpExporter,
    endpoint: OtlpEndpoint,
    is_failing: AtomicBool,
}

impl Reported {
    fn new(exporter: OtlpExporter, endpoint: &OtlpEndpoint) -> Self {
        Self {
            exporter,
            endpoint: endpoint.clone(),
            is_failing: AtomicBool::new(false),
        }
    }

    fn report(&self, exported: &OTelSdkResult) {
        let was_failing = self.is_failing.swap(exported.is_err(), Ordering::Relaxed);
        match exported {
            Err(error) if !was_failing => {
                tracing::warn!(endpoint = %self.endpoint, %error, "traces not exported; further failures are not logged until one succeeds");
            }
            Ok(()) if was_failing => {
                tracing::info!(endpoint = %self.endpoint, "traces exported again");
            }
            _ => {}
        }
    }
}

impl SpanExporter for Reported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        self.report(&exported);
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_http_with_a_host() {
        for fine in [
            "http://127.0.0.1:4317",
            "http://collector:4317/",
            "http://[::1]:4317",
        ] {
            assert_eq!(fine.parse::<OtlpEndpoint>().unwrap().to_string(), fine);
        }
        for (wrong, part) in [
            ("collector:4317", "form http://host:port"),
            ("http://", "form http://host:port"),
            ("grpc://collector:4317", "form http://host:port"),
            ("http://collector:4318/v1/traces", "form http://host:port"),
            ("unix:///run/otlp.sock", "form http://host:port"),
            ("https://collector:4317", "TLS"),
        ] {
            let error = wrong.parse::<OtlpEndpoint>().unwrap_err();
            assert!(format!("{error:#}").contains(part), "{wrong}: {error:#}");
        }
    }
}
