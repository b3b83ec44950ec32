//! An agent that is killed and started again until its callers have their answers.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::ProbeRequest;
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, is_over_lvm},
    state::State,
    storage::{Scratch, lvm},
};
use tonic::{Response, Status};

/// An agent that may be killed, and what is known of that.
pub(crate) struct Subject {
    pub(crate) agent: Agent,
    pub(crate) kills: usize,
    /// The points at which it was killed, and those at which it still may be.
    pub(crate) met: Vec<String>,
    pub(crate) armed: Vec<String>,
    /// Whether a call has failed.
    is_disturbed: bool,
}

impl Subject {
    /// An agent that holds its callers to what the controller publishes, and that ends at `point`.
    pub(crate) async fn start(point: Option<&str>) -> Self {
        Self::start_among(point.into_iter().map(str::to_owned).collect()).await
    }

    /// The same for an agent that ends at each of these that it comes to, once.
    pub(crate) async fn start_among(points: Vec<String>) -> Self {
        let scratch = Scratch::new();
        let classes = if is_over_lvm() {
            String::new()
        } else {
            let images = scratch.directory("state/images");
            // With or without reflinks: some of the steps are there only while a mounted file system is held.
            let class = format!("{{path: {}, longestFreeze: 60}}", images.display());
            format!("classes: [{{name: default, directory: {class}}}]\n")
        };
        let options = Options {
            config: Some(format!("onGroupDelete: cascade\n{classes}")),
            arguments: vec!["--attach".to_owned()],
            environment: ending_at(&points),
            ..Options::default()
        };
        Self {
            met: Vec::new(),
            armed: points,
            agent: Agent::with(scratch, options).await,
            kills: 0,
            is_disturbed: false,
        }
    }

    /// Makes a call until it is answered: whenever the agent is gone it is started again, without a point.
    pub(crate) async fn call<T>(
        &mut self,
        what: &str,
        call: impl AsyncFn(&Agent) -> Result<Response<T>, Status>,
    ) -> T {
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            match call(&self.agent).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => {
                    self.is_disturbed = true;
                    assert!(
                        Instant::now() < deadline,
                        "{what}: {status}\n{}",
                        self.agent.log()
                    );
                    if self.agent.has_ended() {
                        self.revive().await;
                        deadline = Instant::now() + PATIENCE;
                    } else {
                        let code = status.code();
                        let may_come = matches!(
                            code,
                            tonic::Code::Aborted
                                | tonic::Code::Unavailable
                                | tonic::Code::Unknown
                                | tonic::Code::Cancelled
                                | tonic::Code::Internal
                        );
                        assert!(may_come, "{what}: {status}\n{}", self.agent.log());
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        }
    }

    /// Starts an agent that is gone, to end at the points that it has not come to yet.
    async fn revive(&mut self) {
        loop {
            self.kills += 1;
            // The last one that it tells of; who was killed from outside tells of none.
            let log = self.agent.log();
            if let Some(point) = killed_at(&log).get(self.met.len()) {
                self.met.push(point.clone());
                self.armed.retain(|armed| armed != point);
            }
            let options = Options {
                arguments: vec!["--attach".to_owned()],
                environment: ending_at(&self.armed),
                ..Options::default()
            };
            if self.agent.try_restart_with(options).await {
                return;
            }
        }
    }

    /// What there is when nothing is being removed any more: who was interrupted is not waited for by the next caller.
    pub(crate) async fn state(&self) -> State {
        let root = self.agent.scratch.path();
        let deadline = Instant::now() + PATIENCE;
        while self.is_disturbed && is_over_lvm() && is_being_removed(root) {
            assert!(Instant::now() < deadline, "{}", self.agent.log());
            let _ = self.agent.identity().probe(ProbeRequest {}).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        State::of(root)
    }
}

/// The points at which an agent was killed, by what it has said of each.
pub(crate) fn killed_at(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| line.strip_prefix("killed at "))
        .map(str::to_owned)
        .collect()
}

/// The environment in which an agent ends at these points.
pub(crate) fn ending_at(points: &[String]) -> Vec<(String, String)> {
    if points.is_empty() {
        return Vec::new();
    }
    vec![("DRUMLIN_FAIL".to_owned(), points.join(","))]
}

/// Whether something in the group of the scratch directory at `root` is on its way to be removed.
fn is_being_removed(root: &Path) -> bool {
    let group = root.file_name().unwrap_or_default().to_string_lossy();
    let tags = lvm("lvs", &["--noheadings", "-o", "lv_tags", &group]);
    tags.contains("drumlin.deleting")
}
