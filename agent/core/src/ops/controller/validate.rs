//! Validation: whether an existing volume is what a caller takes it for (CSI, `ValidateVolumeCapabilities`).

use crate::ops::{
    Operations,
    labels::Read,
    lookup::{LocatedImage, not_here},
    mutable_parameters, parameters,
    volume::check_capabilities,
};
use crate::{
    Result,
    types::{Capability, ImageKind, Map, Reference},
};

/// What a caller takes a volume for.
#[derive(Debug, Clone)]
pub struct ValidateVolume {
    /// The volume.
    pub volume: Reference,
    /// All capabilities that it must support, or why one cannot be supported.
    pub capabilities: Result<Vec<Capability>, String>,
    /// The parameters of its creation; empty for any.
    pub parameters: Map,
    /// Its mutable parameters as they are now; empty for any.
    pub mutable: Map,
}

impl Operations {
    /// Checks that a volume is what the request takes it for. Returns the reason if it is not.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn validate_volume(&self, request: &ValidateVolume) -> Result<Option<String>> {
        let found = self.find(ImageKind::Volume, &request.volume).await;
        let found = found.map_err(not_here)?;
        let capabilities = match &request.capabilities {
            Ok(capabilities) => capabilities,
            Err(why) => return Ok(Some(why.clone())),
        };
        if let Err(error) = check_capabilities("volume_capabilities", capabilities) {
            return Ok(Some(error.to_string()));
        }
        let lacks = found.image.lacks(capabilities);
        let differs = lacks.or_else(|| found.differs_from(&request.parameters));
        Ok(differs.or_else(|| found.differs_now(&request.mutable)))
    }
}

impl LocatedImage {
    /// How the volume differs from what `parameters` create, if any are given.
    fn differs_from(&self, parameters: &Map) -> Option<String> {
        let named = match parameters::class(parameters) {
            Ok(named) => named?,
            Err(error) => return Some(error.to_string()),
        };
        (named != self.class.name).then(|| {
            format!(
                "parameters.class is {named}, but the volume is in class {}",
                self.class.name
            )
        })
    }

    /// How the volume differs from the mutable parameters, if any are given.
    fn differs_now(&self, mutable: &Map) -> Option<String> {
        if let Err(error) = mutable_parameters::check(mutable) {
            return Some(error.to_string());
        }
        let change = mutable_parameters::change(mutable);
        change
            .apply(&self.image.labels)
            .map(|_| "mutable_parameters differ from those that the volume has now".to_owned())
    }
}
