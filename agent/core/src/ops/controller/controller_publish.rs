//! Controller publish: records the node and the access for which a volume may be used (CSI, `ControllerPublishVolume`).

use std::sync::Arc;

use crate::ops::{
    Operations,
    labels::{self, Publication, Read},
    locks::LockMode,
    lookup::not_here,
};
use crate::{
    Error, Kind, Result,
    backend::LabelChange,
    fail,
    host::{
        Access,
        trace::{self, Wait},
    },
    types::{Capability, ImageKind, Map, Reference},
};

/// A request to publish a volume to a node.
#[derive(Debug, Clone)]
pub struct PublishController {
    /// The volume.
    pub volume: Reference,
    /// The `node_id` of the node.
    pub node: String,
    /// The capability with which the node will use it.
    pub capability: Capability,
    /// The access that the node gets.
    pub access: Access,
}

impl Operations {
    /// Records the node and the access for which a volume may be used; enforced by the node when `attach` is set.
    /// Returns the publish context. Idempotent.
    ///
    /// # Errors
    /// `NotFound` for the volume or node, `Conflict` if published with other arguments, `Unsupported`, `Precondition` if
    /// it is published to another node or damaged, `NoSpace` at the limit of the node, `Busy`.
    pub async fn publish_controller(self: &Arc<Self>, request: PublishController) -> Result<Map> {
        crate::ops::volume::check_capabilities(
            "volume_capability",
            std::slice::from_ref(&request.capability),
        )?;
        let place = self
            .place(ImageKind::Volume, &request.volume)
            .map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                let image = found.readable()?;
                found.check_not_on_its_way()?;
                let published = image.publication()?;
                if request.node != this.settings.node.as_str() {
                    if let Some(published) = published {
                        return Err(Error::new(
                            Kind::Precondition,
                            format!(
                                "volume {} is already published to node {}; unpublish it there first",
                                found.handle, published.node
                            ),
                        ));
                    }
                    return Err(Error::not_found(format!(
                        "node {:?} does not have the volume: volume {} is on node {}",
                        request.node, found.handle, this.settings.node
                    )));
                }
                let wanted = Publication::new(&this.settings.node, &request.capability, request.access);
                let lacks = image.lacks(std::slice::from_ref(&request.capability));
                if let Some(published) = published {
                    if published != wanted || lacks.is_some() {
                        return Err(Error::new(
                            Kind::Conflict,
                            format!(
                                "volume {} is already published, {}, {} and with access mode {}; unpublish it first",
                                found.handle,
                                if published.read_only { "read-only" } else { "writable" },
                                if published.block { "as a block device" } else { "mounted" },
                                published.mode
                            ),
                        ));
                    }
                    return Ok(wanted.context());
                }
                found.healthy()?;
                found.supports(std::slice::from_ref(&request.capability))?;
                // Two concurrent calls must not both take the last slot below the limit.
                let _one_at_a_time = trace::waited(Wait::Lock, this.publishing.lock()).await;
                this.check_limit().await?;
                let change = LabelChange::set(labels::PUBLISHED, labels::json(&wanted)?);
                found.class.backend.relabel(image.id, &change).await?;
                fail::point("publish-controller.recorded");
                tracing::info!(volume.id = %found.handle, node = %wanted.node, "volume published to node");
                Ok(wanted.context())
            })
            .await
    }

    async fn check_limit(&self) -> Result<()> {
        let Some(most) = self.settings.max_volumes.filter(|_| self.settings.attach) else {
            return Ok(());
        };
        let mut published = 0;
        for (_, images) in self.lists(ImageKind::Volume).await {
            match images {
                Ok(images) => {
                    published += images.iter().filter(|image| image.is_published()).count();
                }
                // Its volumes are of no use now, and must not keep those of other classes from being used.
                Err(error) if error.kind() == Kind::Silent => {}
                Err(error) => return Err(error),
            }
        }
        if u32::try_from(published).is_ok_and(|published| published < most) {
            return Ok(());
        }
        Err(Error::new(
            Kind::NoSpace,
            format!(
                "node {} already has {published} published volumes; the limit (maxVolumesPerNode) is {most}",
                self.settings.node
            ),
        ))
    }

    /// Removes a publication. Idempotent: a volume that does not exist or is not published there is no error.
    ///
    /// # Errors
    /// `NotFound` for another node's volume, `Busy`.
    pub async fn unpublish_controller(
        self: &Arc<Self>,
        volume: &Reference,
        node: Option<&str>,
    ) -> Result<()> {
        let place = match self.place(ImageKind::Volume, volume) {
            Ok(place) => place,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(not_here(error)),
        };
        if node.is_some_and(|node| node != self.settings.node.as_str()) {
            return Ok(());
        }
        let holds = vec![LockMode::Exclusive(place.id)];
        self.changes
            .run(holds, async move {
                let Some(image) = place.class.backend.get(place.id).await? else {
                    return Ok(());
                };
                if image.is_published() {
                    let change = LabelChange::remove(labels::PUBLISHED);
                    place.class.backend.relabel(place.id, &change).await?;
                    fail::point("unpublish-controller.recorded");
                    tracing::info!(volume.id = %place.handle, "volume unpublished from node");
                }
                Ok(())
            })
            .await
    }
}
