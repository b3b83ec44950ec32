//! `drumlin.v1.Trash`: deleted volumes that can be undeleted.

use drumlin_core::{
    Result,
    ops::{Trash, TrashedVolume},
    types::{Name, Reference},
};
use drumlin_proto::drumlin::v1;
use tonic::{Request, Response, Status};

use super::{Front, inventory::unreadable};
use crate::rpc::{csi_v1::convert, respond::answer};

#[tonic::async_trait]
impl v1::trash_server::Trash for Front {
    async fn list_trash(
        &self,
        request: Request<v1::ListTrashRequest>,
    ) -> Result<Response<v1::ListTrashResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Trash/ListTrash";
        let request = request.into_inner();
        answer(METHOD, "", async {
            let page = convert::page(request.max_entries, request.starting_token)?;
            response(self.operations.list_trash(&page).await?)
        })
        .await
    }

    async fn trash_volume(
        &self,
        request: Request<v1::TrashVolumeRequest>,
    ) -> Result<Response<v1::TrashVolumeResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Trash/TrashVolume";
        let id = request.into_inner().volume_id;
        answer(METHOD, id.clone(), async {
            let volume = Reference::parse("volume_id", &id)?;
            self.operations.trash_volume(&volume).await?;
            Ok(v1::TrashVolumeResponse {})
        })
        .await
    }

    async fn undelete_volume(
        &self,
        request: Request<v1::UndeleteVolumeRequest>,
    ) -> Result<Response<v1::UndeleteVolumeResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Trash/UndeleteVolume";
        let request = request.into_inner();
        answer(METHOD, request.trash_id.clone(), async {
            let trashed = Reference::parse("trash_id", &request.trash_id)?;
            let name = (!request.name.is_empty()).then(|| Name::parse("name", &request.name));
            let name = name.transpose()?;
            let volume = self.operations.undelete_volume(&trashed, name).await?;
            Ok(v1::UndeleteVolumeResponse {
                volume_id: volume.handle.to_string(),
            })
        })
        .await
    }

    async fn destroy_trashed_volume(
        &self,
        request: Request<v1::DestroyTrashedVolumeRequest>,
    ) -> Result<Response<v1::DestroyTrashedVolumeResponse>, Status> {
        const METHOD: &str = "drumlin.v1.Trash/DestroyTrashedVolume";
        let id = request.into_inner().trash_id;
        answer(METHOD, id.clone(), async {
            let trashed = Reference::parse("trash_id", &id)?;
            self.operations.destroy_trashed(&trashed).await?;
            Ok(v1::DestroyTrashedVolumeResponse {})
        })
        .await
    }
}

fn response(trash: Trash) -> Result<v1::ListTrashResponse> {
    let volumes: Result<_> = trash.page.entries.into_iter().map(message).collect();
    Ok(v1::ListTrashResponse {
        volumes: volumes?,
        next_token: trash.page.next.unwrap_or_default(),
        unreadable: unreadable(trash.unreadable),
    })
}

fn message(volume: TrashedVolume) -> Result<v1::TrashedVolume> {
    Ok(v1::TrashedVolume {
        trash_id: volume.handle.to_string(),
        name: volume.name,
        parameters: volume.parameters,
        size_bytes: volume.size.to_wire(),
        deletion_time: Some(convert::timestamp(volume.deleted)?),
        expiration_time: Some(convert::timestamp(volume.expires)?),
        problem: volume.problem.unwrap_or_default(),
    })
}
