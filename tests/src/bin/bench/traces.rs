//! What traces cost: calls while their traces are exported, and while they are in the log, in turns with calls of an
//! agent that records none.

use std::time::Duration;

use drumlin_tests::{agent::Agent, collector::Collector, storage::Kind};

use crate::{
    calls::create_some,
    idle::{done, millis},
    measure::{Table, median},
    process::{agent_with, resident},
};

/// So many volumes are made by each agent.
const VOLUMES: usize = 300;

/// An agent, the times of its calls, and the processor time that they took.
struct Measured {
    agent: Agent,
    times: Vec<Duration>,
    before: u64,
}

impl Measured {
    async fn start(arguments: &[&str]) -> Self {
        let agent = agent_with(Kind::Ext4, 1 << 10, arguments).await;
        create_some(&agent, 0, 10).await;
        let before = done(agent.pid()).ticks;
        Self {
            agent,
            times: Vec::new(),
            before,
        }
    }

    /// Processor time of a call, in milliseconds.
    fn processor(&self) -> f64 {
        millis(done(self.agent.pid()).ticks - self.before) / VOLUMES as f64
    }
}

pub(crate) async fn creation(table: &mut Table) {
    let collector = Collector::start().await;
    let export = format!("--otlp-endpoint={}", collector.endpoint());
    let mut all = [
        Measured::start(&["--log-level=warn"]).await,
        Measured::start(&["--log-level=warn", &export]).await,
        Measured::start(&["--log-level=debug"]).await,
    ];
    for index in 10..10 + VOLUMES {
        for one in &mut all {
            let times = create_some(&one.agent, index, index + 1).await;
            one.times.extend(times);
        }
    }
    // The last spans are exported within the interval of an export.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let [off, exported, logged] = all;
    for (traces, on, wanted) in [("exported", &exported, 1.2), ("in the log", &logged, 1.3)] {
        table.ratio(
            &format!("CreateVolume with traces {traces} beside without"),
            (median(on.times.clone()), median(off.times.clone())),
            wanted,
        );
        table.beside(
            &format!("its processor time, {traces} beside without"),
            (on.processor(), off.processor()),
            2.0,
            "ms",
        );
        table.beside(
            &format!("resident memory, {traces} beside without"),
            (resident(on.agent.pid()), resident(off.agent.pid())),
            1.5,
            "MiB",
        );
    }
    assert!(!collector.spans().is_empty());
}
