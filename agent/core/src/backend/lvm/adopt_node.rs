//! Adoption of disks that came from another node: their volumes become this node's when the administrator configures
//! it.

use std::collections::HashSet;

use drumlin_lvm::{
    command::Command,
    metadata::{GroupMetadata, LogicalVolume},
};

use super::{
    Lvm,
    class::visible,
    name_of,
    tags::{self, Tags},
    temporary_snapshot_of,
};
use crate::{Error, Kind, Result, types::ImageId};

/// A volume of another node, with its tags before and after adoption.
struct Foreign<'a> {
    volume: &'a LogicalVolume,
    before: Tags,
    after: Tags,
}

impl Lvm {
    /// Adopts the volumes of the nodes that this class is configured for, once per process.
    ///
    /// Each volume changes owner in one change of the metadata, so an interrupted adoption continues with the rest.
    ///
    /// # Errors
    /// Those of LVM; volumes that were adopted already stay adopted.
    pub(super) async fn adopt(&self) -> Result<()> {
        if self.settings.adoption.is_none() {
            return Ok(());
        }
        let adopted = self.adopted.get_or_try_init(|| self.adopt_now());
        adopted.await.copied()
    }

    /// As [`Lvm::adopt`], for callers that change nothing.
    pub(super) async fn adopt_first(&self) -> Result<()> {
        if self.settings.adoption.is_none() || self.adopted.initialized() {
            return Ok(());
        }
        self.ready().await
    }

    async fn adopt_now(&self) -> Result<()> {
        let now = self.group.now().await?;
        let foreign = self.foreign(&now);
        let commands = foreign.iter().map(|one| self.adoption(one));
        let commands: Vec<Command> = commands.chain(self.adopt_records(&now)).collect();
        if commands.is_empty() {
            return Ok(());
        }
        self.group.change(commands).await?;
        for Foreign { volume, before, .. } in &foreign {
            tracing::info!(
                volume = %volume.name,
                group = %now.name,
                from = %before.node,
                "volume of another node adopted"
            );
        }
        // Incomplete changes of that node are now recovered by this one.
        self.group.needs_recovery();
        self.group.ready(&self.settings.node).await
    }

    /// The volumes to be adopted.
    fn foreign<'a>(&self, now: &'a GroupMetadata) -> Vec<Foreign<'a>> {
        let Some(adoption) = &self.settings.adoption else {
            return Vec::new();
        };
        let here = &self.settings.node;
        let finished = self.ours(now).filter(|ours| !ours.tags.is_incomplete);
        let taken: HashSet<ImageId> = finished.map(|ours| ours.tags.id).collect();
        let mut found = Vec::new();
        for volume in visible(now) {
            let Some(before) = Tags::read(&volume.tags) else {
                continue;
            };
            let from = adoption.node(&before.node);
            let Some(from) = from.filter(|_| before.class == self.settings.class.as_str()) else {
                continue;
            };
            let why_not = if before.is_newer {
                Some("its tags were written by a newer agent")
            } else if taken.contains(&before.id) && !before.is_incomplete {
                Some("this node already has an image with that id")
            } else {
                None
            };
            if let Some(reason) = why_not {
                tracing::warn!(volume = %volume.name, group = %now.name, from = %from, reason, "volume of another node not adopted");
                continue;
            }
            let mut after = Tags {
                node: here.as_str().to_owned(),
                ..before.clone()
            };
            let change = (adoption.labels)(&before.labels, from, here);
            if let Some(labels) = change.apply(&before.labels) {
                after.labels = labels;
            }
            found.push(Foreign {
                volume,
                before,
                after,
            });
        }
        found
    }

    /// The command that changes the owner of a volume, including every label that names the node.
    fn adoption(
        &self,
        Foreign {
            volume,
            before,
            after,
        }: &Foreign<'_>,
    ) -> Command {
        let (uuid, node) = (volume.uuid.clone(), after.node.clone());
        tags::changed(&before.write(), &after.write())
            .words([self.group.path(&volume.name)])
            .done_when(move |now| {
                let volume = now.volumes.values().find(|volume| volume.uuid == uuid);
                let tags = volume.and_then(|volume| Tags::read(&volume.tags));
                tags.is_some_and(|tags| tags.node == node)
            })
    }

    /// Refuses to create an image whose logical-volume names are used by a foreign volume.
    pub(super) fn check_names(&self, now: &GroupMetadata, id: ImageId) -> Result<()> {
        for name in [name_of(id), temporary_snapshot_of(id)] {
            let Some(volume) = now.volumes.get(&name) else {
                continue;
            };
            let why = match Tags::read(&volume.tags) {
                Some(tags) if tags.id == id && self.tags_of(volume).is_some() => continue,
                Some(tags) if tags.class != self.settings.class.as_str() => {
                    format!(
                        "belongs to class {} on node {}; choose another name, or rename that volume with lvrename",
                        tags.class, tags.node
                    )
                }
                Some(tags) => format!(
                    "belongs to node {node}; set `adoptNode: {node}` in class {class} to adopt that node's volumes, or rename that volume with lvrename",
                    node = tags.node,
                    class = self.settings.class
                ),
                None => "was not created by this agent; rename it with lvrename or remove it with lvremove".to_owned(),
            };
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{id} cannot be created: volume {} already exists and {why}",
                    self.group.path(&name)
                ),
            ));
        }
        Ok(())
    }
}
