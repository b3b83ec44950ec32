//! The PersistentVolumes of the driver, and the event of one whose volume is not on its node.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{ObjectReference, PersistentVolume},
    jiff::Timestamp,
};
use kube::{
    Client, Resource, ResourceExt,
    api::{Api, ListParams},
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use crate::{node_call::CONTROLLER, refusal::Refusal};

/// Number of objects of a page.
const PAGE: u32 = 500;

/// The PersistentVolumes of the driver, by their handles, as the server's store had them.
#[derive(Debug, Default)]
pub(crate) struct PersistentVolumes(BTreeMap<String, KnownVolume>);

/// What is known of a PersistentVolume.
#[derive(Debug)]
pub(crate) struct KnownVolume {
    object: ObjectReference,
    created: Option<Timestamp>,
    is_being_deleted: bool,
}

impl PersistentVolumes {
    /// Lists those of a driver.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the server does not answer.
    pub(crate) async fn list(client: &Client, driver: &str) -> Result<Self, Refusal> {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let mut how = ListParams::default().limit(PAGE);
        let mut all = BTreeMap::new();
        loop {
            let page = volumes.list(&how).await;
            let page = page.map_err(|error| Refusal::unavailable(error.to_string()))?;
            all.extend(page.items.iter().filter_map(|volume| {
                let source = volume.spec.as_ref()?.csi.as_ref()?;
                let handle = source.volume_handle.clone();
                (source.driver == driver).then(|| (handle, KnownVolume::of(volume)))
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => how.continue_token = Some(token),
                None => return Ok(Self(all)),
            }
        }
    }

    /// Returns true if one of them is about the volume with this handle.
    pub(crate) fn have(&self, handle: &str) -> bool {
        self.0.contains_key(handle)
    }

    /// Those of a node that are older than `age`, and are not being deleted, with their handles.
    pub(crate) fn of_node(
        &self,
        node: &str,
        age: Duration,
    ) -> impl Iterator<Item = (&str, &KnownVolume)> {
        let prefix = format!("{node}/");
        let latest = Timestamp::now() - age;
        let from = self.0.range(prefix.clone()..);
        from.take_while(move |(handle, _)| handle.starts_with(&prefix))
            .filter(move |(_, known)| {
                let is_old = known.created.is_some_and(|created| created < latest);
                is_old && !known.is_being_deleted
            })
            .map(|(handle, known)| (handle.as_str(), known))
    }
}

impl KnownVolume {
    fn of(volume: &PersistentVolume) -> Self {
        let created = volume.creation_timestamp().map(|time| time.0);
        Self {
            object: volume.object_ref(&()),
            created,
            is_being_deleted: volume.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Returns true if the server's store still has it, and it is not being deleted. What it is about cannot be changed.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub(crate) async fn is_still_there(&self, client: &Client) -> Result<bool, Refusal> {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let name = self.object.name.as_deref().unwrap_or_default();
        let found = volumes.get_opt(name).await;
        let found = found.map_err(|error| Refusal::unavailable(error.to_string()))?;
        Ok(found.is_some_and(|found| {
            found.uid() == self.object.uid && found.metadata.deletion_timestamp.is_none()
        }))
    }

    /// Publishes the event that there is no such volume on its node.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub(crate) async fn tell_missing(&self, client: &Client, handle: &str) -> Result<(), Refusal> {
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: None,
        };
        let event = Event {
            type_: EventType::Warning,
            reason: "VolumeNotFound".to_owned(),
            note: Some(format!(
                "volume {handle} is not on its node: the disks of the node were replaced, its configuration has the class \
                 no more, or somebody removed the volume there. No pod can use it; if it will not come back, delete the claim"
            )),
            action: "Audit".to_owned(),
            secondary: None,
        };
        let recorder = Recorder::new(client.clone(), reporter);
        let told = recorder.publish(&event, &self.object).await;
        told.map_err(|error| Refusal::unavailable(error.to_string()))
    }
}
