//! Deletes a resource that belongs to no object, after a person has seen what that destroys.

use std::{
    fmt::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drumlin_crd::{ObjectKey, VolumeDeletionPolicy};
use drumlin_proto::{
    csi::v1,
    drumlin::v1::{InventoryObject, ObjectKind, TrashVolumeRequest},
    volumegroup::{DeleteVolumeGroupRequest, ModifyVolumeGroupMembershipRequest},
};

use serde::Serialize;

use super::{BothSides, kind, size, whose};
use crate::{
    Error, Incomplete,
    client::{Failure, PATIENCE, call, gone_is_fine},
    inventory::rfc3339,
    record::Record,
    requests::{AdminRequest, Requests},
    staging,
    store::{self, DIRECTORY},
};

/// Time for the reconciler to forget an orphan.
const FORGETTING: Duration = Duration::from_secs(3);
/// Interval at which the record of an orphan is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// A resource to be deleted.
pub struct Deletion {
    both: BothSides,
    handle: String,
    /// The resource; none where it is lost and only the record of its orphan is left.
    object: Option<InventoryObject>,
    /// The record of the orphan, or of the snapshot of a schedule, that it belonged to.
    orphan: Option<Record>,
    /// An attempt before has unmounted it, and it has left its group.
    is_down: bool,
    state_dir: PathBuf,
}

/// A resource that was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    /// Its handle.
    pub handle: String,
    /// The kind, as in manifests.
    pub kind: String,
    /// The size; of a group snapshot, the sum of its members.
    pub size: String,
    /// The former owner.
    pub owner: String,
    /// `Deleted`, `Trashed` (it is in the trash), or `Forgotten` (it did not exist any more, and its record is deleted).
    pub outcome: &'static str,
}

impl fmt::Debug for Deletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deletion")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

impl Deletion {
    /// Looks up the resource with this handle. Nothing is deleted yet.
    ///
    /// # Errors
    /// When it belongs to an object, it does not exist, or the agent does not answer.
    pub async fn of(socket: &Path, state_dir: &Path, handle: &str) -> Result<Self, Error> {
        let both = BothSides::new(socket, state_dir).await?;
        both.check_all_is_known()?;
        // A snapshot of a schedule has no manifest in which its deletion could be asked for.
        let is_of_schedule = |record: &Record| record.drumlin.schedule.is_some();
        if let Some(holder) = both.live(handle).filter(|holder| !is_of_schedule(holder)) {
            return Err(Error::Kept(format!(
                "{handle} belongs to {}, whose manifest is in {}; to destroy it, annotate that manifest with drumlin.dev/state: absent and set deletionPolicy: Delete",
                holder.key(),
                holder.drumlin.file
            )));
        }
        let orphan = both.holder(handle);
        let orphan =
            orphan.filter(|record| record.drumlin.orphan_since.is_some() || is_of_schedule(record));
        let object = match both.find(handle) {
            Ok(object) => Some(object.clone()),
            // In a class that cannot be read it may still be there.
            Err(_) if orphan.is_some() && both.inventory.classes_unreadable().count() == 0 => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            orphan: orphan.cloned(),
            handle: handle.to_owned(),
            object,
            both,
            is_down: false,
            state_dir: state_dir.to_owned(),
        })
    }

    /// Looks up the resource of an orphan. Nothing is deleted yet.
    ///
    /// # Errors
    /// When there is no such object, it has a manifest or no resource; and as those of [`Deletion::of`].
    pub async fn of_orphan(
        socket: &Path,
        state_dir: &Path,
        key: &ObjectKey,
    ) -> Result<Self, Error> {
        let record = store::find(&state_dir.join(DIRECTORY), key)?;
        let record = record.ok_or_else(|| store::missing(key))?;
        match record.handle() {
            Some(handle) => Self::of(socket, state_dir, handle).await,
            None => Err(Error::Kept(format!(
                "{key} has no resource yet, so there is nothing to delete; remove its manifest, or set drumlin.dev/state: absent in it"
            ))),
        }
    }

    /// Describes what would be destroyed.
    pub fn shown(&self) -> String {
        let (mut text, object) = match (&self.object, &self.orphan) {
            (Some(object), _) if self.ends_in_trash() => {
                let head = "this moves to the trash, from which `drumlin undelete` brings it back:";
                (format!("{head}\n{}", self.line(object)), object)
            }
            (Some(object), _) => {
                let head = "this deletes, permanently:";
                (format!("{head}\n{}", self.line(object)), object)
            }
            (None, orphan) => {
                let key = orphan.as_ref().map(Record::key);
                return format!(
                    "{} does not exist any more; this deletes what is recorded of {}\n",
                    self.handle,
                    key.map(|key| key.to_string()).unwrap_or_default()
                );
            }
        };
        if let Some(mounted) = self.mounted() {
            let _ = writeln!(text, "  mounted at {mounted}, where it is unmounted first");
        }
        if let Some(group) = self.group() {
            let _ = writeln!(
                text,
                "  a member of group {}, which it leaves first",
                group.object_id
            );
        }
        for member in self.members() {
            let _ = write!(text, "  {}", self.line(member));
        }
        if object.kind() == ObjectKind::VolumeGroup {
            let _ = writeln!(
                text,
                "  its {} volumes are retained, without a group",
                object.volume_ids.len()
            );
        }
        text
    }

    /// Describes what was destroyed.
    pub fn told(&self) -> &'static str {
        if self.ends_in_trash() {
            "moved to the trash, where `drumlin trash` shows it"
        } else {
            "deleted"
        }
    }

    /// What was destroyed, for programs.
    pub fn deleted(&self) -> Deleted {
        let object = self.object.as_ref();
        let recorded = self.orphan.as_ref().map(|orphan| orphan.key().kind);
        Deleted {
            handle: self.handle.clone(),
            kind: match object {
                Some(object) => kind(object).to_owned(),
                None => recorded.unwrap_or_default(),
            },
            size: object.map_or_else(String::new, |object| size(object, &self.both.inventory)),
            owner: object.map(whose).unwrap_or_default(),
            outcome: match object {
                None => "Forgotten",
                Some(_) if self.ends_in_trash() => "Trashed",
                Some(_) => "Deleted",
            },
        }
    }

    /// Returns true if it goes to the trash, as its class or the last manifest of the orphan asks.
    fn ends_in_trash(&self) -> bool {
        // One that never held data is deleted, whoever asks.
        let ends =
            |object: &InventoryObject| object.to_trash || (self.is_to_trash() && !object.blank);
        self.object.as_ref().is_some_and(ends)
    }

    /// Returns true if it has to be moved to the trash, as the last manifest of the orphan asks.
    fn is_to_trash(&self) -> bool {
        let is_volume = |object: &InventoryObject| object.kind() == ObjectKind::Volume;
        let asks = |orphan: &Record| orphan.deletion_policy() == VolumeDeletionPolicy::Trash;
        self.object.as_ref().is_some_and(is_volume) && self.orphan.as_ref().is_some_and(asks)
    }

    fn line(&self, object: &InventoryObject) -> String {
        let made = object.creation_time.as_ref().and_then(rfc3339);
        let whose = match whose(object).as_str() {
            "" => String::new(),
            owner => format!(", owned by {owner}"),
        };
        format!(
            "{} {}: {}{whose}, created {}\n",
            kind(object),
            object.object_id,
            match size(object, &self.both.inventory).as_str() {
                "" => "no data of its own",
                size => size,
            },
            made.unwrap_or_default(),
        )
    }

    fn members(&self) -> impl Iterator<Item = &InventoryObject> {
        let objects = self.both.inventory.iter();
        objects.filter(|member| member.group_snapshot_id == self.handle)
    }

    /// Where an orphan is mounted.
    fn mounted(&self) -> Option<&str> {
        let mounted = self.orphan.as_ref()?.drumlin.mounted.as_ref()?;
        Some(&mounted.path)
    }

    /// The group that an orphan is a member of.
    fn group(&self) -> Option<&InventoryObject> {
        self.orphan.as_ref()?;
        let mut objects = self.both.inventory.iter();
        objects.find(|group| {
            group.kind() == ObjectKind::VolumeGroup && group.volume_ids.contains(&self.handle)
        })
    }

    /// Takes an orphan down as the reconciler would: nothing else does, because it leaves orphans alone.
    async fn take_down(&self) -> Result<(), Failure> {
        let client = &self.both.client;
        let volume_id = self.handle.clone();
        if let Some(path) = self.mounted() {
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: volume_id.clone(),
                target_path: path.to_owned(),
            };
            let mut node = client.node();
            let answer = node.node_unpublish_volume(request);
            gone_is_fine(call("NodeUnpublishVolume", PATIENCE, answer).await)?;
            let mount_point = self.orphan.as_ref();
            let mount_point = mount_point.and_then(|orphan| orphan.drumlin.mount_point.as_ref());
            if let Some(mount_point) = mount_point {
                mount_point.put_back(Path::new(path));
            }
            let name = self.orphan.as_ref().and_then(Record::csi_name);
            let staging =
                staging::directory(&self.state_dir, name.unwrap_or_default(), &self.handle);
            let request = v1::NodeUnstageVolumeRequest {
                volume_id: volume_id.clone(),
                staging_target_path: staging.to_string_lossy().into_owned(),
            };
            let answer = node.node_unstage_volume(request);
            gone_is_fine(call("NodeUnstageVolume", PATIENCE, answer).await)?;
        }
        let Some(group) = self.group() else {
            return Ok(());
        };
        let others = group.volume_ids.iter().filter(|id| **id != volume_id);
        let request = ModifyVolumeGroupMembershipRequest {
            volume_group_id: group.object_id.clone(),
            volume_ids: others.cloned().collect(),
            ..ModifyVolumeGroupMembershipRequest::default()
        };
        let mut groups = client.groups();
        let answer = groups.modify_volume_group_membership(request);
        let left = call("ModifyVolumeGroupMembership", PATIENCE, answer).await;
        left.map(drop)
    }

    /// Deletes it; an orphan is unmounted and leaves its group before. Repeated, it goes on.
    ///
    /// # Errors
    /// The error of the agent: it is in use, a member of a group, or protected; or that it is not done yet.
    pub async fn run(&mut self) -> Result<(), Incomplete> {
        if !self.is_down {
            self.take_down().await?;
            self.is_down = true;
        }
        if let Some(object) = &self.object {
            self.delete(object).await?;
        }
        let Some(orphan) = &self.orphan else {
            return Ok(());
        };
        // The record of the orphan is deleted as well.
        let key = orphan.key();
        let request = AdminRequest::adopt(&key, &self.handle);
        let requests = Requests::new(&self.state_dir);
        requests.write(&request).map_err(Incomplete::Failed)?;
        self.until_forgotten(&key).await;
        Ok(())
    }

    async fn delete(&self, object: &InventoryObject) -> Result<(), Incomplete> {
        match object.kind() {
            ObjectKind::Volume if self.is_to_trash() => self.trash_volume().await,
            ObjectKind::Volume => {
                let request = v1::DeleteVolumeRequest {
                    volume_id: self.handle.clone(),
                    ..v1::DeleteVolumeRequest::default()
                };
                let mut controller = self.both.client.controller();
                let deleted = controller.delete_volume(request);
                call("DeleteVolume", PATIENCE, deleted).await.map(drop)
            }
            ObjectKind::Snapshot => {
                let request = v1::DeleteSnapshotRequest {
                    snapshot_id: self.handle.clone(),
                    ..v1::DeleteSnapshotRequest::default()
                };
                let mut controller = self.both.client.controller();
                let deleted = controller.delete_snapshot(request);
                call("DeleteSnapshot", PATIENCE, deleted).await.map(drop)
            }
            ObjectKind::VolumeGroupSnapshot => {
                let members = self.members().map(|member| member.object_id.clone());
                let request = v1::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: self.handle.clone(),
                    snapshot_ids: members.collect(),
                    ..v1::DeleteVolumeGroupSnapshotRequest::default()
                };
                let mut groups = self.both.client.group_controller();
                let deleted = groups.delete_volume_group_snapshot(request);
                let deleted = call("DeleteVolumeGroupSnapshot", PATIENCE, deleted).await;
                deleted.map(drop)
            }
            ObjectKind::VolumeGroup => self.delete_group(&self.handle).await,
            ObjectKind::Unknown => {
                let why = format!(
                    "{}: the agent reports an unknown kind of object",
                    self.handle
                );
                return Err(Incomplete::Failed(Error::Kept(why)));
            }
        }
        .map_err(Incomplete::from)
    }

    async fn trash_volume(&self) -> Result<(), Failure> {
        let request = TrashVolumeRequest {
            volume_id: self.handle.clone(),
        };
        let mut trash = self.both.client.trash();
        // An attempt before this one may have moved it.
        gone_is_fine(call("TrashVolume", PATIENCE, trash.trash_volume(request)).await)
    }

    /// Waits until the reconciler has deleted the record of an orphan: whoever asks for the object next shall not see what
    /// it was. Without a reconciler that is done at its next start.
    async fn until_forgotten(&self, key: &ObjectKey) {
        let root = self.state_dir.join(DIRECTORY);
        let deadline = Instant::now() + FORGETTING;
        while Instant::now() < deadline && matches!(store::find(&root, key), Ok(Some(_))) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Its volumes leave the group first: whether a deletion destroys them is a setting of the agent.
    async fn delete_group(&self, id: &str) -> Result<(), Failure> {
        let request = ModifyVolumeGroupMembershipRequest {
            volume_group_id: id.to_owned(),
            ..ModifyVolumeGroupMembershipRequest::default()
        };
        let mut groups = self.both.client.groups();
        let emptied = groups.modify_volume_group_membership(request);
        call("ModifyVolumeGroupMembership", PATIENCE, emptied).await?;
        let request = DeleteVolumeGroupRequest {
            volume_group_id: id.to_owned(),
            ..DeleteVolumeGroupRequest::default()
        };
        let mut groups = self.both.client.groups();
        let deleted = groups.delete_volume_group(request);
        call("DeleteVolumeGroup", PATIENCE, deleted).await.map(drop)
    }
}
