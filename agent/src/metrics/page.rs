//! What is published of a process: what it has counted, and the state that is read for each scrape.

use std::fmt;

use super::{
    Metrics,
    scrape::{Measured, Scrape},
};

/// What is published.
pub(super) struct Page {
    metrics: Metrics,
    state: Box<dyn Measured>,
}

impl fmt::Debug for Page {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Page").finish_non_exhaustive()
    }
}

impl Page {
    pub(super) fn new(metrics: Metrics, state: impl Measured + 'static) -> Self {
        Self {
            metrics,
            state: Box::new(state),
        }
    }

    /// A scrape.
    ///
    /// # Errors
    /// None in practice: text is written to memory.
    pub(super) async fn text(&self) -> Result<String, fmt::Error> {
        let mut scrape = Scrape::default();
        self.metrics.measure(&mut scrape);
        self.state.measure(&mut scrape).await;
        scrape.text()
    }
}
