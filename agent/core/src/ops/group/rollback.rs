//! Rollback: all volumes of a group snapshot get its contents back in place, all of them or none.
//!
//! A single change of the record of the group snapshot commits the rollback. Before the commit an error undoes all
//! preparations; after it, recovery only continues forward. Each volume has a label during the rollback and cannot be
//! used meanwhile. The previous contents are kept as another group snapshot, which is visible from the commit on.

use std::sync::Arc;

use crate::ops::{
    Class, GroupSnapshot, Operations,
    group_snapshot::{GroupSnapshotPlan, member_id, whole_holds},
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    volume_group::Member,
};
use crate::{
    Error, Kind, Result,
    backend::{LabelChange, Labels},
    fail,
    types::{ImageId, ImageKind, Key, Name, Reference},
};

/// The value of [`labels::STATE`] of the group snapshot of the previous contents, until the rollback is committed.
pub(crate) const UNDECIDED: &str = "undecided";

/// A request to roll volumes back to a group snapshot.
#[derive(Debug, Clone)]
pub struct RollBack {
    /// The name of the rollback, which is its idempotency key, and of the group snapshot of the previous contents.
    pub name: Name,
    /// The group snapshot to roll back to.
    pub to: Reference,
    /// True if the previous contents are kept.
    pub keeps: bool,
}

impl LocatedImage {
    /// Returns true if a rollback to this group snapshot is in flight.
    pub(crate) fn is_rolling(&self) -> bool {
        self.image.label(labels::ROLLBACK).is_some()
    }

    /// Refuses a group snapshot with an in-flight rollback.
    pub(crate) fn check_not_rolling(&self) -> Result<()> {
        if !self.is_rolling() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Busy,
            format!(
                "a rollback to group snapshot {} is in progress; repeat the call later",
                self.handle
            ),
        ))
    }

    /// Refuses a volume that is being rolled back.
    pub(crate) fn check_not_on_its_way(&self) -> Result<()> {
        match self.image.label(labels::ROLLBACK_TO) {
            None => Ok(()),
            Some(group) => Err(Error::new(
                Kind::Busy,
                format!(
                    "volume {} is being rolled back to group snapshot {}/{group}; if the rollback does not complete, repeat it",
                    self.handle, self.handle.node
                ),
            )),
        }
    }

    /// Returns true if this volume is being rolled back to `group`.
    pub(crate) fn rolls_to(&self, group: &Self) -> bool {
        self.image.label(labels::ROLLBACK_TO) == Some(&group.place_word())
    }

    /// The `<class>/<key>` by which labels of other images name this group snapshot.
    fn place_word(&self) -> String {
        format!("{}/{}", self.class.name, self.image.id.key)
    }
}

/// The group snapshot that keeps the previous contents of a rollback.
fn kept_id(name: &Name) -> ImageId {
    let kind = ImageKind::GroupSnapshot;
    ImageId {
        kind,
        key: Key::of(kind, name),
    }
}

impl Operations {
    /// Rolls all volumes of a group snapshot back to it. Returns the group snapshot that keeps the previous contents,
    /// if any. Idempotent.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if the name is that of another group snapshot, `InUse` naming the volume and its user,
    /// `Busy`, `NoSpace`, `Precondition`: nothing was changed. `HalfDone` if the rollback started and the next call
    /// continues it.
    pub async fn roll_back(self: &Arc<Self>, request: RollBack) -> Result<Option<GroupSnapshot>> {
        let found = self.find(ImageKind::GroupSnapshot, &request.to).await;
        let group = found.map_err(not_here)?;
        let id = group.image.id;
        let volumes = group.members();
        let kept = kept_id(&request.name);
        if kept == id {
            return Err(Error::new(
                Kind::Conflict,
                format!(
                    "{:?} is the name of the group snapshot itself; give the rollback another name",
                    request.name.as_str()
                ),
            ));
        }
        let mut holds = Self::rollback_holds(&group);
        let rolling = group.rolling_name();
        if rolling.as_ref() != Some(&request.name) {
            holds.extend(whole_holds(kept, &volumes));
        }
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let image = group.class.backend.get(id).await?;
                let group = image.map(|image| LocatedImage {
                    image,
                    ..group.clone()
                });
                let group = group.filter(|group| group.image.label(labels::STATE).is_none());
                let group = group.ok_or_else(|| {
                    Error::not_found(format!("group snapshot {} does not exist", request.to))
                })?;
                group.readable()?;
                if group.members() != volumes || group.rolling_name() != rolling {
                    return Err(Error::new(
                        Kind::Busy,
                        format!(
                            "group snapshot {} was changed by another call; repeat the call",
                            group.handle
                        ),
                    ));
                }
                this.roll(group, request).await
            })
            .await
    }

    /// The locks of a rollback, without those for a group snapshot of the previous contents that does not exist yet.
    pub(crate) fn rollback_holds(group: &LocatedImage) -> Vec<LockMode> {
        let id = group.image.id;
        let volumes = group.members();
        let mut holds = vec![LockMode::Exclusive(id)];
        for volume in &volumes {
            holds.push(LockMode::Exclusive(volume.id()));
            // Shared: volumes may be created from the snapshot at the same time.
            holds.push(LockMode::Shared(member_id(id, volume)));
        }
        if let Some(name) = group.rolling_name() {
            holds.extend(whole_holds(kept_id(&name), &volumes));
        }
        holds
    }

    async fn roll(
        self: &Arc<Self>,
        mut group: LocatedImage,
        request: RollBack,
    ) -> Result<Option<GroupSnapshot>> {
        if group.is_rolling() {
            group = self.roll_forward(group).await?;
        }
        self.free_held_for_nothing(&group).await?;
        let kept = kept_id(&request.name);
        let known = self.named(&group.class, kept).await?;
        let is_ours = |known: &LocatedImage| {
            // A group snapshot that was deleted and created again is a different one.
            known.image.label(labels::BEFORE) == Some(&group.place_word())
                && known.image.created() >= group.image.created()
        };
        if group.image.label(labels::LAST_ROLLBACK) == Some(request.name.as_str()) {
            // The previous contents may have been deleted since.
            let is_seen =
                |known: &LocatedImage| is_ours(known) && known.image.label(labels::STATE).is_none();
            return self.shown(known.filter(is_seen)).await;
        }
        if let Some(known) = known {
            known.readable()?;
            let is_ours = is_ours(&known);
            match known.image.label(labels::STATE) {
                // This rollback was completed earlier, and another one after it.
                None if is_ours => return self.shown(Some(known)).await,
                Some(_) if is_ours && known.members() == group.members() => {
                    self.end_group_snapshot(&known).await?;
                }
                _ => {
                    return Err(Error::new(
                        Kind::Conflict,
                        format!(
                            "group snapshot {:?} already exists; give the rollback another name",
                            request.name.as_str()
                        ),
                    ));
                }
            }
        }
        self.check_rollback(&group).await?;
        fail::point("rollback.checked");
        let before = if request.keeps {
            Some(self.keep_before(&group, &request.name).await?)
        } else {
            None
        };
        fail::point("rollback.kept");
        if let Err(error) = self.decide(&mut group, &request.name).await {
            return Err(self.undo(&group, before, error).await);
        }
        tracing::info!(group.id = %group.handle, name = %request.name, "rollback started");
        self.roll_forward(group).await?;
        match before {
            Some(before) => {
                let kept = before.class.backend.get(before.image.id).await?;
                self.shown(kept.map(|image| LocatedImage { image, ..before }))
                    .await
            }
            None => Ok(None),
        }
    }

    async fn shown(&self, kept: Option<LocatedImage>) -> Result<Option<GroupSnapshot>> {
        match kept {
            Some(kept) => self.group_snapshot(kept).await.map(Some),
            None => Ok(None),
        }
    }

    /// Checks that the rollback is possible, before any change.
    async fn check_rollback(&self, group: &LocatedImage) -> Result<()> {
        let members = group.members();
        let volumes = self.volumes_of(members.iter()).await?;
        volumes.check(self, &members)?;
        for found in volumes.iter() {
            found.healthy()?;
            if let Some(published) = found.image.publication()? {
                return Err(Error::new(
                    Kind::InUse,
                    format!(
                        "volume {} is published to node {}; unpublish it first",
                        found.handle, published.node
                    ),
                ));
            }
            found.check_unmounted().await?;
        }
        self.check_pairs(group).await
    }

    /// Asks each back end whether its volumes can be rolled back.
    async fn check_pairs(&self, group: &LocatedImage) -> Result<()> {
        let mut parts: Vec<(Class, Vec<(ImageId, ImageId)>)> = Vec::new();
        for (member, snapshot) in self.pairs(group).await? {
            snapshot.healthy()?;
            let pair = (member.id(), snapshot.image.id);
            match parts.last_mut() {
                Some((class, pairs)) if class.name == member.class => pairs.push(pair),
                _ => parts.push((snapshot.class, vec![pair])),
            }
        }
        for (class, pairs) in parts {
            class.backend.check_rollback(&pairs).await?;
        }
        Ok(())
    }

    /// The members of a group snapshot, each with its snapshot.
    async fn pairs(&self, group: &LocatedImage) -> Result<Vec<(Member, LocatedImage)>> {
        let snapshots = self.snapshots_in(group).await?;
        let pairs = group.members().into_iter().zip(snapshots);
        pairs
            .map(|(member, snapshot)| match snapshot {
                Some(snapshot) => Ok((member, snapshot)),
                None => Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "the snapshot of volume {}/{}/{} in group snapshot {} no longer exists",
                        self.settings().node,
                        member.class,
                        member.key,
                        group.handle
                    ),
                )),
            })
            .collect()
    }

    /// Takes a group snapshot of the previous contents, hidden until the rollback is committed.
    async fn keep_before(
        self: &Arc<Self>,
        group: &LocatedImage,
        name: &Name,
    ) -> Result<LocatedImage> {
        let parameters = labels::json(&crate::types::Map::new())?;
        self.take_group_snapshot(GroupSnapshotPlan {
            class: group.class.clone(),
            id: kept_id(name),
            volumes: &group.members(),
            labels: Labels::from([
                (labels::NAME.to_owned(), name.to_string()),
                (labels::PARAMETERS.to_owned(), parameters),
                (labels::BEFORE.to_owned(), group.place_word()),
            ]),
            state: Some(UNDECIDED),
        })
        .await
    }

    /// Marks the volumes as unusable, then commits the rollback.
    async fn decide(&self, group: &mut LocatedImage, name: &Name) -> Result<()> {
        // Checked again, because the previous contents also take space.
        self.check_pairs(group).await?;
        let members = group.members();
        let volumes = self.volumes_of(members.iter()).await?;
        let mark = LabelChange::set(labels::ROLLBACK_TO, group.place_word());
        for found in volumes.iter() {
            found.class.backend.relabel(found.image.id, &mark).await?;
            fail::point("rollback.marked");
        }
        let decision = LabelChange::set(labels::ROLLBACK, name.as_str());
        let decided = group.class.backend.relabel(group.image.id, &decision);
        group.image = decided.await?.into_inner();
        fail::point("rollback.decided");
        Ok(())
    }

    /// Undoes the preparations of a rollback that was not committed. Returns the error for the caller.
    async fn undo(
        &self,
        group: &LocatedImage,
        before: Option<LocatedImage>,
        error: Error,
    ) -> Error {
        let undone = async {
            // The commit may have succeeded although it reported an error: then it must not be undone.
            let now = group.class.backend.get(group.image.id).await?;
            if now.is_none_or(|now| now.label(labels::ROLLBACK).is_some()) {
                return Err(Error::new(Kind::HalfDone, "the rollback may have started"));
            }
            self.free(group).await?;
            match &before {
                Some(before) => self.end_group_snapshot(before).await,
                None => Ok(()),
            }
        };
        match undone.await {
            Ok(()) => error,
            Err(second) => Error::new(
                Kind::HalfDone,
                format!(
                    "{}; the preparation of the rollback could not be undone: {}",
                    error.chain(),
                    second.chain()
                ),
            ),
        }
    }

    /// Releases the volumes from the rollback.
    async fn free(&self, group: &LocatedImage) -> Result<()> {
        let members = group.members();
        let mark = LabelChange::remove(labels::ROLLBACK_TO);
        for found in self.volumes_of(members.iter()).await?.iter() {
            if found.rolls_to(group) {
                found.class.backend.relabel(found.image.id, &mark).await?;
                fail::point("rollback.freed");
            }
        }
        Ok(())
    }

    /// Releases those volumes of the group snapshot that are marked for a rollback that never started.
    async fn free_held_for_nothing(&self, group: &LocatedImage) -> Result<()> {
        let members = group.members();
        for found in self.volumes_of(members.iter()).await?.iter() {
            self.free_if_held_for_nothing(found).await?;
        }
        Ok(())
    }

    /// Releases a volume that is marked for a rollback that never started.
    pub(crate) async fn free_if_held_for_nothing(&self, volume: &LocatedImage) -> Result<()> {
        if self.is_held_for_nothing(volume).await {
            tracing::warn!(volume.id = %volume.handle, "volume released from a rollback that did not start");
            let change = LabelChange::remove(labels::ROLLBACK_TO);
            let id = volume.image.id;
            volume.class.backend.relabel(id, &change).await?;
        }
        Ok(())
    }

    /// Completes a committed rollback, from wherever it was interrupted.
    ///
    /// # Errors
    /// `HalfDone`: the next call continues the rollback.
    pub(crate) async fn roll_forward(&self, group: LocatedImage) -> Result<LocatedImage> {
        let handle = group.handle.clone();
        self.roll_each(group).await.map_err(|error| {
            Error::new(
                Kind::HalfDone,
                format!("the rollback to group snapshot {handle} has started and is not complete; repeat it to continue"),
            )
            .because(error)
        })
    }

    async fn roll_each(&self, group: LocatedImage) -> Result<LocatedImage> {
        let Some(name) = group.rolling_name() else {
            return Ok(group);
        };
        self.show_kept(&group, &name).await?;
        let pairs = self.pairs(&group).await?;
        let volumes = self.volumes_of(group.members().iter()).await?;
        for (member, snapshot) in pairs {
            // All volumes were marked before the commit; one without the mark was recreated since.
            let volume = volumes.get(&member);
            let Some(volume) = volume.filter(|volume| volume.rolls_to(&group)) else {
                tracing::warn!(group.id = %group.handle, class = %member.class, key = %member.key, "volume not rolled back: deleted or replaced since the rollback started");
                continue;
            };
            let explain = |error: Error| {
                Error::new(error.kind(), format!("volume {}", volume.handle)).because(error)
            };
            let (id, backend) = (volume.image.id, &volume.class.backend);
            let given = backend.roll_back(id, snapshot.image.id).await;
            given.map_err(explain)?;
            fail::point("rollback.member");
            let state = labels_of_moment(&snapshot, volume);
            if state.apply(&volume.image.labels).is_some() {
                backend.relabel(id, &state).await.map_err(explain)?;
                fail::point("rollback.relabelled");
            }
        }
        let mut ended = LabelChange::set(labels::LAST_ROLLBACK, name.as_str());
        ended.remove.push(labels::ROLLBACK.to_owned());
        let image = group.class.backend.relabel(group.image.id, &ended).await?;
        fail::point("rollback.ended");
        let group = LocatedImage {
            image: image.into_inner(),
            ..group
        };
        self.free(&group).await?;
        tracing::info!(group.id = %group.handle, %name, "rollback completed");
        Ok(group)
    }

    /// Makes the group snapshot of the previous contents visible, after the commit.
    async fn show_kept(&self, group: &LocatedImage, name: &Name) -> Result<()> {
        let kept = self.named(&group.class, kept_id(name)).await?;
        if let Some(kept) = kept
            && kept.image.label(labels::BEFORE) == Some(&group.place_word())
            && kept.image.label(labels::STATE) == Some(UNDECIDED)
        {
            let show = LabelChange::remove(labels::STATE);
            kept.class.backend.relabel(kept.image.id, &show).await?;
            fail::point("rollback.shown");
        }
        Ok(())
    }

    /// Returns true if a group snapshot keeps the previous contents of a committed rollback.
    pub(crate) async fn is_kept(&self, kept: &LocatedImage) -> bool {
        let Some(group) = self.named_by(kept.image.label(labels::BEFORE)).await else {
            return false;
        };
        // A rollback whose record cannot be read may have been committed.
        group.is_none_or(|group| {
            let name = kept.image.label(labels::NAME);
            group.image.label(labels::ROLLBACK) == name
                || group.image.label(labels::LAST_ROLLBACK) == name
        })
    }

    /// Returns true if a volume is marked for a rollback that is not in flight.
    pub(crate) async fn is_held_for_nothing(&self, volume: &LocatedImage) -> bool {
        let label = volume.image.label(labels::ROLLBACK_TO);
        if label.is_none() {
            return false;
        }
        match self.named_by(label).await {
            None => true,
            Some(None) => false,
            Some(Some(group)) => !group.is_rolling(),
        }
    }

    /// The group snapshot that a label names: `None` if it does not exist, `Some(None)` if that is unknown.
    async fn named_by(&self, label: Option<&str>) -> Option<Option<LocatedImage>> {
        let (class, key) = label?.split_once('/')?;
        let id = ImageId {
            kind: ImageKind::GroupSnapshot,
            key: Key::parse(key)?,
        };
        let class = class.parse().ok()?;
        let Some(class) = self.classes.get(&class) else {
            return Some(None);
        };
        match class.backend.get(id).await {
            Ok(None) => None,
            Err(_) => Some(None),
            Ok(Some(image)) => {
                let found = self.found(&class, image);
                Some(found.readable().is_ok().then_some(found))
            }
        }
    }
}

impl LocatedImage {
    /// The name of the in-flight rollback to this group snapshot.
    fn rolling_name(&self) -> Option<Name> {
        Name::parse("name", self.image.label(labels::ROLLBACK)?).ok()
    }
}

/// The change of the labels of a volume that has the contents of a snapshot again.
fn labels_of_moment(snapshot: &LocatedImage, volume: &LocatedImage) -> LabelChange {
    let mut change = LabelChange::default();
    for key in labels::OF_BYTES {
        match snapshot.image.label(key) {
            // The part beyond the end of the snapshot may have been written since.
            Some(_) if key == labels::FORMAT && volume.image.size > snapshot.image.size => {
                change.set.insert(key.to_owned(), "running".to_owned());
            }
            Some(value) => {
                change.set.insert(key.to_owned(), value.to_owned());
            }
            None => change.remove.push(key.to_owned()),
        }
    }
    change
}
