//! What is counted while a process runs.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::metrics::{family::Family, gauge::Gauge, histogram::Histogram};

use super::{
    definitions::{COMMAND, PROGRAM, QUIESCED, QUIESCED_LONGEST, RPC},
    scrape::{Durations, Scrape},
};

/// The upper bounds of the histograms in seconds: an idle call takes some milliseconds, a copy minutes.
const BOUNDS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
];

/// What is counted while the process runs.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    rpcs: Durations,
    /// What only an agent does.
    work: Option<Work>,
}

/// What an agent counts beside its calls.
#[derive(Debug, Clone)]
struct Work {
    programs: Durations,
    commands: Durations,
    quiesced: Histogram,
    longest: Gauge<f64, AtomicU64>,
}

fn histogram() -> Histogram {
    Histogram::new(BOUNDS)
}

fn durations() -> Durations {
    Family::new_with_constructor(histogram)
}

impl Metrics {
    /// Those of an agent.
    pub(crate) fn of_agent() -> Self {
        Self {
            rpcs: durations(),
            work: Some(Work {
                programs: durations(),
                commands: durations(),
                quiesced: histogram(),
                longest: Gauge::default(),
            }),
        }
    }

    /// Those of a controller.
    pub(crate) fn of_controller() -> Self {
        Self {
            rpcs: durations(),
            work: None,
        }
    }

    /// A call of `method` was answered with `code`.
    pub(crate) fn answered(&self, method: &str, code: &str, took: Duration) {
        let labels = RPC.labelled([method, code]);
        self.rpcs.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A program has ended; `line` is its command line.
    pub(crate) fn ran(&self, line: &str, took: Duration) {
        let Some(work) = &self.work else { return };
        let program = line.split_whitespace().next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default();
        let programs = work.programs.get_or_create(&PROGRAM.labelled([program]));
        programs.observe(took.as_secs_f64());
    }

    /// An LVM command has ended.
    pub(crate) fn commanded(&self, name: &str, took: Duration) {
        let Some(work) = &self.work else { return };
        let commands = work.commands.get_or_create(&COMMAND.labelled([name]));
        commands.observe(took.as_secs_f64());
    }

    /// The members of a group snapshot were quiesced and resumed.
    pub(crate) fn quiesced(&self, took: Duration) {
        let Some(work) = &self.work else { return };
        let seconds = took.as_secs_f64();
        work.quiesced.observe(seconds);
        // Two at once may show the shorter one; a lock is not worth it.
        if seconds > work.longest.get() {
            work.longest.set(seconds);
        }
    }

    /// Adds everything so far.
    pub(super) fn measure(&self, scrape: &mut Scrape) {
        scrape.add(&RPC, self.rpcs.clone());
        if let Some(work) = &self.work {
            scrape.add(&PROGRAM, work.programs.clone());
            scrape.add(&COMMAND, work.commands.clone());
            scrape.add(&QUIESCED, work.quiesced.clone());
            scrape.add(&QUIESCED_LONGEST, work.longest.clone());
        }
    }

    /// A scrape of these alone.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        let mut scrape = Scrape::default();
        self.measure(&mut scrape);
        scrape.text().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_in_the_text_by_its_labels() {
        let metrics = Metrics::of_agent();
        let create = "csi.v1.Controller/CreateVolume";
        metrics.answered(create, "Ok", Duration::from_millis(20));
        metrics.answered(create, "NotFound", Duration::from_millis(1));
        metrics.ran("/sbin/mkfs.ext4 -q /dev/loop0", Duration::from_secs(2));
        metrics.commanded("lvcreate", Duration::from_millis(30));
        for milliseconds in [5, 250, 20] {
            metrics.quiesced(Duration::from_millis(milliseconds));
        }
        let text = metrics.text();
        for line in [
            r#"drumlin_rpc_duration_seconds_bucket{le="0.025",method="csi.v1.Controller/CreateVolume",code="Ok"} 1"#,
            r#"drumlin_rpc_duration_seconds_count{method="csi.v1.Controller/CreateVolume",code="NotFound"} 1"#,
            r#"drumlin_program_duration_seconds_sum{program="mkfs.ext4"} 2.0"#,
            r#"drumlin_lvm_command_duration_seconds_count{command="lvcreate"} 1"#,
            "drumlin_group_snapshot_quiesced_seconds_count 3",
            "drumlin_group_snapshot_quiesced_longest_seconds 0.25",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
