//! The health of volumes as their records and their storage show it (CSI, `ControllerListVolumeHealth`,
//! `ControllerGetVolumeHealth`), and of the storage itself (`NodeGetStorageHealth`).
//!
//! A volume whose class cannot be read is not healthy, and it is not gone either: it is reported as inaccessible, if it
//! was seen since the agent started.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::ops::{
    Class, Listing, Operations, PageRequest,
    all_classes::{PATIENCE, answer, begin},
    labels::Read,
    lookup::{LocatedImage, not_here},
};
use crate::{
    Error, Kind, Result,
    backend::{Fault, Reason},
    types::{Handle, ImageId, ImageKind, Reference},
};

/// A volume, and what is wrong with it; nothing if it is healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHealth {
    /// The volume.
    pub handle: Handle,
    /// At most one of each reason.
    pub faults: Vec<Fault>,
}

impl From<LocatedImage> for VolumeHealth {
    fn from(found: LocatedImage) -> Self {
        Self {
            faults: found.faults(),
            handle: found.handle,
        }
    }
}

impl LocatedImage {
    /// What is wrong with the image, as its record and its storage show it.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let rollback = self.check_not_on_its_way().err();
        let rollback =
            rollback.map(|error| Fault::new(Reason::RollbackInProgress, error.to_string()));
        let record = self.image.publication().err();
        let record = record.map(|error| Fault::new(Reason::RecordUnreadable, error.to_string()));
        let health = self.image.health.fault().cloned();
        once_each(rollback.into_iter().chain(record).chain(health))
    }
}

/// The first fault of each reason.
pub(crate) fn once_each(faults: impl IntoIterator<Item = Fault>) -> Vec<Fault> {
    let mut kept: Vec<Fault> = Vec::new();
    for fault in faults {
        if !kept.iter().any(|known| known.reason == fault.reason) {
            kept.push(fault);
        }
    }
    kept
}

impl Operations {
    /// The volumes with a fault, in pages. Healthy ones are left out.
    ///
    /// # Errors
    /// `StaleToken`.
    pub async fn list_volume_health(&self, page: &PageRequest) -> Result<Listing<VolumeHealth>> {
        let list = |class: Class| async move { class.backend.list(ImageKind::Volume).await };
        let mut all = Vec::new();
        for (class, images) in self.of_each_class(list).await {
            match images {
                Ok(images) => {
                    self.known.replace(&class, ImageKind::Volume, &images);
                    let images = images.into_iter().map(|image| self.found(&class, image));
                    all.extend(images.map(VolumeHealth::from));
                }
                Err(error) => {
                    let ids = self.known.of(&class, ImageKind::Volume).into_iter();
                    all.extend(ids.map(|id| self.inaccessible(&class, id, &error)));
                }
            }
        }
        all.retain(|volume| !volume.faults.is_empty());
        page.cut_by(all, |volume| &volume.handle)
    }

    /// The health of one volume.
    ///
    /// # Errors
    /// `NotFound`; errors of its class, if that cannot be read and the volume is not known.
    pub async fn volume_health(&self, reference: &Reference) -> Result<VolumeHealth> {
        let place = self.place(ImageKind::Volume, reference).map_err(not_here)?;
        let (class, id) = (place.class.clone(), place.id);
        let own = class.clone();
        let reading = begin(async move { own.read(place.find()).await });
        match answer(reading, Instant::now() + PATIENCE).await {
            Ok(found) => Ok(found.into()),
            Err(error) if error.kind() != Kind::NotFound && self.known.has(&class, id) => {
                Ok(self.inaccessible(&class, id, &error))
            }
            Err(error) => Err(error),
        }
    }

    fn inaccessible(&self, class: &Class, id: ImageId, error: &Error) -> VolumeHealth {
        VolumeHealth {
            handle: self.handle_in(class, id),
            faults: vec![Fault::new(
                Reason::ClassUnavailable,
                format!("class {} cannot be read: {}", class.name, error.chain()),
            )],
        }
    }

    /// What is wrong with the storage of all classes; at most one fault of each reason.
    pub async fn storage_health(&self) -> Vec<Fault> {
        let check = |class: Class| async move {
            class.backend.check().await?;
            Ok(class.backend.faults().await)
        };
        let mut by_reason: BTreeMap<Reason, Vec<String>> = BTreeMap::new();
        for (class, faults) in self.of_each_class(check).await {
            let faults = faults
                .unwrap_or_else(|error| vec![Fault::new(Reason::ClassUnavailable, error.chain())]);
            for fault in faults {
                let messages = by_reason.entry(fault.reason).or_default();
                messages.push(format!("class {}: {}", class.name, fault.message));
            }
        }
        let by_reason = by_reason.into_iter();
        by_reason
            .map(|(reason, messages)| Fault::new(reason, messages.join("; ")))
            .collect()
    }
}
