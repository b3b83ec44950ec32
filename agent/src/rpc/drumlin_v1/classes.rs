//! `drumlin.v1.Classes`: the state of the device classes.

use std::{pin::Pin, time::Duration};

use drumlin_core::{
    Error, Result,
    ops::{ClassState, ClassWatch},
};
use drumlin_proto::drumlin::v1;
use futures::{Stream, stream};
use tonic::{Request, Response, Status};

use super::Front;
use crate::rpc::{csi_v1::convert, respond::answer};

/// The minimum time between two responses, if the caller does not say it.
const USUAL: Duration = Duration::from_secs(5);

type Answers = Pin<Box<dyn Stream<Item = Result<v1::WatchClassesResponse, Status>> + Send>>;

#[tonic::async_trait]
impl v1::classes_server::Classes for Front {
    type WatchClassesStream = Answers;

    async fn watch_classes(
        &self,
        request: Request<v1::WatchClassesRequest>,
    ) -> Result<Response<Answers>, Status> {
        const METHOD: &str = "drumlin.v1.Classes/WatchClasses";
        let seconds = request.into_inner().interval_seconds;
        answer(METHOD, "", async {
            let interval = interval(seconds)?;
            // Who is told of too few classes at the start takes that for an answer: the scheduler for minutes.
            self.operations.check_decided()?;
            Ok(answers(self.operations.watch_classes(interval)))
        })
        .await
    }
}

/// The responses, polled only when the client has read what there was: a client that does not read costs nothing.
fn answers(watch: ClassWatch) -> Answers {
    Box::pin(stream::unfold(watch, |mut watch| async {
        let states = watch.next().await?;
        let classes = states.iter().map(message).collect();
        Some((Ok(v1::WatchClassesResponse { classes }), watch))
    }))
}

fn interval(seconds: i32) -> Result<Duration> {
    match u64::try_from(seconds) {
        Err(_) => Err(Error::invalid(format!(
            "interval_seconds is negative: {seconds}"
        ))),
        Ok(0) => Ok(USUAL),
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
    }
}

fn message(state: &ClassState) -> v1::DeviceClass {
    let (space, capacity) = (state.utilization.space, state.utilization.capacity);
    v1::DeviceClass {
        name: state.name.to_string(),
        kind: state.kind.to_string(),
        default: state.is_default,
        size_bytes: space.size.to_wire(),
        promised_bytes: space.promised.to_wire(),
        available_bytes: capacity.available.to_wire(),
        maximum_volume_bytes: capacity.largest.to_wire(),
        data_percent: percent(space.data_percent),
        metadata_percent: percent(space.metadata_percent),
        volumes: convert::number(state.utilization.volumes),
        ready: state.problem.is_none(),
        message: state.problem.clone().unwrap_or_default(),
        retired: state.is_retired,
    }
}

/// A percentage on the wire, where -1 is an unknown one.
fn percent(percent: Option<u32>) -> i32 {
    percent.map_or(-1, |percent| i32::try_from(percent).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drumlin_proto::drumlin::v1::classes_server::Classes;
    use futures::StreamExt;

    use super::*;
    use crate::fuzzing::operations;

    #[tokio::test]
    async fn a_stream_that_is_dropped_leaves_nothing_and_a_stop_ends_the_others() {
        let operations = operations().unwrap();
        let front = Front::new(Arc::clone(&operations));
        let before = Arc::strong_count(&operations);
        let mut streams = Vec::new();
        for _ in 0..3 {
            let request = Request::new(v1::WatchClassesRequest::default());
            let mut stream = front.watch_classes(request).await.unwrap().into_inner();
            let first = stream.next().await.unwrap().unwrap();
            assert!(!first.classes[0].ready, "{first:?}");
            streams.push(stream);
        }
        assert!(Arc::strong_count(&operations) >= before + 3);
        let mut last = streams.pop().unwrap();
        drop(streams);
        let (next, ()) = tokio::join!(last.next(), operations.shut_down());
        assert!(next.is_none(), "{next:?}");
        drop(last);
        assert_eq!(Arc::strong_count(&operations), before);
    }

    #[test]
    fn an_interval_is_five_seconds_or_what_is_asked_for() {
        assert_eq!(interval(0).unwrap(), USUAL);
        assert_eq!(interval(1).unwrap(), Duration::from_secs(1));
        assert!(interval(i32::MIN).is_err());
    }
}
