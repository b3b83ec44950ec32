//! `drumlin.v1.Inventory`: all objects and their owners.

use drumlin_core::{
    Error, Result,
    ops::{Inventory, Listing, Object},
    types::{ClassName, Handle, ImageKind, Reference},
};
use drumlin_proto::drumlin::v1::{self, ObjectKind};
use tonic::{Request, Response, Status};

use super::{Front, foreign};
use crate::rpc::{csi_v1::convert, respond::answer};

#[tonic::async_trait]
impl v1::inventory_server::Inventory for Front {
    async fn list_objects(
        &self,
        request: Request<v1::ListObjectsRequest>,
    ) -> Result<Response<v1::ListObjectsResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Inventory/ListObjects";
        let request = request.into_inner();
        let id = request.object_id.clone();
        answer(METHOD, id, async {
            let page = convert::page(request.max_entries, request.starting_token)?;
            if request.object_id.is_empty() {
                return response(self.operations.list_objects(&page).await?);
            }
            let reference = Reference::parse("object_id", &request.object_id)?;
            let found = self.operations.get_object(&reference).await?;
            response(Inventory {
                page: Listing {
                    entries: found.into_iter().collect(),
                    next: None,
                },
                unreadable: Vec::new(),
            })
        })
        .await
    }

    async fn set_owner(
        &self,
        request: Request<v1::SetOwnerRequest>,
    ) -> Result<Response<v1::SetOwnerResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Inventory/SetOwner";
        let request = request.into_inner();
        let id = request.object_id.clone();
        answer(METHOD, id, async {
            let kind = kind(request.kind)?;
            let reference = Reference::parse("object_id", &request.object_id)?;
            self.operations
                .set_owner(kind, &reference, request.owner)
                .await?;
            Ok(v1::SetOwnerResponse {})
        })
        .await
    }

    async fn delete_blank_volume(
        &self,
        request: Request<v1::DeleteBlankVolumeRequest>,
    ) -> Result<Response<v1::DeleteBlankVolumeResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Inventory/DeleteBlankVolume";
        let id = request.into_inner().volume_id;
        answer(METHOD, id.clone(), async {
            let volume = Reference::parse("volume_id", &id)?;
            self.operations.delete_blank_volume(&volume).await?;
            Ok(v1::DeleteBlankVolumeResponse {})
        })
        .await
    }

    async fn list_foreign_volumes(
        &self,
        _: Request<v1::ListForeignVolumesRequest>,
    ) -> Result<Response<v1::ListForeignVolumesResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Inventory/ListForeignVolumes";
        answer(METHOD, String::new(), async {
            let list = self.operations.list_foreign().await?;
            Ok(v1::ListForeignVolumesResponse {
                volumes: list.volumes.into_iter().map(foreign::message).collect(),
                unreadable: unreadable(list.unreadable),
            })
        })
        .await
    }

    async fn adopt_volume(
        &self,
        request: Request<v1::AdoptVolumeRequest>,
    ) -> Result<Response<v1::AdoptVolumeResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Inventory/AdoptVolume";
        let request = request.into_inner();
        answer(METHOD, request.source.clone(), async {
            let request = foreign::adoption(request)?;
            let adopted = self.operations.adopt_volume(request).await?;
            Ok(v1::AdoptVolumeResponse {
                volume_id: adopted.handle.to_string(),
                volume: Some(foreign::message(adopted.foreign)),
            })
        })
        .await
    }

    async fn release_volume(
        &self,
        request: Request<v1::ReleaseVolumeRequest>,
    ) -> Result<Response<v1::ReleaseVolumeResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Inventory/ReleaseVolume";
        let request = request.into_inner();
        answer(METHOD, request.volume_id.clone(), async {
            let request = foreign::release(&request)?;
            let released = self.operations.release_volume(request).await?;
            Ok(v1::ReleaseVolumeResponse {
                source: released.source,
                mount_paths: released.mounts,
            })
        })
        .await
    }
}

fn kind(number: i32) -> Result<ImageKind> {
    match ObjectKind::try_from(number) {
        Ok(ObjectKind::Volume) => Ok(ImageKind::Volume),
        Ok(ObjectKind::Snapshot) => Ok(ImageKind::Snapshot),
        Ok(ObjectKind::VolumeGroup) => Ok(ImageKind::Group),
        Ok(ObjectKind::VolumeGroupSnapshot) => Ok(ImageKind::GroupSnapshot),
        Ok(ObjectKind::Unknown) => Err(Error::invalid("kind is missing")),
        Err(_) => Err(Error::invalid(format!("kind: {number} is unknown"))),
    }
}

fn response(inventory: Inventory) -> Result<v1::ListObjectsResponse> {
    let objects: Result<_> = inventory.page.entries.into_iter().map(message).collect();
    Ok(v1::ListObjectsResponse {
        objects: objects?,
        next_token: inventory.page.next.unwrap_or_default(),
        unreadable: unreadable(inventory.unreadable),
    })
}

/// The classes that could not be read.
pub(super) fn unreadable(classes: Vec<(ClassName, String)>) -> Vec<v1::UnreadableClass> {
    let classes = classes.into_iter();
    classes
        .map(|(name, problem)| v1::UnreadableClass {
            name: name.to_string(),
            problem,
        })
        .collect()
}

fn message(object: Object) -> Result<v1::InventoryObject> {
    let kind = match object.kind {
        ImageKind::Volume => ObjectKind::Volume,
        ImageKind::Snapshot => ObjectKind::Snapshot,
        ImageKind::Group => ObjectKind::VolumeGroup,
        ImageKind::GroupSnapshot => ObjectKind::VolumeGroupSnapshot,
        // The inventory does not list it.
        ImageKind::Trash => ObjectKind::Unknown,
    };
    let text = |handle: &Handle| handle.to_string();
    Ok(v1::InventoryObject {
        kind: kind.into(),
        object_id: text(&object.handle),
        name: object.name,
        parameters: object.parameters,
        size_bytes: object.size.to_wire(),
        creation_time: Some(convert::timestamp(object.created)?),
        volume_ids: object.volumes.iter().map(text).collect(),
        group_snapshot_id: object.group_snapshot.as_ref().map(text).unwrap_or_default(),
        problem: object.problem.unwrap_or_default(),
        blank: object.is_blank,
        to_trash: object.goes_to_trash,
        before_rollback_to: object
            .before_rollback_to
            .as_ref()
            .map(text)
            .unwrap_or_default(),
        uuid: object.uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
    })
}
