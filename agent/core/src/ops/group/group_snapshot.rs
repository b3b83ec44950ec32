//! Group snapshots: crash-consistent point-in-time copies of several volumes.
//!
//! The record of the group snapshot is written first, marked `incomplete`. A single later change of that record marks
//! it complete and stores its point in time. So a kill at any instant leaves either a complete group snapshot, or an
//! incomplete one whose members are hidden and that recovery removes at the next start. A deletion uses the same steps
//! in reverse order.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::SystemTime};

use tracing::Instrument;

use crate::ops::{
    Class, Operations, Snapshot,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    parameters,
    volume_group::Member,
};
use crate::{
    Error, Kind, Result,
    backend::{ImageSpec, LabelChange, Labels, Origin},
    blocking, fail,
    host::quiesce::{PointInTime, QuiescePlan, ThawWatchdog},
    types::{ClassName, Handle, ImageId, ImageKind, Key, Map, Name, Reference, Size},
};

/// The value of [`labels::STATE`] during creation.
const INCOMPLETE: &str = "incomplete";
/// The value of [`labels::STATE`] during deletion.
const DELETING: &str = "deleting";

/// The program of the thaw watchdog: this one.
const PROGRAM: &str = "/proc/self/exe";

/// A group snapshot as the disk shows it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// Its id.
    pub handle: Handle,
    /// Its members. A lost member has size 0 and is not ready.
    pub members: Vec<Snapshot>,
    /// Its point in time.
    pub created: SystemTime,
    /// True if volumes can be created from all members.
    pub ready: bool,
}

/// A request to create a group snapshot (CSI, `CreateVolumeGroupSnapshot`).
#[derive(Debug, Clone)]
pub struct CreateGroupSnapshot {
    /// Its name, the idempotency key.
    pub name: Name,
    /// The source volumes: at least one.
    pub of: Vec<Reference>,
    /// The parameters of the call.
    pub parameters: Map,
}

/// The plan of a group snapshot.
pub(crate) struct GroupSnapshotPlan<'a> {
    /// The class of its record.
    pub(crate) class: Class,
    pub(crate) id: ImageId,
    /// The source volumes.
    pub(crate) volumes: &'a [Member],
    /// Further initial labels of its record.
    pub(crate) labels: Labels,
    /// The state label once it is complete; none if it is visible to callers then.
    pub(crate) state: Option<&'static str>,
}

/// The group snapshots of some snapshots, by class and key.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<(ClassName, Key), LocatedImage>);

impl Groups {
    /// The group snapshot that a snapshot is a member of. One whose record is lost is in none.
    pub(crate) fn of(&self, snapshot: &LocatedImage) -> Option<&LocatedImage> {
        self.0.get(&group_of(snapshot)?)
    }

    /// A snapshot as callers see it.
    pub(crate) fn snapshot(&self, found: LocatedImage) -> Snapshot {
        let group = self.of(&found).map(|group| {
            let handle = group.handle.clone();
            (handle, group.image.created())
        });
        let mut snapshot = Snapshot::from(found);
        if let Some((handle, moment)) = group {
            snapshot.group = Some(handle);
            snapshot.created = moment;
        }
        snapshot
    }
}

/// The class and key that a member's label names.
fn group_of(snapshot: &LocatedImage) -> Option<(ClassName, Key)> {
    let (class, key) = snapshot.image.label(labels::GROUP)?.split_once('/')?;
    Some((class.parse().ok()?, Key::parse(key)?))
}

/// The snapshot of a volume within a group snapshot.
pub(crate) fn member_id(group: ImageId, volume: &Member) -> ImageId {
    ImageId {
        kind: ImageKind::Snapshot,
        key: group
            .key
            .within(&format!("{}/{}", volume.class, volume.key)),
    }
}

/// The locks for creating or removing a group snapshot of these volumes.
pub(crate) fn whole_holds(group: ImageId, volumes: &[Member]) -> Vec<LockMode> {
    let members = volumes.iter().map(|volume| member_id(group, volume));
    let all = [group].into_iter().chain(members);
    all.map(LockMode::Exclusive).collect()
}

impl Operations {
    /// Creates a group snapshot. Idempotent: an earlier group snapshot of this name and these volumes is returned.
    ///
    /// # Errors
    /// `Invalid`, `NotFound` (a volume), `Conflict`, `Busy`, `NoSpace`, `Precondition` if the volumes cannot be
    /// quiesced together, naming one and the reason.
    pub async fn create_group_snapshot(
        self: &Arc<Self>,
        request: CreateGroupSnapshot,
    ) -> Result<GroupSnapshot> {
        parameters::check_group_snapshot(&request.parameters)?;
        let volumes = self.members_of(&request.of, Kind::Precondition)?;
        let Some(first) = volumes.first() else {
            return Err(Error::invalid("source_volume_ids is missing"));
        };
        let class = self.classes.find(Some(&first.class))?;
        let kind = ImageKind::GroupSnapshot;
        let id = ImageId {
            kind,
            key: Key::of(kind, &request.name),
        };
        let mut holds = whole_holds(id, &volumes);
        holds.extend(
            volumes
                .iter()
                .map(|volume| LockMode::Exclusive(volume.id())),
        );
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                this.make_group_snapshot(class, id, request, volumes).await
            })
            .await
    }

    async fn make_group_snapshot(
        self: &Arc<Self>,
        class: Class,
        id: ImageId,
        request: CreateGroupSnapshot,
        volumes: Vec<Member>,
    ) -> Result<GroupSnapshot> {
        // Idempotency: checked before the volumes, which may have been deleted since the first call.
        if let Some(found) = self.named(&class, id).await? {
            found.readable()?;
            if found.image.label(labels::BEFORE).is_some() {
                return Err(Error::new(
                    Kind::Conflict,
                    format!(
                        "group snapshot {:?} already exists: a rollback kept it as the previous contents of its volumes; choose another name",
                        request.name.as_str()
                    ),
                ));
            }
            if found.image.label(labels::STATE).is_none() {
                let is_same = found.image.label(labels::NAME) == Some(request.name.as_str())
                    && found.members() == volumes;
                if is_same {
                    return self.group_snapshot(found).await;
                }
                return Err(Error::new(
                    Kind::Conflict,
                    format!(
                        "group snapshot {:?} already exists with other source volumes; choose another name",
                        request.name.as_str()
                    ),
                ));
            }
            if found.members() != volumes {
                // This call holds no locks on its remaining members.
                return Err(Error::new(
                    Kind::Busy,
                    format!(
                        "group snapshot {:?} of other volumes is still being created or deleted; repeat the call later",
                        request.name.as_str()
                    ),
                ));
            }
            self.end_group_snapshot(&found).await?;
        }
        let taking = GroupSnapshotPlan {
            id,
            class,
            volumes: &volumes,
            labels: Labels::from([
                (labels::NAME.to_owned(), request.name.to_string()),
                (
                    labels::PARAMETERS.to_owned(),
                    labels::json(&request.parameters)?,
                ),
            ]),
            state: None,
        };
        self.group_snapshot(self.take_group_snapshot(taking).await?)
            .await
    }

    /// Takes a group snapshot that does not exist yet.
    pub(crate) async fn take_group_snapshot(
        self: &Arc<Self>,
        taking: GroupSnapshotPlan<'_>,
    ) -> Result<LocatedImage> {
        let GroupSnapshotPlan {
            class,
            id,
            volumes,
            labels: mut born_with,
            state,
        } = taking;
        let parts = self.parts(id, &class, volumes).await?;
        for (class, specs) in &parts {
            let bytes = specs.iter().map(|spec| spec.size.bytes());
            let needed = Size::try_from(bytes.fold(0, u64::saturating_add)).unwrap_or(Size::MAX);
            let check = || class.backend.check_group_snapshot(specs);
            self.with_room(class, needed, check).await?;
        }
        born_with.extend([
            (labels::CREATED.to_owned(), labels::now()),
            (
                labels::MEMBERS.to_owned(),
                crate::ops::volume_group::write(volumes),
            ),
            (labels::STATE.to_owned(), INCOMPLETE.to_owned()),
        ]);
        let spec = ImageSpec {
            id,
            size: Size::default(),
            labels: born_with,
            origin: Origin::Blank,
        };
        let image = class.backend.create(&spec).await?.into_inner();
        self.known.insert(&class, id);
        fail::point("create-group-snapshot.begun");
        let found = LocatedImage {
            handle: self.handle_in(&class, id),
            class,
            image,
        };
        match self.complete(&found, &parts, state).await {
            Ok((found, taken)) => {
                tracing::info!(
                    group.id = %found.handle,
                    members = volumes.len(),
                    quiesced_us = u64::try_from(taken.barrier.as_micros()).unwrap_or(u64::MAX),
                    "group snapshot created"
                );
                Ok(found)
            }
            Err(error) => match self.end_group_snapshot(&found).await {
                Ok(()) => Err(error),
                Err(second) => Err(Error::new(
                    Kind::HalfDone,
                    format!(
                        "{}; the incomplete group snapshot could not be removed: {}",
                        error.chain(),
                        second.chain()
                    ),
                )),
            },
        }
    }

    /// The images that each class has to create, in the order of the members.
    async fn parts(
        &self,
        id: ImageId,
        home: &Class,
        volumes: &[Member],
    ) -> Result<Vec<(Class, Vec<ImageSpec>)>> {
        let found = self.volumes_of(volumes.iter()).await?;
        found.check(self, volumes)?;
        let mut parts: Vec<(Class, Vec<ImageSpec>)> = Vec::new();
        for volume in volumes {
            let Some(found) = found.get(volume) else {
                continue;
            };
            let image = found.healthy()?;
            if found.class.backend.family() != home.backend.family() {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "volume {} is in class {}, whose images cannot be quiesced together with those of class {}",
                        found.handle, found.class.name, home.name
                    ),
                ));
            }
            let mut labels = crate::ops::snapshot::snapshot_labels(found);
            labels.insert(
                labels::GROUP.to_owned(),
                format!("{}/{}", home.name, id.key),
            );
            let spec = ImageSpec {
                id: member_id(id, volume),
                size: image.size,
                labels,
                origin: Origin::CopyOf(image.id),
            };
            match parts.last_mut() {
                Some((class, specs)) if class.name == found.class.name => specs.push(spec),
                _ => parts.push((found.class.clone(), vec![spec])),
            }
        }
        Ok(parts)
    }

    /// Copies all members at one point in time, then marks the record complete, with `state`.
    async fn complete(
        &self,
        group: &LocatedImage,
        parts: &[(Class, Vec<ImageSpec>)],
        state: Option<&'static str>,
    ) -> Result<(LocatedImage, PointInTime)> {
        let watchdog = blocking(|| ThawWatchdog::start(&PathBuf::from(PROGRAM)));
        // The watchdog starts while the copies are prepared.
        let watchdog = tokio::spawn(watchdog.in_current_span());
        let mut plan = QuiescePlan::default();
        for (class, specs) in parts {
            let mut part = class.backend.prepare_group_snapshot(specs).await?;
            for (member, spec) in part.members.iter_mut().zip(specs) {
                let source = spec.labels.label(labels::SNAPSHOT_OF);
                member.name = format!("volume {}", source.unwrap_or_default());
            }
            plan.join(part);
        }
        fail::point("create-group-snapshot.prepared");
        let watchdog = watchdog.await.map_err(|error| {
            Error::new(
                Kind::Bug,
                "the task that starts the thaw watchdog ended early",
            )
            .because(error)
        })??;
        let taken = blocking(move || plan.take(watchdog)).await?;
        fail::point("create-group-snapshot.taken");
        for (class, specs) in parts {
            class.backend.flush_group_snapshot(specs).await?;
        }
        fail::point("create-group-snapshot.kept");
        let mut change = LabelChange::set(labels::CREATED, labels::time(taken.at));
        match state {
            None => change.remove.push(labels::STATE.to_owned()),
            Some(state) => {
                change
                    .set
                    .insert(labels::STATE.to_owned(), state.to_owned());
            }
        }
        let image = group.class.backend.relabel(group.image.id, &change).await?;
        fail::point("create-group-snapshot.complete");
        let found = LocatedImage {
            image: image.into_inner(),
            ..group.clone()
        };
        Ok((found, taken))
    }

    /// Removes an incomplete or deleting group snapshot: its members, then its record.
    pub(crate) async fn end_group_snapshot(&self, group: &LocatedImage) -> Result<()> {
        for volume in group.members() {
            // The record must stay until all members are known to be removed.
            let class = self.classes.get(&volume.class).ok_or_else(|| {
                Error::new(
                    Kind::Precondition,
                    format!(
                        "could not remove group snapshot {}: it has a member in class {}, which is no longer configured; configure that class again",
                        group.handle, volume.class
                    ),
                )
            })?;
            let member = member_id(group.image.id, &volume);
            class.backend.delete(member).await?;
            fail::point("end-group-snapshot.member");
        }
        group.class.backend.delete(group.image.id).await?;
        self.known.remove(&group.class, group.image.id);
        fail::point("end-group-snapshot.ended");
        Ok(())
    }

    /// Deletes a group snapshot with all its members. Idempotent: one that does not exist is no error.
    ///
    /// # Errors
    /// `Invalid` if `members` are given and differ from its own, `InUse`, `Busy` while a volume is created from a
    /// member.
    pub async fn delete_group_snapshot(
        self: &Arc<Self>,
        reference: &Reference,
        members: &[Reference],
    ) -> Result<()> {
        let place = match self.place(ImageKind::GroupSnapshot, reference) {
            Ok(place) => place,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(not_here(error)),
        };
        let found = match place.find().await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        found.readable()?;
        self.check_members(&found, members)?;
        let id = found.image.id;
        let holds = whole_holds(id, &found.members());
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let Some(image) = found.class.backend.get(id).await? else {
                    return Ok(());
                };
                let found = LocatedImage { image, ..found };
                found.check_not_rolling()?;
                let volumes = this.volumes_of(found.members().iter()).await?;
                if let Some(volume) = volumes.iter().find(|volume| volume.rolls_to(&found)) {
                    // The volume can only be released from the rollback through this record.
                    volume.check_not_on_its_way()?;
                }
                for member in this.snapshots_in(&found).await?.into_iter().flatten() {
                    member.check_unmounted().await?;
                }
                let change = LabelChange::set(labels::STATE, DELETING);
                found.class.backend.relabel(id, &change).await?;
                fail::point("delete-group-snapshot.begun");
                this.end_group_snapshot(&found).await?;
                tracing::info!(group.id = %found.handle, "group snapshot deleted");
                Ok(())
            })
            .await
    }

    /// One group snapshot.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if `members` are given and differ from its own.
    pub async fn get_group_snapshot(
        &self,
        reference: &Reference,
        members: &[Reference],
    ) -> Result<GroupSnapshot> {
        let found = self.find(ImageKind::GroupSnapshot, reference).await;
        let found = found.map_err(not_here)?;
        if found.readable()?.label(labels::STATE).is_some() {
            return Err(Error::not_found(format!(
                "group snapshot {reference} does not exist"
            )));
        }
        self.check_members(&found, members)?;
        self.group_snapshot(found).await
    }

    /// Refuses a list of members that differs from that of the group snapshot.
    fn check_members(&self, group: &LocatedImage, members: &[Reference]) -> Result<()> {
        let mut own = self.member_handles(group);
        if members.is_empty() && !own.is_empty() {
            return Err(Error::invalid(format!(
                "snapshot_ids is missing: group snapshot {} has {} members",
                group.handle,
                own.len()
            )));
        }
        own.sort_unstable();
        let mut given: Vec<Option<&Handle>> = members.iter().map(Reference::handle).collect();
        given.sort_unstable();
        given.dedup();
        if given.iter().copied().eq(own.iter().map(Some)) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "snapshot_ids do not match the {} members of group snapshot {}",
            own.len(),
            group.handle
        )))
    }

    fn member_handles(&self, group: &LocatedImage) -> Vec<Handle> {
        let handle = |volume: Member| Handle {
            node: self.settings().node.clone(),
            key: member_id(group.image.id, &volume).key,
            class: volume.class,
        };
        group.members().into_iter().map(handle).collect()
    }

    /// The members of a group snapshot, in order; `None` for a lost one. Reads each class once.
    pub(crate) async fn snapshots_in(
        &self,
        group: &LocatedImage,
    ) -> Result<Vec<Option<LocatedImage>>> {
        let handles = self.member_handles(group);
        let mut found = BTreeMap::new();
        for class in self.classes.iter() {
            if !handles.iter().any(|handle| handle.class == class.name) {
                continue;
            }
            for image in class.list(ImageKind::Snapshot).await? {
                let handle = self.handle_in(&class, image.id);
                if handles.contains(&handle) {
                    let class = class.clone();
                    let snapshot = LocatedImage {
                        handle: handle.clone(),
                        class,
                        image,
                    };
                    found.insert(handle, snapshot);
                }
            }
        }
        Ok(handles.iter().map(|handle| found.remove(handle)).collect())
    }

    pub(crate) async fn group_snapshot(&self, group: LocatedImage) -> Result<GroupSnapshot> {
        let found = self.snapshots_in(&group).await?;
        let groups = Groups(
            [(
                (group.class.name.clone(), group.image.id.key),
                group.clone(),
            )]
            .into(),
        );
        let handles = self.member_handles(&group);
        let created = group.image.created();
        let member =
            |((found, handle), volume): ((Option<LocatedImage>, Handle), Member)| match found {
                Some(found) => groups.snapshot(found),
                None => Snapshot {
                    handle,
                    of: Some(Handle {
                        node: self.settings().node.clone(),
                        class: volume.class,
                        key: volume.key,
                    }),
                    size: Size::default(),
                    created,
                    damage: Some("the snapshot no longer exists".to_owned()),
                    group: Some(group.handle.clone()),
                },
            };
        let members = found.into_iter().zip(handles).zip(group.members());
        let members: Vec<Snapshot> = members.map(member).collect();
        Ok(GroupSnapshot {
            ready: members.iter().all(|member| member.damage.is_none()),
            members,
            created,
            handle: group.handle,
        })
    }

    /// Returns true if a snapshot is visible to callers: members are while their group snapshot is complete.
    pub(crate) async fn shows(&self, groups: &Groups, snapshot: &LocatedImage) -> Result<bool> {
        if let Some(group) = groups.of(snapshot) {
            return Ok(group.image.label(labels::STATE).is_none());
        }
        let Some((home, _)) = group_of(snapshot) else {
            return Ok(true);
        };
        if self.classes.get(&home).is_none() {
            // It is unknown whether the group snapshot was ever complete.
            return Ok(false);
        }
        // The record is missing: either the group snapshot was just deleted with this member, or the record was lost
        // and the member remains as a single snapshot.
        let now = snapshot.class.backend.get(snapshot.image.id).await?;
        Ok(now.is_some())
    }

    /// The group snapshots of some snapshots. Reads nothing if none of them is a member of one.
    pub(crate) async fn groups_of(&self, snapshots: &[LocatedImage]) -> Result<Groups> {
        let wanted: Vec<(ClassName, Key)> = snapshots.iter().filter_map(group_of).collect();
        let mut groups = BTreeMap::new();
        for class in self.classes.iter() {
            if !wanted.iter().any(|(name, _)| *name == class.name) {
                continue;
            }
            for image in class.list(ImageKind::GroupSnapshot).await? {
                let found = self.found(&class, image);
                groups.insert((class.name.clone(), found.image.id.key), found);
            }
        }
        Ok(Groups(groups))
    }
}
