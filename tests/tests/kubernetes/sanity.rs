//! The upstream conformance tool at the front of the cluster, with the agent of a node for what only a node does.

use crate::{
    front::{Asking, the_room_of_each_is_known},
    sidecars::{NODE, Stack},
    tool::{self, ALL},
};

/// What the front does not offer, as no sidecar asks for it: an attachment is nothing but kubelet's own, volumes are known by
/// their objects, and their health is told by the agent.
const NOT_OFFERED: [(&str, usize); 6] = [
    ("VolumeHealth [", 3),
    ("GetSnapshot [", 3),
    ("ListVolumes", 3),
    ("ublishVolume", 8),
    ("volume lifecycle", 2),
    ("snapshot with accessibility requirements", 1),
];

#[tokio::test(flavor = "multi_thread")]
async fn all_that_the_front_offers_conforms() {
    let stack = Stack::start().await;
    the_room_of_each_is_known(&stack, &Asking::new(&stack), &[NODE]).await;
    let front = format!(
        "--csi.controllerendpoint=unix://{}",
        stack.front().display()
    );
    let outcome = tool::run(&stack.agent, &[&front]);
    for (part, many) in NOT_OFFERED {
        let skipped = outcome.skipped.iter().filter(|name| name.contains(part));
        assert_eq!(skipped.count(), many, "{part}: {:#?}", outcome.skipped);
    }
    let many: usize = NOT_OFFERED.iter().map(|(_, many)| many).sum();
    assert_eq!(outcome.skipped.len(), many, "{:#?}", outcome.skipped);
    assert_eq!(outcome.passed + outcome.skipped.len(), ALL);
}
