//! Agents whose clock is set by a file, and that look at their trash each 100 ms.

use std::time::{SystemTime, UNIX_EPOCH};

use drumlin_tests::{
    agent::{Agent, Options, eventually, write},
    storage::Scratch,
};

use crate::helpers::text;

/// Days from now, in seconds since 1970.
pub(crate) fn in_days(days: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now.as_secs_f64() + days * 86_400.0).to_string()
}

/// An agent with such a clock.
pub(crate) async fn agent_with(scratch: Scratch, config: String) -> Agent {
    let clock = scratch.path().join("clock");
    write(&clock, &in_days(0.0));
    let environment = [
        ("DRUMLIN_CLOCK", text(clock)),
        ("DRUMLIN_TIME_LAPSE", "600".to_owned()),
    ];
    let environment = environment
        .map(|(key, value)| (key.to_owned(), value))
        .into();
    let options = Options {
        config: Some(config),
        environment,
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// Starts it again so many days from now.
pub(crate) async fn restart_in(agent: &mut Agent, days: f64) {
    agent.kill();
    write(&agent.path("clock"), &in_days(days));
    agent.restart().await;
}

pub(crate) async fn until_log(agent: &Agent, words: &str) {
    eventually(|| agent.log(), |log| log.contains(words)).await;
}
