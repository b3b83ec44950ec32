//! Publishes metrics where it is asked for: at an endpoint, in a file, or both.

use std::sync::Arc;

use futures::future::OptionFuture;
use tokio_util::sync::CancellationToken;

use super::{Listener, Metrics, MetricsEndpoint, Textfile, page::Page, scrape::Measured};

/// Where metrics are published.
#[derive(Debug, Default)]
pub(crate) struct MetricsTargets {
    /// Where they can be scraped.
    pub(crate) listen: Option<MetricsEndpoint>,
    /// The file that they are written to.
    pub(crate) textfile: Option<Textfile>,
}

impl MetricsTargets {
    /// Returns true if anything is to be measured at all.
    pub(crate) fn is_any(&self) -> bool {
        self.listen.is_some() || self.textfile.is_some()
    }
}

/// What publishes the metrics of a process.
#[derive(Debug)]
pub(crate) struct Publisher {
    listener: Option<Listener>,
    textfile: Option<Textfile>,
}

impl Publisher {
    /// Binds the endpoint, if there is one.
    ///
    /// # Errors
    /// The error names it.
    pub(crate) async fn bind(targets: &MetricsTargets) -> anyhow::Result<Self> {
        let listener = targets.listen.as_ref().map(Listener::bind);
        Ok(Self {
            listener: OptionFuture::from(listener).await.transpose()?,
            textfile: targets.textfile.clone(),
        })
    }

    /// Publishes until `stop`; what is left of it on disk is removed then.
    pub(crate) async fn publish(
        self,
        metrics: Metrics,
        state: impl Measured + 'static,
        stop: CancellationToken,
    ) {
        let page = Arc::new(Page::new(metrics, state));
        let answering = OptionFuture::from(
            self.listener
                .map(|listener| listener.serve(Arc::clone(&page), &stop)),
        );
        let writing = OptionFuture::from(self.textfile.map(|file| file.keep(&page, &stop)));
        tokio::join!(answering, writing);
    }
}
