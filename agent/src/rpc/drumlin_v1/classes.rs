//! `drumlin.v1.Classes`: the state of the device classes.

use std::pin::Pin;

use drumlin_core::{Error, ops::ClassState};
use drumlin_proto::drumlin::v1;
use futures::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};

use super::Front;
use crate::rpc::{csi_v1::convert, respond::answer};

#[tonic::async_trait]
impl v1::classes_server::Classes for Front {
    type WatchClassesStream =
        Pin<Box<dyn Stream<Item = Result<v1::WatchClassesResponse, Status>> + Send>>;

    async fn watch_classes(
        &self,
        request: Request<v1::WatchClassesRequest>,
    ) -> Result<Response<Self::WatchClassesStream>, Status> {
        const METHOD: &str = "drumlin.v1.Classes/WatchClasses";
        let seconds = request.into_inner().interval_seconds;
        answer(METHOD, "", async {
            if seconds < 0 {
                return Err(Error::invalid(format!(
                    "interval_seconds is negative: {seconds}"
                )));
            }
            let states = self.operations.class_states().await;
            let first = v1::WatchClassesResponse {
                classes: states.into_iter().map(message).collect(),
            };
            let answers = stream::once(async { Ok(first) }).chain(stream::pending());
            Ok(Box::pin(answers) as Self::WatchClassesStream)
        })
        .await
    }
}

fn message(state: ClassState) -> v1::DeviceClass {
    v1::DeviceClass {
        name: state.name.to_string(),
        default: state.is_default,
        promised_bytes: state.promised.to_wire(),
        available_bytes: state.capacity.available.to_wire(),
        maximum_volume_bytes: state.capacity.largest.to_wire(),
        data_percent: -1,
        metadata_percent: -1,
        volumes: convert::number(state.volumes),
        ready: state.problem.is_none(),
        message: state.problem.unwrap_or_default(),
        ..v1::DeviceClass::default()
    }
}
