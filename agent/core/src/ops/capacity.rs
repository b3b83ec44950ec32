//! How much room there is.

use super::{Operations, parameters, volume::check_capabilities};
use crate::{
    Result,
    backend::Capacity,
    host::FileSystem,
    types::{Capability, Map, Size, Topology},
};

/// For what room is asked (CSI, `GetCapacity`).
#[derive(Debug, Clone, Default)]
pub struct CapacityQuery {
    /// How volumes would be used, if that is known.
    pub capabilities: Vec<Capability>,
    /// `class`, and what else a create would send.
    pub parameters: Map,
    /// Where they would have to be.
    pub topology: Option<Topology>,
}

impl Operations {
    /// The room for such volumes, and the smallest one. No room for what could not be made.
    ///
    /// # Errors
    /// `Invalid` naming the parameter; what the class's back end reports.
    pub async fn capacity(&self, query: &CapacityQuery) -> Result<(Capacity, Size)> {
        let name = parameters::class(&query.parameters)?;
        let class = self.classes.find(name.as_ref())?;
        let mut minimum = class.backend.features().await?.sizes.minimum;
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
        Ok((class.backend.capacity().await?, minimum))
    }
}

/// The smallest volume that can have this file system.
pub(super) fn minimum_size(kind: FileSystem) -> Size {
    Size::try_from(kind.minimum_bytes()).unwrap_or_default()
}
