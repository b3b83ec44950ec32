//! What one scrape is answered.

use std::{fmt, sync::atomic::AtomicU64};

use prometheus_client::{
    encoding::text,
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
        info::Info,
    },
    registry::{Metric, Registry},
};

use super::definitions::{BUILD, Definition, Labels, PREFIX};

/// Durations by their labels.
pub(super) type Durations = Family<Labels, Histogram, fn() -> Histogram>;

/// Collects the metrics of one scrape.
#[derive(Debug)]
pub(crate) struct Scrape(Registry);

impl Default for Scrape {
    fn default() -> Self {
        let mut scrape = Self(Registry::with_prefix(PREFIX));
        let version = BUILD.labelled([crate::VERSION]);
        scrape.add(&BUILD, Info::new(version));
        scrape
    }
}

impl Scrape {
    /// Adds a metric by its definition.
    pub(super) fn add(&mut self, of: &Definition, metric: impl Metric) {
        match of.unit.unit() {
            Some(unit) => self.0.register_with_unit(of.name, of.help, unit, metric),
            None => self.0.register(of.name, of.help, metric),
        }
    }

    /// Adds the series of a gauge.
    pub(super) fn gauge<T: TryInto<i64>>(
        &mut self,
        of: &Definition,
        series: impl IntoIterator<Item = (Labels, T)>,
    ) {
        let family = Family::<Labels, Gauge>::default();
        for (labels, value) in series {
            let value = value.try_into().unwrap_or(i64::MAX);
            family.get_or_create(&labels).set(value);
        }
        self.add(of, family);
    }

    /// Adds the series of a gauge of parts, each from 0 to 1.
    pub(super) fn ratio(
        &mut self,
        of: &Definition,
        series: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).set(value);
        }
        self.add(of, family);
    }

    /// Adds a gauge without labels.
    pub(super) fn number<T: TryInto<i64>>(&mut self, of: &Definition, value: T) {
        let value: i64 = value.try_into().unwrap_or(i64::MAX);
        self.add(of, ConstGauge::new(value));
    }

    /// Adds a counter without labels.
    pub(super) fn count(&mut self, of: &Definition, value: u64) {
        self.add(of, ConstCounter::new(value));
    }

    /// Adds the series of a counter.
    pub(super) fn counts(
        &mut self,
        of: &Definition,
        series: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let family = Family::<Labels, prometheus_client::metrics::counter::Counter>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).inc_by(value);
        }
        self.add(of, family);
    }

    /// The text of the answer.
    ///
    /// # Errors
    /// None in practice: text is written to memory.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.0)?;
        Ok(text)
    }
}

/// State that is read anew for each scrape.
#[tonic::async_trait]
pub(crate) trait Measured: Send + Sync {
    /// Adds what is known now; nothing that is not, for old values would pass for new ones.
    async fn measure(&self, scrape: &mut Scrape);
}
