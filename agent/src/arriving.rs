//! Limits on incoming requests: total memory of all requests that are being received, and a timeout for each.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body as _, Frame};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_util::sync::PollSemaphore;
use tonic::{Status, body::Body, codegen::http::Request};

use crate::rpc::late;

/// Timeout for receiving a complete request.
const TIME: Duration = Duration::from_secs(30);
/// Maximum size of a request, in bytes: the default of gRPC.
pub(crate) const LARGEST: usize = 4 << 20;
/// Maximum memory of all incoming requests, in bytes: one of maximum size and many small ones.
const ROOM: usize = 5 << 20;
/// A request of up to this many bytes does not count against the memory limit.
const SMALL: usize = 4 << 10;
/// Length of the prefix of a message (gRPC over HTTP/2, "Length-Prefixed-Message"), in bytes.
const PREFIX: usize = 5;

/// The memory limit of incoming requests.
#[derive(Debug, Clone)]
pub(crate) struct RequestBudget(Arc<Semaphore>);

impl Default for RequestBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM)))
    }
}

impl RequestBudget {
    /// Applies the limits to a request while it is received.
    pub(crate) fn limit(&self, request: Request<Body>) -> Request<Body> {
        request.map(|body| {
            if body.is_end_stream() {
                return body;
            }
            Body::new(Arriving {
                body,
                deadline: Box::pin(sleep(TIME)),
                room: PollSemaphore::new(Arc::clone(&self.0)),
                place: MessagePosition::default(),
                permit: None,
                waiting: None,
            })
        })
    }
}

/// The body of an incoming request.
struct Arriving {
    body: Body,
    deadline: Pin<Box<Sleep>>,
    room: PollSemaphore,
    place: MessagePosition,
    /// The memory that its message has reserved.
    permit: Option<OwnedSemaphorePermit>,
    /// A pending reservation of memory, with the data to be passed on once it is granted.
    waiting: Option<(u32, Frame<Bytes>)>,
}

/// The position of a request within its messages.
#[derive(Debug, Default)]
struct MessagePosition {
    /// The part of a prefix that was received.
    prefix: Vec<u8>,
    /// Number of bytes of the message that are still to be received.
    left: usize,
}

impl MessagePosition {
    /// Advances by these bytes. Returns the length of the largest message that begins in them.
    fn pass(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let mut largest = None;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes.advance(skipped);
            let taken = (PREFIX - self.prefix.len()).min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            self.prefix.extend_from_slice(head);
            bytes = rest;
            if let [_, a, b, c, d] = *self.prefix {
                self.prefix.clear();
                let length = u32::from_be_bytes([a, b, c, d]);
                self.left = usize::try_from(length).unwrap_or(usize::MAX);
                largest = largest.max(Some(self.left));
            }
        }
        largest
    }
}

/// The memory that a message needs.
fn room_for(length: usize) -> Option<u32> {
    // An oversized message is refused before any of it is stored.
    let needed = (SMALL + 1..=LARGEST).contains(&length).then_some(length)?;
    u32::try_from(needed).ok()
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.deadline.as_mut().poll(context).is_ready() {
            (this.permit, this.waiting) = (None, None);
            return Poll::Ready(Some(Err(late(TIME.as_secs()))));
        }
        if this.waiting.is_none() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => {
                    this.permit = None;
                    return Poll::Ready(end);
                }
            };
            let begun = frame.data_ref().and_then(|bytes| this.place.pass(bytes));
            if begun.is_some() {
                // Only one message at a time is assembled.
                this.permit = None;
            }
            match begun.and_then(room_for) {
                Some(room) => this.waiting = Some((room, frame)),
                None => return Poll::Ready(Some(Ok(frame))),
            }
        }
        if let Some((room, _)) = &this.waiting {
            this.permit = ready!(this.room.poll_acquire_many(context, *room));
        }
        Poll::Ready(this.waiting.take().map(|(_, frame)| Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};
    use proptest::prelude::*;
    use tonic::Code;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    /// A request that comes in these parts, and then, if it is to hang, nothing more.
    fn request(parts: Vec<Vec<u8>>, hangs: bool) -> Request<Body> {
        let parts = parts
            .into_iter()
            .map(|part| Ok::<_, Status>(Frame::data(Bytes::from(part))));
        let rest = if hangs {
            stream::pending().boxed()
        } else {
            stream::empty().boxed()
        };
        Request::new(Body::new(StreamBody::new(stream::iter(parts).chain(rest))))
    }

    async fn arrives(room: &RequestBudget, request: Request<Body>) -> Result<usize, Status> {
        let body = room.limit(request).into_body();
        Ok(body.collect().await?.to_bytes().len())
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_arrive_is_unavailable_in_time() {
        let half = vec![message(10)[..7].to_vec()];
        let begun = tokio::time::Instant::now();
        let failed = arrives(&RequestBudget::default(), request(half, true))
            .await
            .unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable);
        assert_eq!(begun.elapsed(), TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn large_ones_wait_for_each_other_and_small_ones_for_nobody() {
        let room = RequestBudget::default();
        let large = || vec![message(LARGEST)[..100].to_vec()];
        let held = tokio::spawn({
            let room = room.clone();
            async move { arrives(&room, request(large(), true)).await }
        });
        tokio::task::yield_now().await;
        let second = arrives(&room, request(vec![message(LARGEST)], false));
        tokio::pin!(second);
        assert!(second.as_mut().now_or_never().is_none());
        let small = arrives(&room, request(vec![message(SMALL)], false)).await;
        assert_eq!(small.unwrap(), PREFIX + SMALL);
        held.abort();
        let _ = held.await;
        assert_eq!(second.await.unwrap(), PREFIX + LARGEST);
        assert_eq!(room.0.available_permits(), ROOM, "all of it is given back");
    }

    proptest! {
        /// Whatever a request is cut into, it is the same, and what is to come is known.
        #[test]
        fn messages_are_followed_through_all_cuts(
            lengths in proptest::collection::vec(0_usize..9000, 1..6),
            cuts in proptest::collection::vec(1_usize..3000, 1..40),
        ) {
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let mut parts = Vec::new();
            let mut rest = &*bytes;
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, after) = rest.split_at((*cut).min(rest.len()));
                parts.push(part.to_vec());
                rest = after;
            }
            let mut place = MessagePosition::default();
            let largest = parts.iter().filter_map(|part| place.pass(part)).max();
            prop_assert_eq!(largest, lengths.iter().copied().max());
            prop_assert_eq!((place.left, place.prefix.len()), (0, 0));
            let room = RequestBudget::default();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let arrived = runtime.unwrap().block_on(arrives(&room, request(parts, false)));
            prop_assert_eq!(arrived.unwrap(), bytes.len());
        }
    }
}
