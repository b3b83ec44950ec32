//! The snapshot objects of a schedule: records in the state directory, or objects of the API server.

use drumlin_crd::{DeletionPolicy, Object, ObjectKey, names};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Halt, Pass, schedule::Progress, waiting};
use crate::{
    inventory::{label, owner},
    record::{Body, Of, Record, Run},
    schedule::{slot_of, slot_text},
};

impl Pass<'_> {
    /// Makes the snapshot object of a run, or finds it.
    pub(super) async fn make_snapshot(&mut self, run: &Run) -> Result<(), Halt> {
        let child = self.child(run.slot);
        let object = self.snapshot_object(&child);
        if self.record.served().is_some() {
            let pending = |why: String| {
                waiting(
                    "SnapshotPending",
                    format!("could not create {child}: {why}"),
                )
            };
            let source = self.object_source().map_err(pending)?;
            let made = source.create(&child, &object).await;
            made.map_err(|error| pending(error.to_string()))?;
        } else if self.shared.with(&child, |_| ()).is_none() {
            self.put_snapshot(&child, &object, run.slot)?;
        }
        self.point("schedule.run.made");
        if let Some(runs) = &mut self.record.drumlin.runs {
            runs.current = Some(Run {
                is_made: true,
                ..run.clone()
            });
        }
        self.save("schedule.run.recorded")
    }

    fn snapshot_object(&self, child: &ObjectKey) -> Value {
        let target = &self.timetable().target;
        let mut spec = match &target.group_name {
            Some(group) => json!({"groupName": group}),
            None => json!({"source": {
                "volumeName": target.volume_name,
                "persistentVolumeClaimName": target.persistent_volume_claim_name,
            }}),
        };
        if let Some(Value::Object(source)) = spec.get_mut("source") {
            source.retain(|_, name| !name.is_null());
        }
        if let Value::Object(spec) = &mut spec {
            spec.insert("deletionPolicy".to_owned(), json!(DeletionPolicy::Delete));
            // The node of a manifest may be the host's by default.
            if let Some(node) = self.record.node() {
                spec.insert("nodeName".to_owned(), node.into());
            }
        }
        json!({
            "apiVersion": names::API_VERSION,
            "kind": child.kind,
            "metadata": {
                "name": child.name,
                "namespace": child.namespace,
                "labels": {names::SCHEDULE: self.record.key().name},
            },
            "spec": spec,
        })
    }

    /// Begins the record of a snapshot, which has no manifest file.
    fn put_snapshot(&self, child: &ObjectKey, object: &Value, slot: Timestamp) -> Result<(), Halt> {
        let schedule = self.record.key().name;
        let parse = |field: &str| object.get(field).cloned().unwrap_or_default();
        let metadata = serde_json::from_value(parse("metadata")).unwrap_or_default();
        let parsed = Object::served(&child.kind, metadata, parse("spec")).map_err(|wrong| {
            let wrong = wrong.into_iter().map(|wrong| wrong.message);
            let wrong: Vec<String> = wrong.collect();
            waiting("SnapshotPending", format!("{child}: {}", wrong.join("; ")))
        })?;
        let mut record = Record::new(&parsed, &format!("schedule {schedule}"), 0);
        record.drumlin.schedule = Some(schedule);
        // Whatever is lost, a slot has one snapshot: its name in calls to the agent comes from this.
        record.drumlin.incarnation = slot_text(slot);
        self.shared.put(&record)?;
        self.shared.queue.add(child, Instant::now());
        Ok(())
    }

    /// What became of the snapshot of a run.
    pub(super) async fn progress_of(&self, run: &Run) -> Result<Progress, Halt> {
        let child = self.child(run.slot);
        let Some(mut record) = self.shared.record(&child) else {
            return self.unseen(&child).await;
        };
        if record.is_absent() {
            return Ok(Progress::Over(format!("{child} was deleted")));
        }
        if record.drumlin.lost {
            return Ok(Progress::Over(format!("{child} was lost")));
        }
        if record.is_ready() {
            let time = match &record.body {
                Body::Snapshot(Of { status, .. }) => status.creation_time.clone(),
                Body::GroupSnapshot(Of { status, .. }) => status.creation_time.clone(),
                _ => None,
            };
            return Ok(Progress::Ready(time));
        }
        let is_begun = record.handle().is_some() || record.is_begun_here();
        let is_stalled = record.condition("Stalled").is_some();
        let has_failed = record.last_operation().is_some();
        Ok(match record.condition("Ready") {
            Some(ready) if is_stalled || has_failed || !is_begun => Progress::Pending(format!(
                "{child} was not taken: {}: {}",
                ready.reason, ready.message
            )),
            _ => Progress::Running,
        })
    }

    async fn unseen(&self, child: &ObjectKey) -> Result<Progress, Halt> {
        let gone = Progress::Over(format!("{child} was deleted before it was ready"));
        if self.record.is_of_file() {
            return Ok(gone);
        }
        let pending =
            |why: String| waiting("SnapshotPending", format!("could not read {child}: {why}"));
        let source = self.object_source().map_err(pending)?;
        let exists = source.exists(child).await;
        if exists.map_err(|error| pending(error.to_string()))? {
            return Ok(Progress::Unseen);
        }
        Ok(gone)
    }

    /// The run of this snapshot did not come about: nothing of it shall be left.
    pub(super) async fn give_up(&mut self, run: &Run) -> Result<(), Halt> {
        let child = self.child(run.slot);
        self.delete_snapshot(&child).await
    }

    /// Requests the deletion of a snapshot; its own pass carries it out.
    pub(super) async fn delete_snapshot(&self, child: &ObjectKey) -> Result<(), Halt> {
        let uid = |record: &Record| record.served().map(|served| served.uid.clone());
        match self.shared.with(child, uid) {
            None => {}
            Some(Some(uid)) => {
                let pending = |why: String| {
                    waiting(
                        "SnapshotPending",
                        format!("could not delete {child}: {why}"),
                    )
                };
                let source = self.object_source().map_err(pending)?;
                let deleted = source.delete(child, &uid).await;
                deleted.map_err(|error| pending(error.to_string()))?;
            }
            Some(None) => {
                self.shared.edit(child, |record| {
                    let annotations = record.metadata.annotations.get_or_insert_default();
                    annotations.insert(names::STATE.to_owned(), "absent".to_owned());
                    record.metadata.generation = Some(record.generation() + 1);
                    true
                })?;
                self.shared.queue.add(child, Instant::now());
            }
        }
        self.point("schedule.snapshot.deleted");
        Ok(())
    }

    /// Finds the snapshots that the agent has of this schedule, after the state directory was lost: they have no
    /// manifest that could find them.
    pub(super) async fn find_snapshots(&self) -> Result<(), Halt> {
        if self.record.served().is_some() {
            return Ok(());
        }
        let key = self.record.key();
        let inventory = self.client.inventory().await?;
        for found in inventory.iter() {
            let Some(child) = owner(found) else {
                continue;
            };
            let is_of_files = label(found, names::OWNER) == Some(names::OF_DIRECTORY);
            let is_released = label(found, names::RELEASED).is_some();
            let Some(slot) = slot_of(&key.name, &child.name) else {
                continue;
            };
            if is_of_files
                && !is_released
                && child == self.child(slot)
                && self.shared.with(&child, |_| ()).is_none()
            {
                let object = self.snapshot_object(&child);
                self.put_snapshot(&child, &object, slot)?;
                tracing::info!(object = %key, snapshot = %child, "snapshot of the schedule found");
            }
        }
        Ok(())
    }
}
