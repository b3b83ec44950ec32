//! Killed at each step of opening, growing, rolling back, re-keying and deleting an encrypted volume: the same calls again
//! end where an uninterrupted run ends.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use drumlin_proto::drumlin::v1::RollbackVolumeGroupSnapshotRequest;
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, Volumes, write},
    requests::{
        create, create_group_snapshot, delete, delete_group_snapshot, expand, mounted, node_expand,
        publish, stage, unpublish, unstage,
    },
    sources,
};
use nix::sys::signal::Signal;
use tonic::{Code, Response, Status};

use super::setup::{encryption, mappings, opens};
use crate::{
    helpers::{get, ok, paths, put},
    place::{Place, places},
    subject::{ending_at, killed_at},
};

/// An agent that ends at each of these points, once.
struct Killed {
    agent: Agent,
    left: Vec<String>,
}

impl Killed {
    async fn start(place: Place) -> Self {
        let mut left: Vec<String> = sources::agent_points().into_iter().collect();
        left.retain(|point| point.starts_with("encrypted."));
        assert!(left.len() > 10, "{left:?}");
        // A thick volume, and an image file, are marked first; those steps have points of their own.
        if place == Place::Images || Volumes::asked() != Volumes::Thin {
            left.retain(|point| point != "encrypted.remove.header");
        }
        let mut agent = place.agent().await;
        agent.kill();
        let mut this = Self { agent, left };
        this.revive().await;
        this
    }

    /// Starts it until it answers.
    async fn revive(&mut self) {
        loop {
            let met = killed_at(&self.agent.log());
            self.left.retain(|left| !met.contains(left));
            let options = Options {
                environment: ending_at(&self.left),
                ..Options::default()
            };
            if self.agent.try_restart_with(options).await {
                return;
            }
        }
    }

    /// Makes a call until it is answered.
    async fn call<T>(&mut self, call: impl AsyncFn(&Agent) -> Result<Response<T>, Status>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match call(&self.agent).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => {
                    let log = self.agent.log();
                    assert!(Instant::now() < deadline, "{status}\n{log}");
                    if self.agent.has_ended() {
                        self.revive().await;
                    } else {
                        let is_refused = status.code() == Code::FailedPrecondition;
                        assert!(!is_refused, "{status}\n{log}");
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        }
    }

    async fn mount(&mut self, id: &str, (staging, target): &(String, String)) {
        let ext4 = mounted("ext4");
        self.call(async |agent| {
            agent
                .node()
                .node_stage_volume(stage(id, staging, &ext4))
                .await
        })
        .await;
        let request = publish(id, (staging, target), &ext4);
        self.call(async |agent| agent.node().node_publish_volume(request.clone()).await)
            .await;
    }

    async fn unmount(&mut self, id: &str, (staging, target): &(String, String)) {
        self.call(async |agent| {
            agent
                .node()
                .node_unpublish_volume(unpublish(id, target))
                .await
        })
        .await;
        self.call(async |agent| agent.node().node_unstage_volume(unstage(id, staging)).await)
            .await;
    }

    /// Takes a group snapshot of the volume, changes the volume, and rolls it back.
    async fn roll_back(&mut self, id: &str, at: &(String, String)) {
        let ids = vec![id.to_owned()];
        let taken = self
            .call(async |agent| {
                let request = create_group_snapshot("g", ids.clone());
                agent
                    .group_controller()
                    .create_volume_group_snapshot(request)
                    .await
            })
            .await;
        let taken = taken.group_snapshot.unwrap();
        self.mount(id, at).await;
        put(&at.1, "words", b"to be rolled back");
        self.unmount(id, at).await;
        self.call(async |agent| {
            let request = RollbackVolumeGroupSnapshotRequest {
                group_snapshot_id: taken.group_snapshot_id.clone(),
                name: "back".to_owned(),
                discard: true,
            };
            agent.own().rollback_volume_group_snapshot(request).await
        })
        .await;
        let request = delete_group_snapshot(&taken);
        self.call(async |agent| {
            let mut groups = agent.group_controller();
            groups.delete_volume_group_snapshot(request.clone()).await
        })
        .await;
    }

    /// Rotates the key, and waits for the end of that.
    async fn rotate(&mut self, place: Place, below: PathBuf) {
        let (old, new) = (self.agent.path("key"), self.agent.scratch.key("new"));
        let config = place.config(&self.agent.scratch, &encryption(&new, &[&old]));
        write(&self.agent.path("config.yaml"), &config);
        self.agent.signal(Signal::SIGHUP);
        let deadline = Instant::now() + PATIENCE;
        let is_over = |left: &[String]| !left.iter().any(|point| point.contains(".rekey."));
        while !(is_over(&self.left) && opens(&below, &new) && !opens(&below, &old)) {
            assert!(
                Instant::now() < deadline,
                "{:?}\n{}",
                self.left,
                self.agent.log()
            );
            // In this order: the new key is there before the old one goes.
            assert!(opens(&below, &old) || opens(&below, &new));
            if self.agent.has_ended() {
                // As a service manager starts it: with the file as it is now.
                let options = Options {
                    config: Some(config.clone()),
                    ..Options::default()
                };
                let met = killed_at(&self.agent.log());
                self.left.retain(|left| !met.contains(left));
                let environment = ending_at(&self.left);
                let options = Options {
                    environment,
                    ..options
                };
                self.agent.try_restart_with(options).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn killed_at_each_step_it_ends_where_an_uninterrupted_run_ends() {
    for place in places() {
        let mut killed = Killed::start(*place).await;
        let ext4 = mounted("ext4");
        let made = killed
            .call(async |agent| {
                agent
                    .controller()
                    .create_volume(create("v", 32, &ext4))
                    .await
            })
            .await;
        let id = made.volume.unwrap().volume_id;
        let at = paths(&killed.agent, "v");
        killed.mount(&id, &at).await;
        put(&at.1, "words", b"before");
        killed
            .call(async |agent| {
                agent
                    .controller()
                    .controller_expand_volume(expand(&id, 48))
                    .await
            })
            .await;
        killed
            .call(async |agent| {
                agent
                    .node()
                    .node_expand_volume(node_expand(&id, &at.1))
                    .await
            })
            .await;
        put(&at.1, "more", &vec![1; 36 << 20]);
        killed.unmount(&id, &at).await;
        killed.roll_back(&id, &at).await;
        let below = place.below(&killed.agent, &id);
        killed.rotate(*place, below).await;
        killed.mount(&id, &at).await;
        assert_eq!(get(&at.1, "words"), b"before", "{}", killed.agent.log());
        assert_eq!(get(&at.1, "more").len(), 36 << 20);
        killed.unmount(&id, &at).await;
        assert_eq!(mappings(), [""; 0]);
        killed
            .call(async |agent| agent.controller().delete_volume(delete(&id)).await)
            .await;
        let met = killed_at(&killed.agent.log());
        killed.left.retain(|left| !met.contains(left));
        assert_eq!(killed.left, [""; 0], "{place:?}\n{}", killed.agent.log());
        ok(killed
            .agent
            .identity()
            .probe(drumlin_proto::csi::v1::ProbeRequest {})
            .await);
    }
}
