//! Records of groups: labels without bytes, stored as tags of the LVM volume group, because one commit changes the
//! tags of only one object.
//!
//! The form is `drumlin:<key>:<rest>`, where `drumlin.<rest>` would be the tag of a logical volume.

use std::collections::BTreeMap;

use drumlin_lvm::{command::Command, metadata::GroupMetadata};

use super::{
    Change, Health, Image, ImageSpec, LabelChange, Lvm,
    tags::{OURS, Tags, wrong},
};
use crate::{
    Error, Kind, Result, fail,
    types::{ImageId, ImageKind, Size},
};

/// The prefix of the agent's tags of a volume group.
const RECORD: &str = "drumlin:";

/// The groups recorded in a volume group's tags, of all classes and nodes.
fn records(now: &GroupMetadata) -> impl Iterator<Item = Tags> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for tag in &now.tags {
        if let Some((key, rest)) = tag.strip_prefix(RECORD).and_then(|tag| tag.split_once(':')) {
            let tags = found.entry(key).or_default();
            tags.push(format!("{OURS}{rest}"));
        }
    }
    let whole = |(key, tags): (&str, Vec<String>)| {
        let tags = Tags::read(&tags)?;
        (!tags.id.kind.has_bytes() && tags.id.key.to_string() == key).then_some(tags)
    };
    found.into_iter().filter_map(whole)
}

/// Those tags of a volume group that are of a record and that cannot be parsed, or whose record is not whole.
pub(super) fn wrong_records(now: &GroupMetadata) -> Vec<&str> {
    let whole: Vec<String> = records(now).map(|tags| tags.id.key.to_string()).collect();
    let mut found = Vec::new();
    for tag in &now.tags {
        let Some(rest) = tag.strip_prefix(RECORD) else {
            continue;
        };
        let parsed = rest.split_once(':').is_some_and(|(key, rest)| {
            let tag = format!("{OURS}{rest}");
            whole.iter().any(|known| known == key) && wrong(&[tag]).is_empty()
        });
        if !parsed {
            found.push(tag.as_str());
        }
    }
    found
}

/// The tags of a group.
fn write(tags: &Tags) -> Vec<String> {
    let own = tags.write().into_iter();
    let rest = own.filter_map(|tag| tag.strip_prefix(OURS).map(str::to_owned));
    rest.map(|rest| format!("{RECORD}{}:{rest}", tags.id.key))
        .collect()
}

/// A group as callers of the back end see it.
fn image(tags: Tags) -> Image {
    Image {
        id: tags.id,
        size: Size::default(),
        health: if tags.is_newer {
            Health::unreadable("its tags were written by a newer agent; upgrade this agent")
        } else {
            Health::Good
        },
        labels: tags.labels,
    }
}

impl Lvm {
    fn is_ours(&self, tags: &Tags) -> bool {
        tags.class == self.settings.class.as_str() && tags.node == self.settings.node.as_str()
    }

    /// All groups of a kind in this class.
    pub(super) async fn list_records(&self, kind: ImageKind) -> Result<Vec<Image>> {
        let now = self.group.now().await?;
        let ours = records(&now).filter(|tags| tags.id.kind == kind && self.is_ours(tags));
        Ok(ours.map(image).collect())
    }

    fn record(&self, now: &GroupMetadata, id: ImageId) -> Option<Tags> {
        records(now).find(|tags| tags.id == id && self.is_ours(tags))
    }

    /// One group of this class.
    pub(super) async fn get_record(&self, id: ImageId) -> Result<Option<Image>> {
        let now = self.group.now().await?;
        Ok(self.record(&now, id).map(image))
    }

    /// Records a group, in one commit.
    pub(super) async fn create_record(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        let now = self.group.now().await?;
        if let Some(found) = self.record(&now, spec.id) {
            return Ok(Change::Already(image(found)));
        }
        if let Some(other) = records(&now).find(|tags| tags.id.key == spec.id.key) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{id} cannot be created: volume group {name} already has a record of it for class {class} on node {node}; set `adoptNode: {node}` in that class to adopt that node's groups, or choose another name",
                    id = spec.id,
                    name = now.name,
                    class = other.class,
                    node = other.node
                ),
            ));
        }
        Self::check_records(&now)?;
        let tags = self.tags(spec);
        self.replace(spec.id, &[], Some(&tags)).await?;
        fail::point("lvm.group.made");
        Ok(Change::Made(image(tags)))
    }

    /// Replaces the labels of a group, in one commit.
    pub(super) async fn relabel_record(
        &self,
        id: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>> {
        let now = self.group.now().await?;
        let found = self.record(&now, id);
        let mut tags = found.ok_or_else(|| Error::not_found(format!("{id} does not exist")))?;
        let before = write(&tags);
        match change.apply(&tags.labels) {
            None => return Ok(Change::Already(image(tags))),
            Some(_) if tags.is_newer => return Err(newer(id)),
            Some(labels) => tags.labels = labels,
        }
        self.replace(id, &before, Some(&tags)).await?;
        fail::point("lvm.group.relabelled");
        Ok(Change::Made(image(tags)))
    }

    /// Removes the record of a group, in one commit.
    pub(super) async fn delete_record(&self, id: ImageId) -> Result<Change<()>> {
        let now = self.group.now().await?;
        let Some(tags) = self.record(&now, id) else {
            return Ok(Change::Already(()));
        };
        if tags.is_newer {
            return Err(newer(id));
        }
        self.replace(id, &write(&tags), None).await?;
        fail::point("lvm.group.deleted");
        Ok(Change::Made(()))
    }

    /// The commands that adopt groups of another node.
    pub(super) fn adopt_records(&self, now: &GroupMetadata) -> Vec<Command> {
        let Some(adoption) = &self.settings.adoption else {
            return Vec::new();
        };
        let is_foreign = |tags: &Tags| {
            let nodes = &mut adoption.nodes.iter();
            tags.class == self.settings.class.as_str()
                && !tags.is_newer
                && nodes.any(|node| node.as_str() == tags.node)
        };
        let adopt = |before: Tags| {
            let node = self.settings.node.as_str().to_owned();
            let after = Tags {
                node,
                ..before.clone()
            };
            self.replacement(before.id, &write(&before), Some(&after))
        };
        records(now).filter(is_foreign).map(adopt).collect()
    }

    async fn replace(&self, id: ImageId, before: &[String], after: Option<&Tags>) -> Result<()> {
        let command = self.replacement(id, before, after);
        self.group.change(vec![command]).await
    }

    /// The command that replaces the tags of a group; none removes them.
    fn replacement(&self, id: ImageId, before: &[String], after: Option<&Tags>) -> Command {
        let new = after.map(write).unwrap_or_default();
        let added = new.iter().filter(|tag| !before.contains(tag)).cloned();
        let removed = before.iter().filter(|tag| !new.contains(tag));
        let after = after.cloned();
        Command::new("vgchange")
            .add_tags(added)
            .words(removed.flat_map(|tag| ["--deltag".to_owned(), tag.clone()]))
            .words([self.group.name.clone()])
            .done_when(move |now| records(now).find(|tags| tags.id == id) == after)
    }
}

fn newer(id: ImageId) -> Error {
    Error::new(
        Kind::Precondition,
        format!(
            "{id} cannot be changed: its tags were written by a newer agent; upgrade this agent"
        ),
    )
}
