use std::convert::Infallible;

use drumlin_proto::csi::v1::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, Volume,
    controller_client::ControllerClient,
};
use tower::service_fn;

use super::*;

/// A controller that creates what has a size below 10, and deletes everything.
async fn controller(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    use prost::Message;
    let method = request.uri().path().to_owned();
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    if method.ends_with("DeleteVolume") {
        return Ok(messages(wire::frame(&[]), succeeded()));
    }
    let request = CreateVolumeRequest::decode(&bytes[5..]).unwrap();
    let capacity_bytes = request.capacity_range.unwrap_or_default().required_bytes;
    if capacity_bytes >= 10 {
        return Ok(mutated(Code::OutOfRange, "capacity_range is too large"));
    }
    let answer = CreateVolumeResponse {
        volume: Some(Volume {
            capacity_bytes,
            volume_id: request.name,
            ..Volume::default()
        }),
    };
    Ok(messages(wire::frame(&answer.encode_to_vec()), succeeded()))
}

/// A client of that controller, mutated so.
fn client(
    change: &str,
) -> ControllerClient<impl tonic::client::GrpcService<Body, ResponseBody = Body> + Clone> {
    let mutation = Mutation::parse(&format!("csi.v1.Controller/CreateVolume {change}")).unwrap();
    let layer = MutationLayer(Arc::new(Mutating {
        mutation,
        answered: Mutex::default(),
    }));
    ControllerClient::new(layer.layer(service_fn(controller)))
}

fn create(size: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: "v".to_owned(),
        capacity_range: Some(drumlin_proto::csi::v1::CapacityRange {
            required_bytes: size,
            limit_bytes: 0,
        }),
        ..CreateVolumeRequest::default()
    }
}

/// What becomes of a call that creates a volume of this size.
async fn outcome(change: &str, size: i64) -> Result<Option<Volume>, Code> {
    let answer = client(change).create_volume(create(size)).await;
    answer
        .map(|answer| answer.into_inner().volume)
        .map_err(|status| status.code())
}

fn made(id: &str, size: i64) -> Volume {
    Volume {
        capacity_bytes: size,
        volume_id: id.to_owned(),
        ..Volume::default()
    }
}

#[tokio::test]
async fn each_change_is_what_a_caller_sees() {
    for (change, size, expected) in [
        ("code OUT_OF_RANGE ABORTED", 10, Err(Code::Aborted)),
        ("code OUT_OF_RANGE OK", 10, Ok(None)),
        ("code OUT_OF_RANGE OK too large", 10, Ok(None)),
        (
            "code OUT_OF_RANGE OK limit_bytes",
            10,
            Err(Code::OutOfRange),
        ),
        ("code ABORTED OK", 10, Err(Code::OutOfRange)),
        ("code OUT_OF_RANGE OK", 1, Ok(Some(made("v", 1)))),
        ("fail INTERNAL", 1, Err(Code::Internal)),
        ("fail INTERNAL", 10, Err(Code::OutOfRange)),
        ("fail INTERNAL v", 1, Err(Code::Internal)),
        ("fail INTERNAL w", 1, Ok(Some(made("v", 1)))),
        ("skip", 10, Ok(None)),
        ("request clear name", 1, Ok(Some(made("", 1)))),
        (
            "request set capacity_range.required_bytes 3",
            10,
            Ok(Some(made("v", 3))),
        ),
        (
            "response set volume.capacity_bytes -1",
            1,
            Ok(Some(made("v", -1))),
        ),
        ("response clear volume", 1, Ok(None)),
    ] {
        assert_eq!(outcome(change, size).await, expected, "{change} of {size}");
    }
}

#[tokio::test]
async fn an_error_loses_its_message() {
    let answer = client("mute").create_volume(create(10)).await;
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, ""));
}

#[tokio::test]
async fn a_repeat_fails_until_it_was_undone() {
    let mut client = client("repeat ABORTED");
    client.create_volume(create(1)).await.unwrap();
    let repeat = client.create_volume(create(1)).await.unwrap_err();
    assert_eq!(repeat.code(), Code::Aborted);
    client.create_volume(create(2)).await.unwrap();
    let request = DeleteVolumeRequest::default();
    client.delete_volume(request).await.unwrap();
    client.create_volume(create(1)).await.unwrap();
}

/// All values of a key, wherever it is.
fn keys(value: &serde_yaml::Value, found: &mut Vec<String>) {
    match value {
        serde_yaml::Value::Sequence(entries) => entries.iter().for_each(|one| keys(one, found)),
        serde_yaml::Value::Mapping(mapping) => {
            for (key, value) in mapping {
                if key.as_str() == Some("mutations")
                    && let Some(mutations) = value.as_mapping()
                {
                    let mutations = mutations.keys().filter_map(serde_yaml::Value::as_str);
                    found.extend(mutations.map(str::to_owned));
                }
                keys(value, found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_mutation_of_the_conformance_table_is_understood() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/conformance");
    let mut found = Vec::new();
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            keys(&serde_yaml::from_str(&text).unwrap(), &mut found);
        }
    }
    assert!(!found.is_empty());
    for mutation in found {
        if let Err(error) = Mutation::parse(&mutation) {
            panic!("{mutation}: {error:#}");
        }
    }
}
