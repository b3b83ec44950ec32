//! All metrics: the one place of their names, labels and descriptions. The documentation is written from here.

use std::fmt;

use prometheus_client::registry::Unit;

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number that grows until the process ends.
    Counter,
    /// A number as it is now.
    Gauge,
    /// Durations by their length.
    Histogram,
    /// Labels alone.
    Info,
}

/// Who has a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Agent,
    Controller,
    Both,
}

/// What a metric counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum In {
    Seconds,
    Bytes,
    Numbers,
}

/// A metric.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Definition {
    /// Its name, without prefix and unit.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: In,
    pub(super) labels: &'static [&'static str],
    pub(super) of: Of,
    /// A sentence without its full stop.
    pub(super) help: &'static str,
}

/// What all names begin with.
pub(super) const PREFIX: &str = "drumlin";

/// The labels of whatever is about a device class.
const CLASS: &[&str] = &["class", "kind"];

/// Declares the metrics, and a list of them.
macro_rules! definitions {
    ($($constant:ident: $of:ident $kind:ident $name:literal in $unit:ident by $labels:expr, $help:literal;)*) => {
        $(pub(super) const $constant: Definition = Definition {
            name: $name,
            kind: Kind::$kind,
            unit: In::$unit,
            labels: $labels,
            of: Of::$of,
            help: $help,
        };)*
        /// All metrics: what the documents, the rules and the dashboard are compared with.
        #[cfg(test)]
        pub(super) const ALL: &[&Definition] = &[$(&$constant),*];
    };
}

definitions! {
    BUILD: Both Info "build" in Numbers by &["version"], "The version";
    RPC: Both Histogram "rpc_duration" in Seconds by &["method", "code"],
        "Calls by method and gRPC code; the code is Cancelled if the caller left before the answer";
    WATCH_FAILURES: Both Counter "watch_failures" in Numbers by &["resource"],
        "Watches of the API server that failed and were begun anew";
    PROGRAM: Agent Histogram "program_duration" in Seconds by &["program"], "Programs that were run, such as mkfs.ext4";
    COMMAND: Agent Histogram "lvm_command_duration" in Seconds by &["command"],
        "Commands of LVM, in the shell that is kept or as programs";
    QUIESCED: Agent Histogram "group_snapshot_quiesced" in Seconds by &[],
        "Time for which the writers of the members of a group snapshot were held";
    QUIESCED_LONGEST: Agent Gauge "group_snapshot_quiesced_longest" in Seconds by &[],
        "The longest such time since the start";
    CLASS_READY: Agent Gauge "class_ready" in Numbers by CLASS,
        "1 if the class can be used; of one that cannot, the other metrics of classes are absent";
    CLASS_SIZE: Agent Gauge "class_size" in Bytes by CLASS, "Size of the storage of a class";
    CLASS_AVAILABLE: Agent Gauge "class_available" in Bytes by CLASS, "Capacity left for new volumes, as in GetCapacity";
    CLASS_LARGEST: Agent Gauge "class_largest_volume" in Bytes by CLASS, "Size of the largest volume that can be created";
    CLASS_PROMISED: Agent Gauge "class_promised" in Bytes by CLASS, "Capacity promised to volumes";
    CLASS_DATA: Agent Gauge "class_data_ratio" in Numbers by CLASS, "Used part of the data of a thin pool or file system, from 0 to 1";
    CLASS_METADATA: Agent Gauge "class_metadata_ratio" in Numbers by CLASS, "Used part of the metadata of a thin pool, from 0 to 1";
    CLASS_VOLUMES: Agent Gauge "class_volumes" in Numbers by CLASS, "Volumes of a class, without snapshots";
    CLASS_TRASHED: Agent Gauge "class_trash_volumes" in Numbers by CLASS, "Deleted volumes in the trash of a class";
    CLASS_TRASH_SIZE: Agent Gauge "class_trash_size" in Bytes by CLASS, "Sum of the sizes of the volumes in the trash of a class";
    OBJECTS: Agent Gauge "objects" in Numbers by &["kind", "reason"],
        "Objects of this node by the reason of their Ready condition";
    RETRIES: Agent Counter "reconcile_retries" in Numbers by &["code"],
        "Passes over an object that failed and are tried again, by the gRPC code of the failure";
    LEADS: Controller Gauge "controller_leads" in Numbers by &[], "1 if this controller holds the lease";
    POLICY: Controller Gauge "policy_in_force" in Numbers by &["policy"],
        "1 if a policy of the manifests is in force, 0 if it is not or if that is not known; of the controller that leads";
    AGENTS: Controller Gauge "agents" in Numbers by &["ready"], "Nodes with an agent, by whether it is ready";
    STORAGES: Controller Gauge "node_storages" in Numbers by &[], "Nodes whose storage is known";
    NODE_CLASSES: Controller Gauge "node_classes" in Numbers by &["ready"],
        "Device classes of all nodes, by whether they can be used";
    UNCLAIMED: Controller Gauge "unclaimed_volumes" in Numbers by &[],
        "Volumes without a PersistentVolume, as the last audits found them";
    CALLS: Controller Gauge "node_calls" in Numbers by &["progress"],
        "Calls to nodes: fresh, waiting (begun in an earlier attempt), running or done";
    CALLS_EXPIRED: Controller Gauge "node_calls_expired" in Numbers by &[],
        "Calls to nodes that no agent has begun, and that none may begin any more";
    CALLS_WITHDRAWN: Controller Counter "node_calls_withdrawn" in Numbers by &[],
        "Calls to nodes that this controller withdrew because the agent was away";
}

impl In {
    /// The unit, as the registry has it.
    pub(super) fn unit(self) -> Option<Unit> {
        match self {
            Self::Seconds => Some(Unit::Seconds),
            Self::Bytes => Some(Unit::Bytes),
            Self::Numbers => None,
        }
    }
}

impl Definition {
    /// The labels with these values.
    pub(super) fn labelled<const N: usize>(&self, values: [&str; N]) -> Labels {
        debug_assert_eq!(N, self.labels.len(), "{}", self.name);
        let values = values.into_iter().map(str::to_owned);
        self.labels.iter().copied().zip(values).collect()
    }
}

/// The labels of one series.
pub(super) type Labels = Vec<(&'static str, String)>;

impl fmt::Display for Definition {
    /// The name of the family, as in queries; those of a histogram have `_bucket`, `_sum` or `_count` behind it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}_{}", self.name)?;
        if let Some(unit) = self.unit.unit() {
            write!(formatter, "_{}", unit.as_str())?;
        }
        formatter.write_str(match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        })
    }
}
