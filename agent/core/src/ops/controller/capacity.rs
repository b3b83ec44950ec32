//! Available capacity.

use crate::ops::{Operations, parameters, volume::check_capabilities};
use crate::{
    Kind, Result,
    backend::Capacity,
    host::FileSystem,
    types::{Capability, Map, Size, Topology},
};

/// A query for available capacity (CSI, `GetCapacity`).
#[derive(Debug, Clone, Default)]
pub struct CapacityQuery {
    /// The capabilities of the volumes to be created, if known.
    pub capabilities: Vec<Capability>,
    /// `class` and the other parameters of the create call.
    pub parameters: Map,
    /// The topology in which the volumes must be accessible.
    pub topology: Option<Topology>,
}

impl Operations {
    /// The capacity available to such volumes, and their minimum size. Zero for volumes that this node cannot create.
    ///
    /// # Errors
    /// `Invalid` naming the parameter; errors of the back end, `Silent` if it does not answer.
    pub async fn capacity(&self, query: &CapacityQuery) -> Result<(Capacity, Size)> {
        let name = parameters::class(&query.parameters)?;
        let class = match self.classes.find(name.as_ref()) {
            Err(error) if error.kind() == Kind::NoSpace => {
                return Ok((Capacity::default(), Size::default()));
            }
            class => class?,
        };
        if self.classes.check_open(&class).is_err() {
            return Ok((Capacity::default(), Size::default()));
        }
        let backend = class.backend.clone();
        let features = class.read(async move { backend.features().await });
        let mut minimum = features.await?.sizes.minimum;
        let here = query
            .topology
            .as_ref()
            .is_none_or(|topology| topology.includes(&self.settings().node));
        let possible = query.capabilities.is_empty()
            || check_capabilities("volume_capabilities", &query.capabilities).is_ok();
        if let Some(kind) = query.capabilities.iter().find_map(Capability::file_system) {
            minimum = minimum.max(minimum_size(kind));
        }
        if !here || !possible {
            return Ok((Capacity::default(), minimum));
        }
        let backend = class.backend.clone();
        let capacity = class.read(async move { backend.capacity().await });
        Ok((capacity.await?, minimum))
    }
}

/// The minimum size of a volume with this file system.
pub(crate) fn minimum_size(kind: FileSystem) -> Size {
    Size::try_from(kind.minimum_bytes()).unwrap_or_default()
}
