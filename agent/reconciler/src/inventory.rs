//! The resources of the agent, by their recorded owner: for objects whose state is lost.
//!
//! One cached list serves all objects that are new at the same time; an entry is read again before it is used.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drumlin_crd::{ObjectKey, Quantity, names};
use drumlin_proto::drumlin::v1::{InventoryObject, ObjectKind, UnreadableClass};
use k8s_openapi::jiff::Timestamp;
use tokio::{sync::Mutex, time::Instant};

/// The resources of the agent, by owner.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    objects: HashMap<ObjectKey, Vec<InventoryObject>>,
    by_id: HashMap<String, InventoryObject>,
    unreadable: Vec<UnreadableClass>,
    is_known: bool,
}

/// The cached list, and when it was read.
pub(crate) type Cache = Arc<Mutex<Option<(Instant, Arc<Inventory>)>>>;

impl Inventory {
    pub(crate) fn of(objects: Vec<InventoryObject>, unreadable: Vec<UnreadableClass>) -> Self {
        let mut inventory = Self {
            unreadable,
            is_known: true,
            ..Self::default()
        };
        for object in objects {
            if let Some(key) = owner(&object) {
                let named = inventory.objects.entry(key).or_default();
                named.push(object.clone());
            }
            inventory.by_id.insert(object.object_id.clone(), object);
        }
        inventory
    }

    /// The resources that were created for, or assigned to, an object of this name.
    pub(crate) fn named(&self, key: &ObjectKey) -> &[InventoryObject] {
        self.objects.get(key).map_or(&[], Vec::as_slice)
    }

    /// The resource with this handle.
    pub(crate) fn get(&self, id: &str) -> Option<&InventoryObject> {
        self.by_id.get(id)
    }

    /// All resources.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InventoryObject> {
        self.by_id.values()
    }

    /// True if the agent supports the inventory call.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The names of the classes that could not be read, each with its error.
    pub(crate) fn unreadable_by_name(&self) -> impl Iterator<Item = (String, String)> {
        let unreadable = self.unreadable.iter();
        unreadable.map(|class| (class.name.clone(), class.problem.clone()))
    }

    /// The classes that could not be read, each with its error.
    pub(crate) fn classes_unreadable(&self) -> impl Iterator<Item = String> {
        let unreadable = self.unreadable.iter();
        unreadable.map(|class| format!("class {}: {}", class.name, class.problem))
    }

    /// The first class that could not be read, and its error.
    pub(crate) fn first_unreadable(&self) -> Option<(&str, &str)> {
        let first = self.unreadable.first()?;
        Some((&first.name, &first.problem))
    }

    /// The error of a class that could not be read.
    pub(crate) fn unreadable(&self, class: &str) -> Option<&str> {
        let mut unreadable = self.unreadable.iter();
        let found = unreadable.find(|one| one.name == class)?;
        Some(&found.problem)
    }
}

/// One of the labels that record the owner.
pub(crate) fn label<'a>(object: &'a InventoryObject, key: &str) -> Option<&'a str> {
    object.parameters.get(key).map(String::as_str)
}

/// The object that a resource was created for, or assigned to.
pub(crate) fn owner(object: &InventoryObject) -> Option<ObjectKey> {
    let text = |key| label(object, key).map(str::to_owned);
    Some(ObjectKey {
        kind: text(names::OWNER_KIND)?,
        namespace: text(names::OWNER_NAMESPACE)?,
        name: text(names::OWNER_NAME)?,
    })
}

/// The agent's name of a kind.
pub(crate) fn kind_of(kind: &str) -> ObjectKind {
    match kind {
        "Volume" => ObjectKind::Volume,
        "Snapshot" => ObjectKind::Snapshot,
        "VolumeGroup" => ObjectKind::VolumeGroup,
        "GroupSnapshot" => ObjectKind::VolumeGroupSnapshot,
        _ => ObjectKind::Unknown,
    }
}

/// A timestamp in RFC 3339, as Kubernetes writes it.
pub(crate) fn rfc3339(time: &prost_types::Timestamp) -> Option<String> {
    let seconds = u64::try_from(time.seconds).ok()?;
    let nanoseconds = u32::try_from(time.nanos).ok()?;
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    Timestamp::try_from(time).ok().map(|time| time.to_string())
}

/// Converts a size of the CSI protocol.
pub(crate) fn size(bytes: i64) -> Quantity {
    Quantity::from_bytes(bytes.max(0).unsigned_abs())
}
