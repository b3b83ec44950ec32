//! The metrics and their labels.

use std::{fmt, sync::atomic::AtomicU64, time::Duration};

use drumlin_core::ops::ClassState;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

/// The upper bounds of the histograms in seconds: an idle call takes some milliseconds, a copy minutes.
const BOUNDS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
];

/// What is counted while the agent runs.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    rpcs: Durations<RpcLabels>,
    programs: Durations<ProgramLabels>,
    commands: Durations<CommandLabels>,
    quiesced: Histogram,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcLabels {
    method: String,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProgramLabels {
    program: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    command: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: String,
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(BOUNDS)
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            rpcs: Family::new_with_constructor(histogram),
            programs: Family::new_with_constructor(histogram),
            commands: Family::new_with_constructor(histogram),
            quiesced: histogram(),
        }
    }
}

impl Metrics {
    /// A call of `method` was answered with `code`.
    pub(crate) fn answered(&self, method: &str, code: &str, took: Duration) {
        let labels = RpcLabels {
            method: method.to_owned(),
            code: code.to_owned(),
        };
        self.rpcs.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A program has ended; `line` is its command line.
    pub(crate) fn ran(&self, line: &str, took: Duration) {
        let program = line.split_whitespace().next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default();
        let labels = ProgramLabels {
            program: program.to_owned(),
        };
        let programs = self.programs.get_or_create(&labels);
        programs.observe(took.as_secs_f64());
    }

    /// An LVM command has ended.
    pub(crate) fn commanded(&self, name: &str, took: Duration) {
        let labels = CommandLabels {
            command: name.to_owned(),
        };
        let commands = self.commands.get_or_create(&labels);
        commands.observe(took.as_secs_f64());
    }

    /// The members of a group snapshot were quiesced and resumed.
    pub(crate) fn quiesced(&self, took: Duration) {
        self.quiesced.observe(took.as_secs_f64());
    }

    /// What a scrape is answered: everything so far, and the state of the classes as they are now. None of them if they
    /// could not be read: old values would pass for new ones.
    ///
    /// # Errors
    /// None in practice: text is written to memory.
    pub(crate) fn text(&self, classes: &[ClassState]) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("drumlin");
        let build = Info::new(BuildLabels {
            version: crate::VERSION,
        });
        registry.register("build", "The version of the agent", build);
        registry.register_with_unit(
            "program_duration",
            "Programs that were run",
            Unit::Seconds,
            self.programs.clone(),
        );
        registry.register_with_unit(
            "rpc_duration",
            "Calls by method and gRPC code",
            Unit::Seconds,
            self.rpcs.clone(),
        );
        registry.register_with_unit(
            "lvm_command_duration",
            "Commands of LVM, in the shell that is kept or as programs",
            Unit::Seconds,
            self.commands.clone(),
        );
        registry.register_with_unit(
            "group_snapshot_quiesced",
            "Time for which the writers of the members of a group snapshot were held",
            Unit::Seconds,
            self.quiesced.clone(),
        );
        register_classes(&mut registry, classes);
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// A size in bytes, or a number, of a class.
type Whole = Family<ClassLabels, Gauge>;
/// A ratio of a class, from 0 to 1.
type Ratio = Family<ClassLabels, Gauge<f64, AtomicU64>>;

fn register_classes(registry: &mut Registry, classes: &[ClassState]) {
    let [size, available, largest, promised] = [(); 4].map(|()| Whole::default());
    let [volumes, ready] = [(); 2].map(|()| Whole::default());
    let [data, metadata] = [(); 2].map(|()| Ratio::default());
    for state in classes {
        let labels = ClassLabels {
            class: state.name.to_string(),
            kind: state.kind.to_string(),
        };
        ready
            .get_or_create(&labels)
            .set(i64::from(state.problem.is_none()));
        if state.problem.is_some() {
            continue;
        }
        let (space, capacity) = (state.utilization.space, state.utilization.capacity);
        size.get_or_create(&labels).set(space.size.to_wire());
        promised
            .get_or_create(&labels)
            .set(space.promised.to_wire());
        available
            .get_or_create(&labels)
            .set(capacity.available.to_wire());
        largest
            .get_or_create(&labels)
            .set(capacity.largest.to_wire());
        let count = i64::try_from(state.utilization.volumes).unwrap_or(i64::MAX);
        volumes.get_or_create(&labels).set(count);
        for (family, percent) in [
            (&data, space.data_percent),
            (&metadata, space.metadata_percent),
        ] {
            if let Some(percent) = percent {
                family
                    .get_or_create(&labels)
                    .set(f64::from(percent) / 100.0);
            }
        }
    }
    let bytes = [
        ("class_size", "Size of the storage of a class", size),
        (
            "class_available",
            "Capacity left for new volumes",
            available,
        ),
        (
            "class_largest_volume",
            "Size of the largest volume that can be created",
            largest,
        ),
        ("class_promised", "Capacity promised to volumes", promised),
    ];
    for (name, help, family) in bytes {
        registry.register_with_unit(name, help, Unit::Bytes, family);
    }
    registry.register(
        "class_volumes",
        "Volumes of a class, without snapshots",
        volumes,
    );
    registry.register("class_ready", "1 if the class can be used", ready);
    let ratios = [
        (
            "class_data_ratio",
            "Used part of the data of a thin pool or file system",
            data,
        ),
        (
            "class_metadata_ratio",
            "Used part of the metadata of a thin pool",
            metadata,
        ),
    ];
    for (name, help, family) in ratios {
        registry.register(name, help, family);
    }
}

#[cfg(test)]
mod tests {
    use drumlin_core::backend::{StorageKind, Utilization};

    use super::*;

    #[test]
    fn what_was_measured_is_in_the_text_by_its_labels() {
        let metrics = Metrics::default();
        metrics.answered(
            "csi.v1.Controller/CreateVolume",
            "Ok",
            Duration::from_millis(20),
        );
        metrics.answered(
            "csi.v1.Controller/CreateVolume",
            "NotFound",
            Duration::from_millis(1),
        );
        metrics.ran("/sbin/mkfs.ext4 -q /dev/loop0", Duration::from_secs(2));
        metrics.commanded("lvcreate", Duration::from_millis(30));
        metrics.quiesced(Duration::from_millis(5));
        let text = metrics.text(&[]).unwrap();
        for line in [
            r#"drumlin_rpc_duration_seconds_bucket{le="0.025",method="csi.v1.Controller/CreateVolume",code="Ok"} 1"#,
            r#"drumlin_rpc_duration_seconds_count{method="csi.v1.Controller/CreateVolume",code="NotFound"} 1"#,
            r#"drumlin_program_duration_seconds_sum{program="mkfs.ext4"} 2.0"#,
            r#"drumlin_lvm_command_duration_seconds_count{command="lvcreate"} 1"#,
            "drumlin_group_snapshot_quiesced_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn of_a_class_that_is_not_ready_nothing_else_is_told() {
        let state = |name: &str, problem: Option<&str>| {
            let mut utilization = Utilization::default();
            utilization.space.data_percent = Some(25);
            utilization.volumes = 3;
            ClassState {
                name: name.parse().unwrap(),
                kind: StorageKind::Thin,
                is_default: false,
                utilization,
                is_retired: false,
                problem: problem.map(str::to_owned),
            }
        };
        let classes = [state("fast", None), state("away", Some("no such pool"))];
        let text = Metrics::default().text(&classes).unwrap();
        for line in [
            r#"drumlin_class_ready{class="fast",kind="thin"} 1"#,
            r#"drumlin_class_ready{class="away",kind="thin"} 0"#,
            r#"drumlin_class_volumes{class="fast",kind="thin"} 3"#,
            r#"drumlin_class_data_ratio{class="fast",kind="thin"} 0.25"#,
            r#"drumlin_class_available_bytes{class="fast",kind="thin"} 0"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(text.matches("class=\"away\"").count(), 1, "{text}");
        assert!(!text.contains("drumlin_class_metadata_ratio{"), "{text}");
    }
}
