//! `csi.v1.SnapshotMetadata`: which blocks of a snapshot hold data, and which differ from an earlier one.

use std::{ops::Range, pin::Pin};

use drumlin_core::{
    Error, Result,
    ops::{ChangedRanges, ChangedRequest},
    types::Reference,
};
use drumlin_proto::csi::v1::{self, BlockMetadata, BlockMetadataType};
use futures::{Stream, stream};
use tonic::{Request, Response, Status};

use super::{Front, convert};
use crate::rpc::{respond::answer, status::status};

/// Ranges of a message, if the caller does not say how many.
const USUAL: usize = 1024;
/// And at most: some 80 KiB.
const MOST: usize = 4096;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for Front {
    type GetMetadataAllocatedStream = Answers<v1::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Answers<v1::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        const METHOD: &str = "csi.v1.SnapshotMetadata/GetMetadataAllocated";
        let request = request.into_inner();
        answer(METHOD, &request.snapshot_id, async {
            let most = most(request.max_results)?;
            let wanted = ChangedRequest {
                base: None,
                target: Reference::parse("snapshot_id", &request.snapshot_id)?,
                start: request.starting_offset,
            };
            let found = self.operations.changed_blocks(wanted).await?;
            let answer = |volume_capacity_bytes, block_metadata| v1::GetMetadataAllocatedResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes,
                block_metadata,
            };
            Ok(answers(found, most, answer))
        })
        .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        const METHOD: &str = "csi.v1.SnapshotMetadata/GetMetadataDelta";
        let request = request.into_inner();
        answer(METHOD, &request.target_snapshot_id, async {
            let most = most(request.max_results)?;
            let wanted = ChangedRequest {
                base: Some(Reference::parse(
                    "base_snapshot_id",
                    &request.base_snapshot_id,
                )?),
                target: Reference::parse("target_snapshot_id", &request.target_snapshot_id)?,
                start: request.starting_offset,
            };
            let found = self.operations.changed_blocks(wanted).await?;
            let answer = |volume_capacity_bytes, block_metadata| v1::GetMetadataDeltaResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes,
                block_metadata,
            };
            Ok(answers(found, most, answer))
        })
        .await
    }
}

/// The number of ranges of a message.
fn most(max_results: i32) -> Result<usize> {
    match usize::try_from(max_results) {
        Err(_) => Err(Error::invalid(format!(
            "max_results is negative: {max_results}"
        ))),
        Ok(0) => Ok(USUAL),
        Ok(most) => Ok(most.min(MOST)),
    }
}

/// The stream of answers. It ends without an error after the last range alone; without any range it has one answer, for
/// the capacity.
fn answers<T, F>(found: ChangedRanges, most: usize, answer: F) -> Answers<T>
where
    T: Send + 'static,
    F: Fn(i64, Vec<BlockMetadata>) -> T + Send + 'static,
{
    let capacity = found.size.to_wire();
    let begun = Some((found, answer, true));
    Box::pin(stream::try_unfold(begun, move |state| async move {
        let Some((mut found, answer, is_first)) = state else {
            return Ok(None);
        };
        let mut ranges = Vec::new();
        let next = found.next(&mut ranges, most).await;
        next.map_err(|error| status(&error))?;
        let is_over = ranges.is_empty();
        if is_over && !is_first {
            return Ok(None);
        }
        let message = answer(capacity, ranges.into_iter().map(block).collect());
        Ok(Some((
            message,
            (!is_over).then_some((found, answer, false)),
        )))
    }))
}

fn block(range: Range<u64>) -> BlockMetadata {
    BlockMetadata {
        byte_offset: convert::number(range.start),
        size_bytes: convert::number(range.end - range.start),
    }
}
