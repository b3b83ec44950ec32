//! Edits of encoded messages, by the names of their fields.

use anyhow::{Context, bail};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{
        DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
    },
};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet, field_descriptor_proto::Type,
};

/// Length of the prefix of a message (gRPC over HTTP/2, "Length-Prefixed-Message"), in bytes.
const PREFIX: usize = 5;

/// An edit of a message.
#[derive(Debug)]
pub(super) struct Edit {
    /// Numbers of the fields that lead to the one that is edited.
    path: Vec<u32>,
    what: What,
}

#[derive(Debug)]
enum What {
    Clear,
    /// The encoded field.
    Set(Vec<u8>),
    Double,
    DropLast,
}

/// The messages and services of all packages.
pub(super) struct Schema(FileDescriptorSet);

impl Schema {
    pub(super) fn load() -> anyhow::Result<Self> {
        Ok(Self(FileDescriptorSet::decode(
            drumlin_proto::FILE_DESCRIPTOR_SET,
        )?))
    }

    /// The names of the request and the response of a method, `<package>.<service>/<method>`.
    pub(super) fn messages_of(&self, method: &str) -> anyhow::Result<(String, String)> {
        for file in &self.0.file {
            for service in &file.service {
                for one in &service.method {
                    let name = format!("{}.{}/{}", file.package(), service.name(), one.name());
                    if name == method {
                        return Ok((one.input_type().to_owned(), one.output_type().to_owned()));
                    }
                }
            }
        }
        bail!("there is no method {method}")
    }

    /// Reads `clear PATH` and the like; `message` is the name of the edited message.
    pub(super) fn edit(&self, message: &str, words: &[&str]) -> anyhow::Result<Edit> {
        let (what, path, value) = match *words {
            [what, path] => (what, path, None),
            [what, path, value] => (what, path, Some(value)),
            _ => bail!("an edit is a word and the path of a field"),
        };
        let mut numbers = Vec::new();
        let mut message = message.to_owned();
        let mut last = None;
        for name in path.split('.') {
            let field = self.message(&message).and_then(|message| {
                let mut fields = message.field.iter();
                fields.find(|field| field.name() == name)
            });
            let field = field.with_context(|| format!("{message} has no field {path}"))?;
            numbers.push(u32::try_from(field.number())?);
            field.type_name().clone_into(&mut message);
            last = Some(field);
        }
        let last = last.context("the path of a field is missing")?;
        let what = match (what, value) {
            ("clear", None) => What::Clear,
            ("double", None) => What::Double,
            ("drop", None) => What::DropLast,
            ("set", Some(value)) => What::Set(encoded(last, value)?),
            _ => bail!("there is no edit {words:?}"),
        };
        Ok(Edit {
            path: numbers,
            what,
        })
    }

    /// A message by its name, which begins with a dot; messages may be within others.
    fn message(&self, name: &str) -> Option<&DescriptorProto> {
        self.0.file.iter().find_map(|file| {
            let rest = name
                .strip_prefix('.')?
                .strip_prefix(file.package())?
                .strip_prefix('.')?;
            let mut level = &file.message_type;
            let mut found = None;
            for part in rest.split('.') {
                found = level.iter().find(|message| message.name() == part);
                level = &found?.nested_type;
            }
            found
        })
    }
}

/// A field with this value, as it is on the wire.
fn encoded(field: &FieldDescriptorProto, value: &str) -> anyhow::Result<Vec<u8>> {
    let number = u32::try_from(field.number())?;
    let mut bytes = Vec::new();
    match field.r#type() {
        Type::String | Type::Bytes => {
            encode_key(number, WireType::LengthDelimited, &mut bytes);
            encode_varint(u64::try_from(value.len())?, &mut bytes);
            bytes.extend_from_slice(value.as_bytes());
        }
        Type::Message | Type::Group | Type::Double | Type::Float => {
            bail!("{} is no number and no text", field.name())
        }
        Type::Bool => {
            encode_key(number, WireType::Varint, &mut bytes);
            encode_varint(u64::from(value.parse::<bool>()?), &mut bytes);
        }
        _ => {
            let value: i64 = value
                .parse()
                .with_context(|| format!("{value} is no number"))?;
            encode_key(number, WireType::Varint, &mut bytes);
            encode_varint(value.cast_unsigned(), &mut bytes);
        }
    }
    Ok(bytes)
}

/// A message with its prefix.
pub(super) fn frame(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message);
    bytes.freeze()
}

/// Applies an edit to each message of a stream. What cannot be read stays as it is.
pub(super) fn each_frame(mut bytes: &[u8], edit: &Edit) -> Bytes {
    let mut out = BytesMut::new();
    while let [_, a, b, c, d, rest @ ..] = bytes {
        let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
        let Some((message, rest)) = rest.split_at_checked(length) else {
            break;
        };
        let edited = edited(message, &edit.path, &edit.what);
        out.put(frame(edited.as_deref().unwrap_or(message)));
        bytes = rest;
    }
    out.put_slice(bytes);
    out.freeze()
}

/// One field of a message: its number, all its bytes, and what is within it if it has a length.
struct Field<'a> {
    number: u32,
    all: &'a [u8],
    within: Option<&'a [u8]>,
}

/// The fields of a message; nothing if it cannot be read.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut found = Vec::new();
    while bytes.has_remaining() {
        let begin = bytes;
        let (number, kind) = decode_key(&mut bytes).ok()?;
        let mut within = None;
        if kind == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
            within = Some(bytes.split_off(..length)?);
        } else {
            skip_field(kind, number, &mut bytes, DecodeContext::default()).ok()?;
        }
        let all = begin.get(..begin.len() - bytes.len())?;
        found.push(Field {
            number,
            all,
            within,
        });
    }
    Some(found)
}

/// The message with the edit applied to every message that the path leads to.
fn edited(bytes: &[u8], path: &[u32], what: &What) -> Option<Vec<u8>> {
    let (&number, rest) = path.split_first()?;
    let fields = fields(bytes)?;
    let last = fields.iter().rposition(|field| field.number == number);
    let mut out = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        if field.number != number {
            out.extend_from_slice(field.all);
        } else if !rest.is_empty() {
            nested(&mut out, number, &edited(field.within?, rest, what)?);
        } else {
            match what {
                What::Clear | What::Set(_) => {}
                What::DropLast if Some(index) == last => {}
                What::DropLast => out.extend_from_slice(field.all),
                What::Double => out.extend_from_slice(&[field.all, field.all].concat()),
            }
        }
    }
    if let What::Set(encoded) = what {
        if rest.is_empty() {
            out.extend_from_slice(encoded);
        } else if last.is_none() {
            nested(&mut out, number, &edited(&[], rest, what)?);
        }
    }
    Some(out)
}

fn nested(out: &mut Vec<u8>, number: u32, message: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(u64::try_from(message.len()).unwrap_or(u64::MAX), out);
    out.extend_from_slice(message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use drumlin_proto::csi::v1::{CreateVolumeResponse, ListVolumesResponse, Volume};

    fn volume(id: &str) -> Volume {
        Volume {
            capacity_bytes: 7,
            volume_id: id.to_owned(),
            volume_context: [("a".to_owned(), "b".to_owned())].into(),
            ..Volume::default()
        }
    }

    /// What an edit of a message makes of it.
    fn after<M: Message + Default>(name: &str, message: &M, words: &[&str]) -> M {
        let edit = Schema::load().unwrap().edit(name, words).unwrap();
        let bytes = each_frame(&frame(&message.encode_to_vec()), &edit);
        M::decode(&bytes[PREFIX..]).unwrap()
    }

    #[test]
    fn a_field_is_cleared_and_set_and_all_others_stay() {
        let name = ".csi.v1.CreateVolumeResponse";
        let message = CreateVolumeResponse {
            volume: Some(volume("v")),
        };
        let of = |words: &[&str]| after(name, &message, words).volume;
        let cleared = Volume {
            volume_id: String::new(),
            ..volume("v")
        };
        assert_eq!(of(&["clear", "volume.volume_id"]), Some(cleared));
        assert_eq!(of(&["clear", "volume"]), None);
        let negative = Volume {
            capacity_bytes: -1,
            ..volume("v")
        };
        assert_eq!(of(&["set", "volume.capacity_bytes", "-1"]), Some(negative));
        assert_eq!(of(&["set", "volume.volume_id", "w"]), Some(volume("w")));
        let empty = CreateVolumeResponse::default();
        let set = after(name, &empty, &["set", "volume.volume_id", "w"]);
        assert_eq!(set.volume.unwrap().volume_id, "w");
    }

    #[test]
    fn entries_are_doubled_and_dropped() {
        use drumlin_proto::csi::v1::list_volumes_response::Entry;
        let name = ".csi.v1.ListVolumesResponse";
        let entry = |id: &str| Entry {
            volume: Some(volume(id)),
            status: None,
        };
        let message = ListVolumesResponse {
            entries: vec![entry("a"), entry("b")],
            next_token: "t".to_owned(),
        };
        let ids = |words: &[&str]| {
            let edited = after(name, &message, words);
            assert_eq!(edited.next_token, "t");
            let ids = edited.entries.into_iter().map(|entry| entry.volume);
            ids.map(|volume| volume.unwrap_or_default().volume_id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&["double", "entries"]), ["a", "a", "b", "b"]);
        assert_eq!(ids(&["drop", "entries"]), ["a"]);
        assert_eq!(ids(&["clear", "entries.volume.volume_id"]), ["", ""]);
    }
}
