//! Calls on the agent's socket whose messages are known by their descriptors alone.

use bytes::{Buf, BufMut, Bytes};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::Channel,
};

use crate::method::Method;

/// Maximum size of a response, in bytes: a list of all objects of a node.
const RESPONSE: usize = 64 << 20;

/// Sends an encoded request; returns the encoded response.
///
/// # Errors
/// The status of the agent, or of the connection to it.
pub(crate) async fn send(
    channel: Channel,
    method: &Method,
    request: Vec<u8>,
) -> Result<Bytes, Status> {
    let path = format!("/{}/{}", method.service, method.rpc);
    let path = PathAndQuery::try_from(path).map_err(|error| Status::from_error(Box::new(error)))?;
    let mut client = Grpc::new(channel).max_decoding_message_size(RESPONSE);
    client
        .ready()
        .await
        .map_err(|error| Status::from_error(Box::new(error)))?;
    let answer = client.unary(Request::new(request), path, Encoded);
    Ok(answer.await?.into_inner())
}

/// Messages that are encoded already.
#[derive(Debug, Clone, Copy, Default)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Encoded {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
