//! Messages of the socket as JSON (`ProtoJSON`), and its schema, from the descriptors of the wire: no message needs code of
//! its own.

use std::sync::LazyLock;

use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    MethodDescriptor, SerializeOptions, prost::Message as _,
};
use serde_json::{Map, Value, json};

/// Maximum length of a text, in bytes: CSI limits most to 128, and a sum of parameters to 4 KiB.
const TEXT: u32 = 4096;
/// Maximum number of entries of a map or a list.
const ENTRIES: u32 = 1024;

/// The descriptors of the wire. Decoded on first use, since only agents and controllers of a cluster need them.
static POOL: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(drumlin_proto::FILE_DESCRIPTOR_SET).ok());

/// Why a message cannot be converted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConversionError(String);

/// The descriptor of a method, such as `CreateVolume` of `csi.v1.Controller`.
pub(crate) fn method(service: &str, rpc: &str) -> Option<MethodDescriptor> {
    let service = POOL.as_ref()?.get_service_by_name(service)?;
    service.methods().find(|method| method.name() == rpc)
}

/// An encoded message as JSON: names in lower camel case, enums by name, 64-bit integers as numbers, defaults omitted.
/// Secrets are omitted, too.
///
/// # Errors
/// If the bytes are not such a message.
pub(crate) fn to_json(
    descriptor: MessageDescriptor,
    encoded: &[u8],
) -> Result<Value, ConversionError> {
    let secrets: Vec<FieldDescriptor> = descriptor.fields().filter(is_secret).collect();
    let message = DynamicMessage::decode(descriptor, encoded);
    let mut message = message.map_err(|error| ConversionError(error.to_string()))?;
    for secret in &secrets {
        message.clear_field(secret);
    }
    let options = SerializeOptions::new()
        .stringify_64_bit_integers(false)
        .skip_default_fields(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| ConversionError(error.to_string()))
}

/// The encoded message that JSON describes.
///
/// # Errors
/// If a field is unknown or has a value of another type; names the field.
pub(crate) fn from_json(
    descriptor: MessageDescriptor,
    value: &Value,
) -> Result<Vec<u8>, ConversionError> {
    let message = DynamicMessage::deserialize(descriptor, value);
    let message = message.map_err(|error| ConversionError(error.to_string()))?;
    Ok(message.encode_to_vec())
}

/// The structural schema (`OpenAPI` v3) of a message as JSON.
pub(crate) fn schema(descriptor: &MessageDescriptor) -> Value {
    if descriptor.full_name() == "google.protobuf.Timestamp" {
        return json!({"type": "string", "format": "date-time"});
    }
    let fields = descriptor.fields().filter(|field| !is_secret(field));
    let properties: Map<String, Value> = fields
        .map(|field| (field.json_name().to_owned(), of_field(&field)))
        .collect();
    json!({"type": "object", "properties": properties})
}

fn of_field(field: &FieldDescriptor) -> Value {
    if field.is_map() {
        let values = json!({"type": "string", "maxLength": TEXT});
        return json!({"type": "object", "maxProperties": ENTRIES, "additionalProperties": values});
    }
    let one = of_kind(field.kind());
    if field.is_list() {
        return json!({"type": "array", "maxItems": ENTRIES, "items": one});
    }
    one
}

fn of_kind(kind: Kind) -> Value {
    match kind {
        Kind::Message(message) => schema(&message),
        Kind::Enum(values) => {
            let names: Vec<String> = values
                .values()
                .map(|value| value.name().to_owned())
                .collect();
            json!({"type": "string", "enum": names})
        }
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Uint32 | Kind::Fixed32 => {
            json!({"type": "integer", "format": "int32"})
        }
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 | Kind::Uint64 | Kind::Fixed64 => {
            json!({"type": "integer", "format": "int64"})
        }
        Kind::Double | Kind::Float => json!({"type": "number"}),
        Kind::String | Kind::Bytes => json!({"type": "string", "maxLength": TEXT}),
    }
}

/// Returns true for a field that CSI marks as a secret (`csi_secret`).
fn is_secret(field: &FieldDescriptor) -> bool {
    static MARK: LazyLock<Option<ExtensionDescriptor>> =
        LazyLock::new(|| POOL.as_ref()?.get_extension_by_name("csi.v1.csi_secret"));
    let options = field.options();
    MARK.as_ref().is_some_and(|mark| {
        options.has_extension(mark) && options.get_extension(mark).as_bool() == Some(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_proto::csi::v1::{
        CapacityRange, CreateVolumeRequest, VolumeCapability, volume_capability,
    };

    fn request() -> MessageDescriptor {
        method("csi.v1.Controller", "CreateVolume").unwrap().input()
    }

    #[test]
    fn a_message_comes_back_as_it_was_but_for_its_secrets() {
        let message = CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            capacity_range: Some(CapacityRange {
                required_bytes: 9_007_199_254_740_993,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![VolumeCapability {
                access_type: Some(volume_capability::AccessType::Block(
                    volume_capability::BlockVolume {},
                )),
                access_mode: Some(volume_capability::AccessMode { mode: 1 }),
            }],
            parameters: [("class".to_owned(), "fast".to_owned())].into(),
            secrets: [("key".to_owned(), "hidden".to_owned())].into(),
            ..CreateVolumeRequest::default()
        };
        let json = to_json(request(), &message.encode_to_vec()).unwrap();
        assert_eq!(
            json,
            json!({
                "name": "pvc-1",
                "capacityRange": {"requiredBytes": 9_007_199_254_740_993_i64},
                "volumeCapabilities": [{"block": {}, "accessMode": {"mode": "SINGLE_NODE_WRITER"}}],
                "parameters": {"class": "fast"},
            })
        );
        let back = from_json(request(), &json).unwrap();
        let back = CreateVolumeRequest::decode(back.as_slice()).unwrap();
        let without = CreateVolumeRequest {
            secrets: [].into(),
            ..message
        };
        assert_eq!(back, without);
    }

    #[test]
    fn a_field_that_is_unknown_or_of_another_type_is_refused() {
        for bad in [json!({"nam": "x"}), json!({"name": 1}), json!([])] {
            assert!(from_json(request(), &bad).is_err(), "{bad}");
        }
        assert!(to_json(request(), &[0xff]).is_err());
    }

    #[test]
    fn the_schema_has_every_field_but_the_secrets() {
        let schema = schema(&request());
        let properties = schema["properties"].as_object().unwrap();
        let mut names: Vec<&str> = properties.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accessibilityRequirements",
                "capacityRange",
                "mutableParameters",
                "name",
                "parameters",
                "volumeCapabilities",
                "volumeContentSource"
            ]
        );
    }
}
