//! The health of volumes as their records and their storage show it (CSI, `ControllerListVolumeHealth`,
//! `ControllerGetVolumeHealth`), and of the storage itself (`NodeGetStorageHealth`).
//!
//! A volume whose class cannot be read is not healthy, and it is not gone either: it is reported as inaccessible, if it
//! was seen since the agent started.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tracing::Instrument as _;

use crate::ops::{
    Class, Listing, Operations, PageRequest,
    labels::Read,
    lookup::{LocatedImage, not_here},
};
use crate::{
    Kind, Result,
    backend::{Fault, Reason},
    types::{Handle, ImageId, ImageKind, Reference},
};

/// Timeout for reading all classes at once: shorter than the usual deadlines of callers.
const PATIENCE: Duration = Duration::from_secs(5);

/// A volume, and what is wrong with it; nothing if it is healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHealth {
    /// The volume.
    pub handle: Handle,
    /// At most one of each reason.
    pub faults: Vec<Fault>,
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
        let deadline = Instant::now() + PATIENCE;
        let reading: Vec<_> = self
            .classes
            .iter()
            .map(|class| {
                let backend = Arc::clone(&class.backend);
                // In a task of its own, which is not cancelled: a command may be running.
                let read = async move { backend.list(ImageKind::Volume).await };
                tokio::spawn(read.in_current_span())
            })
            .collect();
        let mut all = Vec::new();
        for (class, reading) in self.classes.iter().zip(reading) {
            let why = match timeout_at(deadline, reading).await {
                Ok(Ok(Ok(images))) => {
                    self.known.replace(class, ImageKind::Volume, &images);
                    let images = images.into_iter().map(|image| self.found(class, image));
                    all.extend(images.map(|found| VolumeHealth {
                        faults: found.faults(),
                        handle: found.handle,
                    }));
                    continue;
                }
                Ok(Ok(Err(error))) => error.chain(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => silent(),
            };
            let ids = self.known.of(class, ImageKind::Volume).into_iter();
            all.extend(ids.map(|id| self.inaccessible(class, id, &why)));
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
        let found = timeout_at(Instant::now() + PATIENCE, place.find()).await;
        let why = match found {
            Ok(Ok(found)) => {
                return Ok(VolumeHealth {
                    faults: found.faults(),
                    handle: found.handle,
                });
            }
            Ok(Err(error)) if error.kind() == Kind::NotFound => return Err(error),
            Ok(Err(error)) if !self.known.has(&class, id) => return Err(error),
            Ok(Err(error)) => error.chain(),
            Err(_) => silent(),
        };
        Ok(self.inaccessible(&class, id, &why))
    }

    fn inaccessible(&self, class: &Class, id: ImageId, why: &str) -> VolumeHealth {
        VolumeHealth {
            handle: self.handle_in(class, id),
            faults: vec![Fault::new(
                Reason::ClassUnavailable,
                format!("class {} cannot be read: {why}", class.name),
            )],
        }
    }

    /// What is wrong with the storage of all classes; at most one fault of each reason.
    pub async fn storage_health(&self) -> Vec<Fault> {
        let deadline = Instant::now() + PATIENCE;
        let checking: Vec<_> = self
            .classes
            .iter()
            .map(|class| tokio::spawn(faults_of(class.clone()).in_current_span()))
            .collect();
        let mut by_reason: BTreeMap<Reason, Vec<String>> = BTreeMap::new();
        for (class, checking) in self.classes.iter().zip(checking) {
            let faults = match timeout_at(deadline, checking).await {
                Ok(Ok(faults)) => faults,
                Ok(Err(error)) => {
                    vec![Fault::new(Reason::ClassUnavailable, error.to_string())]
                }
                Err(_) => vec![Fault::new(Reason::ClassUnavailable, silent())],
            };
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

async fn faults_of(class: Class) -> Vec<Fault> {
    match class.backend.check().await {
        Ok(()) => class.backend.faults().await,
        Err(error) => vec![Fault::new(Reason::ClassUnavailable, error.chain())],
    }
}

fn silent() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}
