//! The calls that read the resources of the agent, and say whose they are.

use std::{sync::Arc, time::Duration};

use drumlin_proto::drumlin::v1::{
    AdoptVolumeRequest, AdoptVolumeResponse, InventoryObject, ListForeignVolumesRequest,
    ListForeignVolumesResponse, ListObjectsRequest, ReleaseVolumeRequest, ReleaseVolumeResponse,
    SetOwnerRequest, UnreadableClass, inventory_client::InventoryClient,
};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    client::{Client, Failure, LIST, PATIENCE, call},
    inventory::Inventory,
    transport::Transport,
};

/// How long a list is cached.
const FRESH: Duration = Duration::from_secs(30);

impl Client {
    /// The inventory, at most half a minute old; empty for CSI drivers other than our agent.
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

    /// Drops the cached list.
    pub(crate) async fn forget_inventory(&self) {
        *self.inventory.lock().await = None;
    }

    /// Reads the resource with this handle, without the cache.
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
            let mut client = inventory_client(self.transport());
            let answer = client.list_objects(request.clone());
            let answer = call("ListObjects", LIST, answer).await?;
            objects.extend(answer.objects);
            if answer.next_token.is_empty() {
                return Ok((objects, answer.unreadable));
            }
            request.starting_token = answer.next_token;
        }
    }

    /// Records the owner of a resource at the agent.
    pub(crate) async fn set_owner(&self, request: SetOwnerRequest) -> Result<(), Failure> {
        let mut client = inventory_client(self.transport());
        let answer = client.set_owner(request);
        call("SetOwner", PATIENCE, answer).await.map(drop)
    }

    /// The volumes of others in the storage of the agent's classes.
    pub(crate) async fn foreign_volumes(&self) -> Result<ListForeignVolumesResponse, Failure> {
        let mut client = inventory_client(self.transport());
        let answer = client.list_foreign_volumes(ListForeignVolumesRequest {});
        call("ListForeignVolumes", LIST, answer).await
    }

    /// Adopts a volume of others, or checks whether it could be.
    pub(crate) async fn adopt_volume(
        &self,
        request: AdoptVolumeRequest,
    ) -> Result<AdoptVolumeResponse, Failure> {
        let mut client = inventory_client(self.transport());
        let answer = client.adopt_volume(request);
        call("AdoptVolume", LIST, answer).await
    }

    /// Hands a volume back to the host, or checks whether it could be.
    pub(crate) async fn release_volume(
        &self,
        request: ReleaseVolumeRequest,
    ) -> Result<ReleaseVolumeResponse, Failure> {
        let mut client = inventory_client(self.transport());
        let answer = client.release_volume(request);
        call("ReleaseVolume", LIST, answer).await
    }
}

fn inventory_client(transport: Transport) -> InventoryClient<Transport> {
    InventoryClient::new(transport).max_decoding_message_size(64 << 20)
}
