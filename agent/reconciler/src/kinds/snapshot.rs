//! Kind `Snapshot`: created once, and deleted.

use drumlin_crd::{Quantity, SnapshotStatus, names};
use drumlin_proto::csi::v1;

use super::{Halt, Pass, blocked, gone, ready, stalled, volume::is_refusal, waiting};
use crate::{
    client::{PATIENCE, call, gone_is_fine},
    inventory::{rfc3339, size},
    record::{Body, Of, Record, Verdict},
};

impl Pass<'_> {
    /// Reconciles a snapshot with its manifest.
    pub(crate) async fn snapshot(&mut self) -> Result<Verdict, Halt> {
        if self.record.is_absent() {
            return self.destroy_snapshot().await;
        }
        self.record.drumlin.destroyed = false;
        if !self.record.is_begun_here() {
            self.take_up().await?;
        }
        if self.is_doubted {
            self.look_for_snapshot().await?;
        }
        if self.record.drumlin.lost {
            return Err(stalled(
                "SnapshotLost",
                "snapshot was created and no longer exists; its point in time cannot be recreated: restore its disk, or delete this object and create a new snapshot"
                    .to_owned(),
            ));
        }
        if !self.snapshot_status().ready_to_use {
            self.create_snapshot().await?;
        }
        let status = self.snapshot_status();
        let size = status
            .restore_size
            .clone()
            .unwrap_or(Quantity::from_bytes(0));
        Ok(ready(
            "SnapshotReady",
            format!(
                "{size}, taken at {}",
                status.creation_time.clone().unwrap_or_default()
            ),
        ))
    }

    fn snapshot_status(&self) -> &SnapshotStatus {
        match &self.record.body {
            Body::Snapshot(Of { status, .. }) => status,
            _ => unreachable!("a snapshot's pass has a snapshot's record"),
        }
    }

    fn snapshot_status_mut(&mut self) -> &mut SnapshotStatus {
        match &mut self.record.body {
            Body::Snapshot(Of { status, .. }) => status,
            _ => unreachable!("a snapshot's pass has a snapshot's record"),
        }
    }

    /// The source volume: resolved once, and then fixed.
    fn source_handle(&self) -> Result<String, Halt> {
        let Body::Snapshot(Of { spec, status }) = &self.record.body else {
            return Err(stalled("Unsupported", "not a snapshot".to_owned()));
        };
        if let Some(handle) = &status.source_volume_handle {
            return Ok(handle.clone());
        }
        match &spec.source.volume_name {
            Some(name) => self.ready_volume(name),
            None if self.record.served().is_some() => self.claimed_volume(),
            None => Err(stalled(
                "Unsupported",
                "spec.source.persistentVolumeClaimName: PersistentVolumeClaims exist only in a cluster; use volumeName"
                    .to_owned(),
            )),
        }
    }

    /// The volume of the claim, as resolved by the controller.
    fn claimed_volume(&self) -> Result<String, Halt> {
        let mut candidates = self.record.candidates().iter();
        let handle = candidates.find_map(|candidate| candidate.volume_handle.clone());
        handle.ok_or_else(|| {
            waiting(
                "DependencyNotFound",
                "waiting for its claim, which is not bound or was not resolved by a controller"
                    .to_owned(),
            )
        })
    }

    /// Checks that the snapshot still exists.
    async fn look_for_snapshot(&mut self) -> Result<(), Halt> {
        let Some(snapshot_id) = self.snapshot_status().snapshot_handle.clone() else {
            return Ok(());
        };
        let request = v1::ListSnapshotsRequest {
            snapshot_id,
            ..v1::ListSnapshotsRequest::default()
        };
        let answer = call(
            "ListSnapshots",
            PATIENCE,
            self.client.controller().list_snapshots(request),
        )
        .await?;
        // Saved together with the conditions; after a restart before that, the next check finds it again.
        let is_lost = answer.entries.is_empty();
        if is_lost != self.record.drumlin.lost {
            self.record.drumlin.lost = is_lost;
            self.snapshot_status_mut().ready_to_use = !is_lost;
        }
        Ok(())
    }

    /// Blocks the deletion while a volume is being restored from the snapshot.
    pub(super) fn no_restore_is_running(&self) -> Result<(), Halt> {
        let is_running = |record: &&Record| {
            matches!(&record.body, Body::Volume(Of { status, .. })
                if record.drumlin.create.is_some() && status.volume_handle.is_none())
        };
        let restores = self.shared.dependants(&self.record.key());
        match restores.iter().find(is_running) {
            Some(restore) => Err(waiting(
                "DeletionBlocked",
                format!("{} is being created from it", restore.key()),
            )),
            None => Ok(()),
        }
    }

    async fn create_snapshot(&mut self) -> Result<(), Halt> {
        let source_volume_id = self.source_handle()?;
        let key = self.record.key();
        let incarnation = self.record.drumlin.incarnation.clone();
        let known = self.snapshot_status().csi_name.clone();
        let name = known.unwrap_or_else(|| {
            let name = (&*key.namespace, &*key.name);
            names::csi_name("snap", &key.kind, name, Some(&incarnation))
        });
        if self.snapshot_status().source_volume_handle.is_none() {
            self.check_looked(&source_volume_id).await?;
            self.add_finalizer().await?;
            let status = self.snapshot_status_mut();
            status.source_volume_handle = Some(source_volume_id.clone());
            status.csi_name = Some(name.clone());
            self.save("snapshot.create.intended")?;
        }
        let mut parameters = match &self.record.body {
            Body::Snapshot(Of { spec, .. }) => spec.parameters.clone(),
            _ => std::collections::BTreeMap::new(),
        };
        parameters.extend(self.owner());
        let request = v1::CreateSnapshotRequest {
            source_volume_id,
            name,
            parameters,
            ..v1::CreateSnapshotRequest::default()
        };
        let answer = call(
            "CreateSnapshot",
            PATIENCE,
            self.client.controller().create_snapshot(request),
        )
        .await;
        if let Err(failure) = &answer
            && is_refusal(failure.code)
            && self.snapshot_status().snapshot_handle.is_none()
        {
            // No snapshot was created, so the next attempt may use the then current source.
            self.snapshot_status_mut().source_volume_handle = None;
        }
        let answer = answer?;
        self.point("snapshot.create.called");
        let Some(snapshot) = answer.snapshot else {
            return Err(stalled(
                "InvalidAnswer",
                "CreateSnapshot returned no snapshot".to_owned(),
            ));
        };
        let status = self.snapshot_status_mut();
        status.snapshot_handle = Some(snapshot.snapshot_id);
        status.restore_size = Some(size(snapshot.size_bytes));
        status.creation_time = snapshot.creation_time.as_ref().and_then(rfc3339);
        status.ready_to_use = snapshot.ready_to_use;
        self.record.is_found();
        self.save("snapshot.create.recorded")?;
        if !self.snapshot_status().ready_to_use {
            return Err(waiting(
                "Creating",
                "snapshot created, but not ready yet".to_owned(),
            ));
        }
        Ok(())
    }

    async fn destroy_snapshot(&mut self) -> Result<Verdict, Halt> {
        let policy = self.record.deletion_policy();
        if self.is_to_be_destroyed() {
            if !self.record.is_begun_here() {
                self.take_up().await?;
                self.confirm_end().await?;
            }
            let is_begun = self.snapshot_status().source_volume_handle.is_some();
            if policy.deletes() && is_begun {
                self.no_restore_is_running()?;
                // A create with an unknown outcome is completed first, or its snapshot would be leaked.
                if self.snapshot_status().snapshot_handle.is_none() {
                    match self.create_snapshot().await {
                        Err(Halt::Failed(failure)) if is_refusal(failure.code) => {}
                        // It may not be ready yet, but it exists.
                        Err(Halt::Waiting(_)) => {}
                        other => other?,
                    }
                }
                if let Some(snapshot_id) = self.snapshot_status().snapshot_handle.clone() {
                    let request = v1::DeleteSnapshotRequest {
                        snapshot_id,
                        ..v1::DeleteSnapshotRequest::default()
                    };
                    let deleted = call(
                        "DeleteSnapshot",
                        PATIENCE,
                        self.client.controller().delete_snapshot(request),
                    )
                    .await;
                    gone_is_fine(deleted).map_err(blocked)?;
                    self.point("snapshot.delete.called");
                }
                *self.snapshot_status_mut() = SnapshotStatus::default();
                self.record.drumlin.lost = false;
            } else {
                self.tell_released().await?;
            }
            self.record.drumlin.destroyed = true;
            self.save("snapshot.destroyed")?;
            self.shared.wake_waiting();
        }
        Ok(gone(policy))
    }
}
