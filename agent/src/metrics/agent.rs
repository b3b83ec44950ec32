//! What is read of an agent for each scrape: its device classes and its objects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drumlin_core::ops::{ClassState, Operations};
use drumlin_reconciler::{Observer, api_server::watch_failures};
use tokio::time::timeout;

use super::{
    definitions::{
        CLASS_AVAILABLE, CLASS_DATA, CLASS_LARGEST, CLASS_METADATA, CLASS_PROMISED, CLASS_READY,
        CLASS_SIZE, CLASS_TRASH_SIZE, CLASS_TRASHED, CLASS_VOLUMES, Definition, OBJECTS, RETRIES,
        WATCH_FAILURES,
    },
    scrape::{Measured, Scrape},
};

/// Timeout for the state of the classes: a disk may be unresponsive.
const CLASSES: Duration = Duration::from_secs(5);

/// The state of an agent.
#[derive(Debug)]
pub(crate) struct AgentState {
    operations: Arc<Operations>,
    objects: Option<Observer>,
}

impl AgentState {
    /// That of `operations`, and of the objects that a reconciler has.
    pub(crate) fn new(operations: &Arc<Operations>, objects: Option<Observer>) -> Self {
        Self {
            operations: Arc::clone(operations),
            objects,
        }
    }
}

#[tonic::async_trait]
impl Measured for AgentState {
    async fn measure(&self, scrape: &mut Scrape) {
        // Read now, together with all that watch them.
        let mut watch = self.operations.watch_classes(Duration::ZERO);
        let classes = timeout(CLASSES, watch.next()).await.ok().flatten();
        add_classes(scrape, classes.as_deref().unwrap_or_default());
        if let Some(objects) = &self.objects {
            add_objects(scrape, objects.conditions(), objects.retries());
        }
        add_watches(scrape, watch_failures());
    }
}

/// Adds the watches of the API server that have failed.
pub(super) fn add_watches(scrape: &mut Scrape, failures: BTreeMap<String, u64>) {
    let failures = failures
        .into_iter()
        .map(|(kind, number)| (WATCH_FAILURES.labelled([&kind]), number));
    scrape.counts(&WATCH_FAILURES, failures);
}

fn add_objects(
    scrape: &mut Scrape,
    conditions: BTreeMap<(String, String), usize>,
    retries: BTreeMap<String, u64>,
) {
    let conditions = conditions.into_iter();
    scrape.gauge(
        &OBJECTS,
        conditions.map(|((kind, reason), number)| (OBJECTS.labelled([&kind, &reason]), number)),
    );
    let retries = retries.into_iter();
    scrape.counts(
        &RETRIES,
        retries.map(|(code, number)| (RETRIES.labelled([&code]), number)),
    );
}

/// A size of a class, or a number.
type Whole = fn(&ClassState) -> i64;
/// A part of a class in percent, if it has it.
type Part = fn(&ClassState) -> Option<u32>;

fn add_classes(scrape: &mut Scrape, classes: &[ClassState]) {
    let labels = |of: &Definition, state: &ClassState| {
        of.labelled([state.name.as_str(), &state.kind.to_string()])
    };
    let ready = classes.iter().map(|state| {
        let is_ready = state.problem.is_none();
        (labels(&CLASS_READY, state), i64::from(is_ready))
    });
    scrape.gauge(&CLASS_READY, ready);
    let usable: Vec<&ClassState> = classes
        .iter()
        .filter(|state| state.problem.is_none())
        .collect();
    let wholes: [(&Definition, Whole); 7] = [
        (&CLASS_SIZE, |state| state.utilization.space.size.to_wire()),
        (&CLASS_PROMISED, |state| {
            state.utilization.space.promised.to_wire()
        }),
        (&CLASS_AVAILABLE, |state| {
            state.utilization.capacity.available.to_wire()
        }),
        (&CLASS_LARGEST, |state| {
            state.utilization.capacity.largest.to_wire()
        }),
        (&CLASS_VOLUMES, |state| {
            i64::try_from(state.utilization.volumes).unwrap_or(i64::MAX)
        }),
        (&CLASS_TRASHED, |state| {
            i64::try_from(state.utilization.trash.volumes).unwrap_or(i64::MAX)
        }),
        (&CLASS_TRASH_SIZE, |state| {
            state.utilization.trash.size.to_wire()
        }),
    ];
    for (of, read) in wholes {
        let series = usable.iter().map(|state| (labels(of, state), read(state)));
        scrape.gauge(of, series);
    }
    let parts: [(&Definition, Part); 2] = [
        (&CLASS_DATA, |state| state.utilization.space.data_percent),
        (&CLASS_METADATA, |state| {
            state.utilization.space.metadata_percent
        }),
    ];
    for (of, read) in parts {
        let series = usable.iter().filter_map(|state| {
            let percent = read(state)?;
            Some((labels(of, state), f64::from(percent) / 100.0))
        });
        scrape.ratio(of, series);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use drumlin_core::backend::{StorageKind, Utilization};

    use super::*;

    /// A class with all that a class can have.
    pub(in crate::metrics) fn class(name: &str, problem: Option<&str>) -> ClassState {
        let mut utilization = Utilization::default();
        utilization.space.data_percent = Some(25);
        utilization.volumes = 3;
        utilization.trash = [2 << 20].into_iter().collect();
        ClassState {
            name: name.parse().unwrap(),
            kind: StorageKind::Thin,
            is_default: false,
            utilization,
            is_retired: false,
            problem: problem.map(str::to_owned),
        }
    }

    /// A scrape of all that there can be, with these classes.
    pub(in crate::metrics) fn of_classes(classes: &[ClassState]) -> String {
        let mut scrape = Scrape::default();
        add_classes(&mut scrape, classes);
        let stalled = ("Volume".to_owned(), "NodeLost".to_owned());
        let retries = [("Unavailable".to_owned(), 3)].into();
        add_objects(&mut scrape, [(stalled, 2)].into(), retries);
        add_watches(&mut scrape, [("volumes".to_owned(), 1)].into());
        scrape.text().unwrap()
    }

    #[test]
    fn of_a_class_that_is_not_ready_nothing_else_is_told() {
        let text = of_classes(&[class("fast", None), class("away", Some("no such pool"))]);
        for line in [
            r#"drumlin_class_ready{class="fast",kind="thin"} 1"#,
            r#"drumlin_class_ready{class="away",kind="thin"} 0"#,
            r#"drumlin_class_volumes{class="fast",kind="thin"} 3"#,
            r#"drumlin_class_trash_volumes{class="fast",kind="thin"} 1"#,
            r#"drumlin_class_trash_size_bytes{class="fast",kind="thin"} 2097152"#,
            r#"drumlin_class_data_ratio{class="fast",kind="thin"} 0.25"#,
            r#"drumlin_class_available_bytes{class="fast",kind="thin"} 0"#,
            r#"drumlin_objects{kind="Volume",reason="NodeLost"} 2"#,
            r#"drumlin_reconcile_retries_total{code="Unavailable"} 3"#,
            r#"drumlin_watch_failures_total{resource="volumes"} 1"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(text.matches("class=\"away\"").count(), 1, "{text}");
        assert!(!text.contains("drumlin_class_metadata_ratio{"), "{text}");
    }
}
