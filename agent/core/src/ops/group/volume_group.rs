//! Volume groups: volumes that belong together. A volume is in at most one.
//!
//! The record of the group lists its members, so that a change of membership is one atomic, durable step. The record is
//! in one class; the members may be in other classes of this node.

use std::{collections::BTreeMap, sync::Arc};

use crate::ops::{
    Class, Condition, Listing, OnGroupDelete, Operations, PageRequest, Volume,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    parameters,
};
use crate::{
    Error, Kind, Result,
    backend::{ImageSpec, LabelChange, Labels, Origin},
    fail,
    host::trace::{self, Wait},
    types::{ClassName, Handle, ImageId, ImageKind, Key, Map, Name, Reference, Size},
};

/// Maximum number of volumes in a group.
const MOST_MEMBERS: usize = 1024;

/// A volume group as recorded on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeGroup {
    /// Its handle.
    pub handle: Handle,
    /// Its volumes, in no particular order. A lost one has size 0 and an abnormal condition.
    pub members: Vec<Volume>,
}

/// A request to create a volume group (volumegroup, `CreateVolumeGroup`).
#[derive(Debug, Clone)]
pub struct CreateVolumeGroup {
    /// Its name, the idempotency key.
    pub name: Name,
    /// `class` and the other parameters of the call.
    pub parameters: Map,
    /// Its initial members.
    pub members: Vec<Reference>,
}

/// A member of a group: class and key of a volume on the node of the group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) class: ClassName,
    pub(crate) key: Key,
}

impl Member {
    fn of(handle: &Handle) -> Self {
        Self {
            class: handle.class.clone(),
            key: handle.key,
        }
    }

    pub(crate) fn id(&self) -> ImageId {
        ImageId {
            kind: ImageKind::Volume,
            key: self.key,
        }
    }
}

/// Serializes members to the text of the label.
pub(crate) fn write(members: &[Member]) -> String {
    let words = members
        .iter()
        .map(|member| format!("{}/{}", member.class, member.key));
    words.collect::<Vec<String>>().join(":")
}

/// Parses the members from the text of the label, in order.
fn read(text: &str) -> Vec<Member> {
    let words = text.split(':').filter_map(|word| word.split_once('/'));
    let member = |(class, key): (&str, &str)| {
        Some(Member {
            class: class.parse().ok()?,
            key: Key::parse(key)?,
        })
    };
    words.filter_map(member).collect()
}

impl LocatedImage {
    /// The members of a group, or the source volumes of a group snapshot, by class and key.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.image
            .label(labels::MEMBERS)
            .map(read)
            .unwrap_or_default()
    }

    /// Refuses a group whose members changed since they were read, which was before it was locked.
    fn check_members_are(&self, before: &[Member]) -> Result<()> {
        if self.members() == before {
            return Ok(());
        }
        Err(Error::new(
            Kind::Busy,
            format!(
                "group {} was changed by another call; repeat the call",
                self.handle
            ),
        ))
    }
}

/// The call for which membership is checked: the specification has a different code in each for a volume that is
/// already in another group.
#[derive(Debug, Clone, Copy)]
enum JoinRule {
    Create,
    Modify,
}

/// All volumes of some classes, read once for each class.
pub(crate) struct Volumes(BTreeMap<Member, LocatedImage>);

impl Operations {
    /// Creates a group. Idempotent: an earlier group of this name is returned.
    ///
    /// # Errors
    /// `Invalid` (also if a member is on another node), `NotFound` (a member), `Conflict`, `Busy`, `NoSpace`,
    /// `Precondition` (a member is in another group).
    pub async fn create_volume_group(
        self: &Arc<Self>,
        request: CreateVolumeGroup,
    ) -> Result<VolumeGroup> {
        let named = parameters::class(&request.parameters)?;
        let members = self.members_of(&request.members, Kind::Invalid)?;
        // Without a class parameter the record is in the class of the first volume.
        let class = match (named, members.first()) {
            (None, Some(first)) => self.classes.find(Some(&first.class)),
            (named, _) => self.classes.find(named.as_ref()),
        };
        let class = class?;
        let kind = ImageKind::Group;
        let id = ImageId {
            kind,
            key: Key::of(kind, &request.name),
        };
        let mut holds = vec![LockMode::Exclusive(id)];
        holds.extend(members.iter().map(|member| LockMode::Shared(member.id())));
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                this.make_group(class, id, request, members).await
            })
            .await
    }

    async fn make_group(
        &self,
        class: Class,
        id: ImageId,
        request: CreateVolumeGroup,
        members: Vec<Member>,
    ) -> Result<VolumeGroup> {
        if let Some(found) = self.named(&class, id).await? {
            found.readable()?;
            let is_same = found.image.label(labels::NAME) == Some(request.name.as_str())
                && !parameters::is_handed_to_another(&found.image.parameters(), &request.parameters)
                && parameters::own(&found.image.parameters())
                    == parameters::own(&request.parameters)
                // A repeated call without volumes matches any membership.
                && (members.is_empty() || found.members() == members);
            if is_same {
                return self.group(found).await;
            }
            return Err(Error::new(
                Kind::Conflict,
                format!(
                    "group {:?} already exists with other parameters or volumes; choose another name",
                    request.name.as_str()
                ),
            ));
        }
        self.classes.check_open(&class)?;
        let _one_at_a_time = trace::waited(Wait::Lock, self.grouping.lock()).await;
        let volumes = self.volumes_of(members.iter()).await?;
        volumes.check(self, &members)?;
        self.check_joins(id, &members, JoinRule::Create).await?;
        let spec = ImageSpec {
            id,
            size: Size::default(),
            labels: Labels::from([
                (labels::NAME.to_owned(), request.name.to_string()),
                (labels::CREATED.to_owned(), labels::now()),
                (
                    labels::PARAMETERS.to_owned(),
                    labels::json(&request.parameters)?,
                ),
                (labels::MEMBERS.to_owned(), write(&members)),
            ]),
            origin: Origin::Blank,
        };
        let image = class.backend.create(&spec).await?.into_inner();
        self.known.insert(&class, id);
        fail::point("create-group.made");
        let handle = self.handle_in(&class, id);
        tracing::info!(group.id = %handle, group.name = %request.name, members = members.len(), "group created");
        let found = LocatedImage {
            handle,
            class,
            image,
        };
        Ok(volumes.group(found))
    }

    /// Replaces the members of a group with these volumes.
    ///
    /// # Errors
    /// `NotFound` (the group or a volume), `Invalid` if a volume is in another group or on another node, `NoSpace` if
    /// there are too many, `Busy`.
    pub async fn modify_group_members(
        self: &Arc<Self>,
        reference: &Reference,
        members: &[Reference],
        parameters: &Map,
    ) -> Result<VolumeGroup> {
        parameters::class(parameters)?;
        let place = self.place(ImageKind::Group, reference).map_err(not_here)?;
        let found = place.find().await?;
        let wanted = self.members_of(members, Kind::Invalid)?;
        found.readable()?;
        let before = found.members();
        if before == wanted {
            return self.group(found).await;
        }
        let new: Vec<Member> = wanted
            .iter()
            .filter(|member| !before.contains(member))
            .cloned()
            .collect();
        let id = found.image.id;
        let mut holds = vec![LockMode::Exclusive(id)];
        // A volume that joins must not be deleted at the same time.
        holds.extend(new.iter().map(|member| LockMode::Shared(member.id())));
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let found = this.find(ImageKind::Group, &found.handle.into()).await?;
                found.check_members_are(&before)?;
                this.set_members(found, new, wanted).await
            })
            .await
    }

    async fn set_members(
        &self,
        mut found: LocatedImage,
        new: Vec<Member>,
        wanted: Vec<Member>,
    ) -> Result<VolumeGroup> {
        let id = found.image.id;
        let _one_at_a_time = trace::waited(Wait::Lock, self.grouping.lock()).await;
        let volumes = self.volumes_of(wanted.iter()).await?;
        volumes.check(self, &new)?;
        self.check_joins(id, &new, JoinRule::Modify).await?;
        let change = LabelChange::set(labels::MEMBERS, write(&wanted));
        let changed = found.class.backend.relabel(id, &change).await?;
        fail::point("modify-group.changed");
        found.image = changed.into_inner();
        tracing::info!(group.id = %found.handle, members = wanted.len(), "members of group changed");
        Ok(volumes.group(found))
    }

    /// Deletes a group. Idempotent: one that does not exist is no error. [`OnGroupDelete`] decides what happens to its
    /// members.
    ///
    /// # Errors
    /// `Precondition` if it has members that must be removed first, or a member that must not be deleted, `InUse`,
    /// `Busy`.
    pub async fn delete_volume_group(self: &Arc<Self>, reference: &Reference) -> Result<()> {
        let place = match self.place(ImageKind::Group, reference) {
            Ok(place) => place,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(not_here(error)),
        };
        let found = match place.find().await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let before = found.members();
        let mut holds = vec![LockMode::Exclusive(found.image.id)];
        if self.settings().on_group_delete == OnGroupDelete::Cascade {
            holds.extend(before.iter().map(|member| LockMode::Exclusive(member.id())));
        }
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let Some(image) = found.class.backend.get(found.image.id).await? else {
                    return Ok(());
                };
                let found = LocatedImage { image, ..found };
                found.readable()?;
                found.check_members_are(&before)?;
                this.let_members_go(&found).await?;
                found.class.backend.delete(found.image.id).await?;
                this.known.remove(&found.class, found.image.id);
                fail::point("delete-group.deleted");
                tracing::info!(group.id = %found.handle, "group deleted");
                Ok(())
            })
            .await
    }

    /// Applies [`OnGroupDelete`] to the members of a group that is about to be deleted.
    async fn let_members_go(self: &Arc<Self>, group: &LocatedImage) -> Result<()> {
        let members = group.members();
        match self.settings().on_group_delete {
            OnGroupDelete::Unlink => return Ok(()),
            OnGroupDelete::Refuse if members.is_empty() => return Ok(()),
            OnGroupDelete::Refuse => {
                return Err(Error::new(
                    Kind::Precondition,
                    format!(
                        "group {} has {} volumes; remove them from it first (onGroupDelete is refuse)",
                        group.handle,
                        members.len()
                    ),
                ));
            }
            OnGroupDelete::Cascade => {}
        }
        for member in &members {
            // Otherwise it would remain without a group.
            self.classes.get(&member.class).ok_or_else(|| {
                Error::new(
                    Kind::Precondition,
                    format!(
                        "group {} has a volume in class {}, which is no longer configured; remove it from the group first",
                        group.handle, member.class
                    ),
                )
            })?;
        }
        let volumes = self.volumes_of(members.iter()).await?;
        // All members are checked before the first one is deleted, under the locks of all.
        for found in volumes.0.values() {
            found.check_deletable()?;
            if found.healthy().is_ok() {
                found.check_unmounted().await?;
                let backend = &found.class.backend;
                backend.check_deletable(found.image.id).await?;
                if !found.goes_to_trash() {
                    backend.check_unbound(found.image.id).await?;
                }
            }
        }
        for found in volumes.0.values() {
            self.delete_found_volume(found).await?;
            fail::point("delete-group.member");
        }
        Ok(())
    }

    /// One group.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get_volume_group(&self, reference: &Reference) -> Result<VolumeGroup> {
        let found = self.find(ImageKind::Group, reference).await;
        self.group(found.map_err(not_here)?).await
    }

    /// Groups in pages.
    ///
    /// # Errors
    /// `StaleToken`.
    pub async fn list_volume_groups(&self, page: &PageRequest) -> Result<Listing<VolumeGroup>> {
        let page = page.cut(self.everything(ImageKind::Group).await?)?;
        let members: Vec<Member> = page
            .entries
            .iter()
            .flat_map(LocatedImage::members)
            .collect();
        let volumes = self.volumes_of(members.iter()).await?;
        Ok(page.map(|found| volumes.group(found)))
    }

    async fn group(&self, found: LocatedImage) -> Result<VolumeGroup> {
        found.readable()?;
        let volumes = self.volumes_of(found.members().iter()).await?;
        Ok(volumes.group(found))
    }

    /// The members that a list of ids names, sorted and without duplicates. One that is on another node is an error of
    /// kind `elsewhere`: the specifications have different codes for it.
    pub(crate) fn members_of(
        &self,
        references: &[Reference],
        elsewhere: Kind,
    ) -> Result<Vec<Member>> {
        let mut members = Vec::with_capacity(references.len());
        for reference in references {
            let place = self.place(ImageKind::Volume, reference);
            let place = place.map_err(|error| match error.kind() {
                Kind::WrongNode => Error::new(
                    elsewhere,
                    format!("{error}; all volumes of a group must be on one node"),
                ),
                _ => error,
            })?;
            members.push(Member::of(&place.handle));
        }
        members.sort_unstable();
        members.dedup();
        if members.len() > MOST_MEMBERS {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "a group has at most {MOST_MEMBERS} volumes, not {}",
                    members.len()
                ),
            ));
        }
        Ok(members)
    }

    /// The existing ones among these volumes. Reads each of their classes once.
    pub(crate) async fn volumes_of(
        &self,
        members: impl Iterator<Item = &Member>,
    ) -> Result<Volumes> {
        let wanted: BTreeMap<&ClassName, Vec<Key>> =
            members.fold(BTreeMap::new(), |mut wanted, member| {
                let keys: &mut Vec<Key> = wanted.entry(&member.class).or_default();
                keys.push(member.key);
                wanted
            });
        let mut volumes = BTreeMap::new();
        for (name, mut keys) in wanted {
            // A class that is configured no longer.
            let Some(class) = self.classes.get(name) else {
                continue;
            };
            keys.sort_unstable();
            let mut images = class.list(ImageKind::Volume).await?;
            images.retain(|image| keys.binary_search(&image.id.key).is_ok());
            for image in images {
                let found = self.found(&class, image);
                volumes.insert(Member::of(&found.handle), found);
            }
        }
        Ok(Volumes(volumes))
    }

    /// Refuses volumes that are in another group than `joined`.
    async fn check_joins(&self, joined: ImageId, new: &[Member], joining: JoinRule) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        for group in self.everything(ImageKind::Group).await? {
            if group.image.id == joined {
                continue;
            }
            if let Some(taken) = group.members().iter().find(|member| new.contains(member)) {
                let kind = match joining {
                    JoinRule::Create => Kind::Precondition,
                    JoinRule::Modify => Kind::Invalid,
                };
                return Err(Error::new(
                    kind,
                    format!(
                        "volume {}/{}/{} is in group {} ({}); remove it from there first",
                        self.settings().node,
                        taken.class,
                        taken.key,
                        group.handle,
                        group.image.label(labels::NAME).unwrap_or_default()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Refuses to delete a volume that is in a group.
    pub(crate) async fn check_in_no_group(&self, volume: &LocatedImage) -> Result<()> {
        let member = Member::of(&volume.handle);
        let list = |class: Class| async move { class.backend.list(ImageKind::Group).await };
        // Another class that cannot be read must not keep this one from serving.
        let others = self.of_each_class_but(&volume.class, list).await;
        let others = others
            .into_iter()
            .filter_map(|(class, groups)| Some((class, groups.ok()?)));
        let own = volume.class.list(ImageKind::Group).await?;
        for (class, groups) in std::iter::once((volume.class.clone(), own)).chain(others) {
            for image in groups {
                let group = self.found(&class, image);
                if group.members().contains(&member) {
                    let name = group.image.label(labels::NAME).unwrap_or_default();
                    return Err(Error::new(
                        Kind::Precondition,
                        format!(
                            "volume {} is in group {} ({name}); remove it from there first",
                            volume.handle, group.handle
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Volumes {
    /// Refuses volumes that do not exist or whose record cannot be read.
    pub(crate) fn check(&self, operations: &Operations, members: &[Member]) -> Result<()> {
        for member in members {
            let Some(found) = self.0.get(member) else {
                return Err(Error::not_found(format!(
                    "volume {}/{}/{} does not exist",
                    operations.settings().node,
                    member.class,
                    member.key
                )));
            };
            found.readable()?;
        }
        Ok(())
    }

    /// One of them.
    pub(crate) fn get(&self, member: &Member) -> Option<&LocatedImage> {
        self.0.get(member)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LocatedImage> {
        self.0.values()
    }

    /// A group with its volumes, existing and lost.
    fn group(&self, group: LocatedImage) -> VolumeGroup {
        let member = |member: Member| match self.0.get(&member) {
            Some(found) => Volume::from(found.clone()),
            None => Volume {
                handle: Handle {
                    node: group.handle.node.clone(),
                    class: member.class,
                    key: member.key,
                },
                size: Size::default(),
                source: None,
                published: None,
                condition: Condition {
                    abnormal: true,
                    message: "volume no longer exists".to_owned(),
                },
            },
        };
        let members = group.members().into_iter().map(member).collect();
        VolumeGroup {
            members,
            handle: group.handle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_they_were_written_and_what_is_none_is_left_out() {
        let key = |last: u32| Key::parse(&format!("00000000-0000-5000-8000-{last:012}")).unwrap();
        let member = |class: &str, last| Member {
            class: class.parse().unwrap(),
            key: key(last),
        };
        let members = vec![member("fast", 1), member("slow", 2)];
        assert_eq!(read(&write(&members)), members);
        assert_eq!(read(&write(&[])), []);
        assert_eq!(read("fast/nothing:x:/:"), []);
    }
}
