//! Whether what was made is still there: one list for all, every ten minutes.

use std::collections::HashSet;

use drumlin_proto::csi::v1;

use crate::{
    client::{Failure, SHORT, call},
    engine::Engine,
    record::{Body, Record, State, Verdict},
};

impl Engine {
    /// Looks for volumes and snapshots that were ready and are gone, and for mounts that are not where they should be.
    pub(crate) async fn verify(&self) -> Result<(), Failure> {
        let records: Vec<Record> = self
            .shared
            .keys()
            .iter()
            .filter_map(|key| self.shared.record(key))
            .filter(|record| record.drumlin.orphan_since.is_none() && !record.is_paused())
            .collect();
        if records.is_empty() {
            return Ok(());
        }
        let request = v1::ListVolumesRequest::default();
        let volumes = call(
            "ListVolumes",
            SHORT,
            self.client.controller().list_volumes(request),
        )
        .await?;
        let volumes: HashSet<String> = volumes
            .entries
            .into_iter()
            .filter_map(|entry| entry.volume.map(|volume| volume.volume_id))
            .collect();
        let request = v1::ListSnapshotsRequest::default();
        let snapshots = call(
            "ListSnapshots",
            SHORT,
            self.client.controller().list_snapshots(request),
        )
        .await?;
        let snapshots: HashSet<String> = snapshots
            .entries
            .into_iter()
            .filter_map(|entry| entry.snapshot.map(|snapshot| snapshot.snapshot_id))
            .collect();
        for record in records {
            let (handle, there) = match &record.body {
                Body::Volume { status, .. } => (status.volume_handle.clone(), &volumes),
                Body::Snapshot { status, .. } => (status.snapshot_handle.clone(), &snapshots),
            };
            let Some(handle) = handle else { continue };
            if !there.contains(&handle) {
                self.lose(record, &handle);
            } else if let Body::Volume { status, .. } = &record.body
                && let Some(path) = status.mount_path.clone()
            {
                self.verify_mount(&record, handle, path).await?;
            }
        }
        Ok(())
    }

    async fn verify_mount(
        &self,
        record: &Record,
        volume_id: String,
        volume_path: String,
    ) -> Result<(), Failure> {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id,
            volume_path,
            staging_target_path: String::new(),
        };
        match call(
            "NodeGetVolumeStats",
            SHORT,
            self.client.node().node_get_volume_stats(request),
        )
        .await
        {
            Err(failure) if failure.code == tonic::Code::NotFound => {
                tracing::warn!(object = %record.key(), "mount is gone; it is made again");
                self.shared.doubt_mount(&record.key());
                self.reset(&record.key());
                Ok(())
            }
            Err(failure) => Err(failure),
            Ok(_) => Ok(()),
        }
    }

    /// What was there and is gone is reported, and never made anew by itself.
    fn lose(&self, mut record: Record, handle: &str) {
        if record.drumlin.lost || record.drumlin.destroyed {
            return;
        }
        let key = record.key();
        // It may have been worked on since it was read here.
        if self.shared.record(&key).as_ref() != Some(&record) {
            return;
        }
        record.drumlin.lost = true;
        if let Body::Snapshot { status, .. } = &mut record.body {
            status.ready_to_use = false;
        }
        let reason = if key.kind == "Volume" {
            "VolumeLost"
        } else {
            "SnapshotLost"
        };
        record.judge(&Verdict {
            state: State::Stalled,
            reason,
            message: format!("{handle} was there and is gone; it is not made anew by itself"),
        });
        tracing::error!(object = %key, reason, "what was there is gone");
        if let Err(error) = self.shared.save(&record) {
            tracing::error!(object = %key, error = %error, "state could not be written");
        }
        self.reset(&key);
    }
}
