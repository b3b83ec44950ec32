//! Deletion of a volume: unmounted, and then deleted or released.

use drumlin_crd::VolumeDeletionPolicy;
use drumlin_proto::{csi::v1, drumlin::v1::TrashVolumeRequest};
use tonic::Code;

use super::{Halt, Pass, blocked, volume::is_refusal};
use crate::{
    client::{PATIENCE, call, gone_is_fine},
    record::{State, Verdict},
};

impl Pass<'_> {
    /// Unmounts the volume, and then deletes or releases it.
    pub(super) async fn destroy_volume(&mut self) -> Result<Verdict, Halt> {
        if self.is_to_be_destroyed() {
            if self.status().volume_handle.is_none() {
                self.take_up().await?;
                self.confirm_end().await?;
            }
            // A create with an unknown outcome is completed first, or its volume would be leaked.
            if self.record.is_begun() && self.status().volume_handle.is_none() {
                match self.create_volume().await {
                    Err(Halt::Failed(failure)) if has_nothing(failure.code) => {}
                    other => other?,
                }
            }
            if self.status().volume_handle.is_some() {
                self.take_down().await?;
                match self.record.deletion_policy() {
                    VolumeDeletionPolicy::Delete => self.delete_volume().await?,
                    VolumeDeletionPolicy::Trash => self.trash_volume().await?,
                    VolumeDeletionPolicy::Retain => self.tell_released().await?,
                }
            }
            self.record.drumlin.destroyed = true;
            self.save("volume.destroyed")?;
            self.shared.wake_waiting();
        }
        let (reason, message) = match self.record.deletion_policy() {
            VolumeDeletionPolicy::Delete | VolumeDeletionPolicy::Trash
                if self.record.drumlin.is_trashed =>
            {
                (
                    "Deleted",
                    "moved to the trash (`drumlin trash`); its manifest can be removed".to_owned(),
                )
            }
            VolumeDeletionPolicy::Delete | VolumeDeletionPolicy::Trash => {
                ("Deleted", "deleted; its manifest can be removed".to_owned())
            }
            VolumeDeletionPolicy::Retain if self.handle().is_empty() => (
                "Released",
                "released before a volume was created".to_owned(),
            ),
            VolumeDeletionPolicy::Retain => (
                "Released",
                format!("unmounted; volume {} is retained", self.handle()),
            ),
        };
        Ok(Verdict {
            state: State::Gone,
            reason,
            message,
        })
    }

    async fn delete_volume(&mut self) -> Result<(), Halt> {
        // Only to say what becomes of it; another CSI driver than our agent has no trash.
        let object = self.client.object(&self.handle()).await;
        let object = object.ok().flatten();
        let request = v1::DeleteVolumeRequest {
            volume_id: self.handle(),
            ..v1::DeleteVolumeRequest::default()
        };
        let mut controller = self.client.controller();
        let deleted = controller.delete_volume(request);
        let deleted = call("DeleteVolume", PATIENCE, deleted).await;
        gone_is_fine(deleted).map_err(blocked)?;
        self.point("volume.delete.called");
        self.record.drumlin.is_trashed = object.is_some_and(|object| object.to_trash);
        self.forget_volume();
        Ok(())
    }

    async fn trash_volume(&mut self) -> Result<(), Halt> {
        // Only to say what becomes of it: one that never held data is deleted.
        let object = self.client.object(&self.handle()).await;
        let is_blank = object.ok().flatten().is_some_and(|object| object.blank);
        let request = TrashVolumeRequest {
            volume_id: self.handle(),
        };
        let mut trash = self.client.trash();
        let moved = call("TrashVolume", PATIENCE, trash.trash_volume(request)).await;
        gone_is_fine(moved).map_err(blocked)?;
        self.point("volume.delete.called");
        self.record.drumlin.is_trashed = !is_blank;
        self.forget_volume();
        Ok(())
    }
}

/// Returns true if the object owns no resource of this name: nothing was created, or it belongs to another object.
pub(super) fn has_nothing(code: Code) -> bool {
    is_refusal(code) || code == Code::AlreadyExists
}
