//! Idempotency: decides whether a repeated create call matches the existing volume (CSI, idempotency).

use crate::ops::{
    labels::{self, Read},
    lookup::LocatedImage,
    parameters,
    volume::CreateVolume,
};
use crate::{Error, Kind, Result};

impl LocatedImage {
    /// Checks that this volume is what `request` asks for.
    ///
    /// # Errors
    /// `Conflict` naming the difference.
    pub(crate) fn answers(&self, request: &CreateVolume) -> Result<()> {
        let differs = |what: String| {
            Err(Error::new(
                Kind::Conflict,
                format!(
                    "volume {:?} already exists with other arguments: {what}",
                    request.name.as_str()
                ),
            ))
        };
        let image = self.readable()?;
        if image.label(labels::NAME) != Some(request.name.as_str()) {
            return differs(format!("its name is {:?}", image.label(labels::NAME)));
        }
        // Without a class in the request any class matches: the default class may have changed since the volume was
        // created.
        let named = parameters::class(&request.parameters)?;
        if named.is_some_and(|named| named != self.class.name) {
            return differs(format!("it is in class {}", self.class.name));
        }
        if !request.size.allows(image.size) {
            return differs(format!("its size is {}", image.size));
        }
        if image.source() != request.source {
            return differs("its volume_content_source differs".to_owned());
        }
        if parameters::is_of_another(&image.parameters(), &request.parameters) {
            return differs(
                "it belongs to an earlier namespace of the same name, or to no namespace"
                    .to_owned(),
            );
        }
        let but_class = |parameters| {
            let mut own = parameters::own(parameters);
            own.remove(parameters::CLASS);
            own
        };
        if but_class(&image.parameters()) != but_class(&request.parameters) {
            return differs("its parameters differ".to_owned());
        }
        if image.mutable() != request.mutable {
            return differs("its mutable_parameters differ".to_owned());
        }
        if !request.topology.is_met_by(&self.handle.node) {
            return differs(format!(
                "it is on node {}, which accessibility_requirements exclude",
                self.handle.node
            ));
        }
        match image.lacks(&request.capabilities) {
            Some(what) => differs(what),
            None => Ok(()),
        }
    }
}
