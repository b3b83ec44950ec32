//! Resolves the source of a volume or of a snapshot: other objects, waited for until they are ready.

use drumlin_crd::{GroupSnapshotMember, Quantity};

use super::{Halt, Pass, group_snapshot, stalled, waiting};
use crate::record::{Body, CreateIntent, Of};

impl Pass<'_> {
    /// The arguments of `CreateVolume`, fixed for every retry.
    pub(super) fn intend(&self) -> Result<CreateIntent, Halt> {
        let spec = self.spec();
        let bytes = spec.capacity.bytes().unwrap_or(0);
        let mut parameters = spec.parameters.clone();
        parameters.extend(self.owner());
        // The agent chooses values that are not set.
        let class = spec.device_class.iter().cloned();
        parameters.extend(class.map(|class| ("class".to_owned(), class)));
        let mut intent = CreateIntent {
            bytes,
            fs_type: spec.fs_type,
            mount_flags: self.mount_flags(),
            snapshot: None,
            volume: None,
            parameters,
        };
        let Some(source) = &spec.source else {
            return Ok(intent);
        };
        let snapshot = match (&source.snapshot_name, &source.group_snapshot) {
            (Some(name), _) => Some((name, self.ready_snapshot(name)?)),
            (None, Some(member)) => Some((&member.name, self.ready_member(member)?)),
            (None, None) => None,
        };
        if let Some((name, (handle, size))) = snapshot {
            if bytes < size {
                return Err(stalled(
                    "InvalidArgument",
                    format!(
                        "spec.capacity: {} is smaller than snapshot {name}, which needs {}",
                        spec.capacity,
                        Quantity::from_bytes(size)
                    ),
                ));
            }
            intent.snapshot = Some(handle);
        }
        if let Some(name) = &source.volume_name {
            intent.volume = Some(self.ready_volume(name)?);
        }
        Ok(intent)
    }

    /// The handle of another volume, once it is ready.
    pub(super) fn ready_volume(&self, name: &str) -> Result<String, Halt> {
        let missing = |what: &str| {
            waiting(
                "DependencyNotFound",
                format!("waiting for volume {name}, which {what}"),
            )
        };
        let volume = self
            .sibling("Volume", name)
            .ok_or_else(|| missing("does not exist"))?;
        if !volume.is_ready() {
            return Err(missing("is not ready"));
        }
        match &volume.body {
            Body::Volume(Of { status, .. }) => status
                .volume_handle
                .clone()
                .ok_or_else(|| missing("does not exist")),
            _ => Err(missing("does not exist")),
        }
    }

    /// The handle of a member of a group snapshot, once that is ready.
    fn ready_member(&self, source: &GroupSnapshotMember) -> Result<(String, u64), Halt> {
        let GroupSnapshotMember { name, member, .. } = source;
        let missing = |what: &str| {
            waiting(
                "DependencyNotFound",
                format!("waiting for group snapshot {name}, which {what}"),
            )
        };
        let record = self.sibling("GroupSnapshot", name);
        let record = record.ok_or_else(|| missing("does not exist"))?;
        let status = match &record.body {
            Body::GroupSnapshot(Of { status, .. }) if status.ready_to_use => status,
            _ => return Err(missing("is not ready")),
        };
        // Its members never change.
        let wrong = |why: String| {
            let what = format!("spec.source.groupSnapshot.member: group snapshot {name}: {why}");
            stalled("InvalidArgument", what)
        };
        let found = group_snapshot::member(status, source).map_err(wrong)?;
        let found = found.ok_or_else(|| wrong(format!("no member is named {member}")))?;
        let size = found.restore_size.as_ref();
        let bytes = size.and_then(|size| size.bytes().ok());
        let handle = found.snapshot_handle.clone();
        let handle = handle.ok_or_else(|| missing("is not ready"))?;
        Ok((handle, bytes.unwrap_or(0)))
    }

    fn ready_snapshot(&self, name: &str) -> Result<(String, u64), Halt> {
        let missing = |what: &str| {
            waiting(
                "DependencyNotFound",
                format!("waiting for snapshot {name}, which {what}"),
            )
        };
        let snapshot = self
            .sibling("Snapshot", name)
            .ok_or_else(|| missing("does not exist"))?;
        match &snapshot.body {
            Body::Snapshot(Of { status, .. }) if status.ready_to_use => {
                let size = status
                    .restore_size
                    .as_ref()
                    .and_then(|size| size.bytes().ok());
                let handle = status
                    .snapshot_handle
                    .clone()
                    .ok_or_else(|| missing("does not exist"))?;
                Ok((handle, size.unwrap_or(0)))
            }
            _ => Err(missing("is not ready")),
        }
    }
}
