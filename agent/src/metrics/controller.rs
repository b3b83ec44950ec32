//! What is read of a controller for each scrape: its cluster, and what the controller that leads has found out.

use std::{fmt, sync::Arc};

use drumlin_cluster::{ByReadiness, ClusterState, Front};
use drumlin_reconciler::{
    api_server::watch_failures,
    controller::{ControllerObserver, Policies},
};

use super::{
    agent::add_watches,
    definitions::{
        AGENTS, CALLS, CALLS_EXPIRED, CALLS_WITHDRAWN, Definition, LEADS, NODE_CLASSES, POLICY,
        STORAGES, UNCLAIMED,
    },
    scrape::{Measured, Scrape},
};

/// The state of a controller.
pub(crate) struct ControllerState {
    front: Arc<Front>,
    leader: ControllerObserver,
}

impl fmt::Debug for ControllerState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ControllerState")
            .finish_non_exhaustive()
    }
}

impl ControllerState {
    /// That of a controller with this front.
    pub(crate) fn new(front: &Arc<Front>, leader: ControllerObserver) -> Self {
        Self {
            front: Arc::clone(front),
            leader,
        }
    }
}

#[tonic::async_trait]
impl Measured for ControllerState {
    async fn measure(&self, scrape: &mut Scrape) {
        add_leader(scrape, self.leader.policies());
        if let Some(cluster) = self.front.state() {
            add_cluster(scrape, &cluster);
        }
        add_watches(scrape, watch_failures());
    }
}

/// Adds the policies that a controller has found, if it leads.
fn add_leader(scrape: &mut Scrape, policies: Option<Policies>) {
    scrape.number(&LEADS, i64::from(policies.is_some()));
    let policies = policies.into_iter().flatten().map(|(name, is_in_force)| {
        let labels = POLICY.labelled([name]);
        (labels, i64::from(is_in_force))
    });
    scrape.gauge(&POLICY, policies);
}

fn add_cluster(scrape: &mut Scrape, cluster: &ClusterState) {
    let mut by_readiness = |of: &Definition, counts: ByReadiness| {
        let series = [("true", counts.ready), ("false", counts.not_ready)];
        let series = series.map(|(is_ready, number)| (of.labelled([is_ready]), number));
        scrape.gauge(of, series);
    };
    by_readiness(&AGENTS, cluster.agents);
    by_readiness(&NODE_CLASSES, cluster.classes);
    scrape.number(&STORAGES, cluster.storages);
    scrape.number(&UNCLAIMED, cluster.unclaimed_volumes);
    let calls = cluster.calls.iter();
    scrape.gauge(
        &CALLS,
        calls.map(|(progress, number)| (CALLS.labelled([progress]), *number)),
    );
    scrape.number(&CALLS_EXPIRED, cluster.expired_calls);
    scrape.count(&CALLS_WITHDRAWN, cluster.withdrawn_calls);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A scrape of a controller alone.
    pub(in crate::metrics) fn of_cluster(
        policies: Option<Policies>,
        cluster: &ClusterState,
    ) -> String {
        let mut scrape = Scrape::default();
        add_leader(&mut scrape, policies);
        add_cluster(&mut scrape, cluster);
        scrape.text().unwrap()
    }

    #[test]
    fn the_cluster_is_told_in_numbers_and_a_controller_that_does_not_lead_tells_no_policy() {
        let cluster = ClusterState {
            agents: [true, false, true].into_iter().collect(),
            unclaimed_volumes: 4,
            calls: [("fresh", 2), ("done", 0)].into(),
            expired_calls: 1,
            withdrawn_calls: 7,
            ..ClusterState::default()
        };
        let text = of_cluster(None, &cluster);
        for line in [
            "drumlin_controller_leads 0",
            r#"drumlin_agents{ready="true"} 2"#,
            r#"drumlin_agents{ready="false"} 1"#,
            "drumlin_unclaimed_volumes 4",
            r#"drumlin_node_calls{progress="fresh"} 2"#,
            "drumlin_node_calls_expired 1",
            "drumlin_node_calls_withdrawn_total 7",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
        assert!(!text.contains("drumlin_policy_in_force{"), "{text}");
        let policies = [("one", true), ("another", false)].into();
        let text = of_cluster(Some(policies), &cluster);
        for line in [
            "drumlin_controller_leads 1",
            r#"drumlin_policy_in_force{policy="one"} 1"#,
            r#"drumlin_policy_in_force{policy="another"} 0"#,
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
    }
}
