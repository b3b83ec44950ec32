//! What the agent has, and whose it says that it is: for what nothing is known of here any more.
//!
//! One list serves all objects that are new at a time; what it says of one of them is asked again before it is believed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use drumlin_crd::{ObjectKey, names};
use drumlin_proto::drumlin::v1::{
    InventoryObject, ListObjectsRequest, ObjectKind, SetOwnerRequest, UnreadableClass,
    inventory_client::InventoryClient,
};
use tokio::{sync::Mutex, time::Instant};
use tonic::{Code, transport::Channel};

use crate::client::{Client, Failure, LIST, PATIENCE, call};

/// So long a list is used: who is new in this time is looked for in one.
const FRESH: Duration = Duration::from_secs(30);

/// What the agent has, by whom it is for.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    objects: HashMap<ObjectKey, Vec<InventoryObject>>,
    by_id: HashMap<String, InventoryObject>,
    unreadable: Vec<UnreadableClass>,
    is_known: bool,
}

/// The list that was made last, and when.
pub(crate) type Cache = Arc<Mutex<Option<(Instant, Arc<Inventory>)>>>;

impl Inventory {
    fn of(objects: Vec<InventoryObject>, unreadable: Vec<UnreadableClass>) -> Self {
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

    /// What was made for, or given to, an object of this name.
    pub(crate) fn named(&self, key: &ObjectKey) -> &[InventoryObject] {
        self.objects.get(key).map_or(&[], Vec::as_slice)
    }

    /// What has this id.
    pub(crate) fn get(&self, id: &str) -> Option<&InventoryObject> {
        self.by_id.get(id)
    }

    /// All there is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &InventoryObject> {
        self.by_id.values()
    }

    /// Whether the agent says at all what it has.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The classes where nobody could look.
    pub(crate) fn names_unreadable(&self) -> impl Iterator<Item = &str> {
        self.unreadable.iter().map(|class| &*class.name)
    }

    /// Where nobody could look, with why.
    pub(crate) fn classes_unreadable(&self) -> impl Iterator<Item = String> {
        let unreadable = self.unreadable.iter();
        unreadable.map(|class| format!("class {}: {}", class.name, class.problem))
    }

    /// A class that could not be read, and why.
    pub(crate) fn first_unreadable(&self) -> Option<(&str, &str)> {
        let first = self.unreadable.first()?;
        Some((&first.name, &first.problem))
    }

    /// Why a class could not be read, if so.
    pub(crate) fn unreadable(&self, class: &str) -> Option<&str> {
        let mut unreadable = self.unreadable.iter();
        let found = unreadable.find(|one| one.name == class)?;
        Some(&found.problem)
    }
}

/// One of the parameters that tell of the owner.
pub(crate) fn label<'a>(object: &'a InventoryObject, key: &str) -> Option<&'a str> {
    object.parameters.get(key).map(String::as_str)
}

/// The object that something was made for, or given to.
pub(crate) fn owner(object: &InventoryObject) -> Option<ObjectKey> {
    let text = |key| label(object, key).map(str::to_owned);
    Some(ObjectKey {
        kind: text(names::OWNER_KIND)?,
        namespace: text(names::OWNER_NAMESPACE)?,
        name: text(names::OWNER_NAME)?,
    })
}

/// What the agent calls a kind.
pub(crate) fn kind_of(kind: &str) -> ObjectKind {
    match kind {
        "Volume" => ObjectKind::Volume,
        "Snapshot" => ObjectKind::Snapshot,
        "VolumeGroup" => ObjectKind::VolumeGroup,
        "GroupSnapshot" => ObjectKind::VolumeGroupSnapshot,
        _ => ObjectKind::Unknown,
    }
}

impl Client {
    /// What the agent has; not older than half a minute. Of an agent that is not ours nothing is known.
    pub(crate) async fn inventory(&self) -> Result<Arc<Inventory>, Failure> {
        let mut cached = self.inventory.lock().await;
        if let Some((made, inventory)) = &*cached
            && made.elapsed() < FRESH
        {
            return Ok(Arc::clone(inventory));
        }
        let inventory = match self.objects(String::new()).await {
            Ok((objects, unreadable)) => Inventory::of(objects, unreadable),
            Err(failure) if failure.code == Code::Unimplemented => Inventory::default(),
            Err(failure) => return Err(failure),
        };
        let inventory = Arc::new(inventory);
        *cached = Some((Instant::now(), Arc::clone(&inventory)));
        Ok(inventory)
    }

    /// What was listed is not so any more.
    pub(crate) async fn forget_inventory(&self) {
        *self.inventory.lock().await = None;
    }

    /// What has an id now.
    pub(crate) async fn object(&self, id: &str) -> Result<Option<InventoryObject>, Failure> {
        let (mut objects, _) = self.objects(id.to_owned()).await?;
        Ok(objects.pop())
    }

    async fn objects(
        &self,
        object_id: String,
    ) -> Result<(Vec<InventoryObject>, Vec<UnreadableClass>), Failure> {
        let mut request = ListObjectsRequest {
            object_id,
            ..ListObjectsRequest::default()
        };
        let mut objects = Vec::new();
        loop {
            let mut client = inventory_client(self.channel());
            let answer = client.list_objects(request.clone());
            let answer = call("ListObjects", LIST, answer).await?;
            objects.extend(answer.objects);
            if answer.next_token.is_empty() {
                return Ok((objects, answer.unreadable));
            }
            request.starting_token = answer.next_token;
        }
    }

    /// Has the agent write down whose something is.
    pub(crate) async fn set_owner(&self, request: SetOwnerRequest) -> Result<(), Failure> {
        let mut client = inventory_client(self.channel());
        let answer = client.set_owner(request);
        call("SetOwner", PATIENCE, answer).await.map(drop)
    }
}

fn inventory_client(channel: Channel) -> InventoryClient<Channel> {
    InventoryClient::new(channel).max_decoding_message_size(64 << 20)
}
