//! Labels as LVM tags: any text, encoded in the few characters that a tag may have.
//!
//! The form is `drumlin.<key>=<value>`, one tag per label; every other byte is encoded as `+` and two hexadecimal
//! digits. Tags without this prefix are foreign, and are kept.

use std::fmt::Write;

use drumlin_lvm::{command::Command, metadata};

use crate::{
    backend::Labels,
    types::{ImageId, ImageKind, Key},
};

/// The prefix of the agent's tags.
pub(super) const OURS: &str = "drumlin.";
/// Tags that are not labels: the image, its class and node, and the schema version.
const ID: &str = "id";
const CLASS: &str = "class";
const NODE: &str = "node";
const SCHEMA: &str = "schema";
const SIZE: &str = "size";
const INCOMPLETE: &str = "incomplete";
const DELETING: &str = "deleting";
const SOURCE: &str = "source";
const COPIED: &str = "copied";
const GROWING: &str = "growing";
/// The tag of a thin pool that the agent created. It is no image, so it has no other tag of the agent.
pub(super) const CREATED_POOL: &str = "drumlin.pool=made";
/// The prefix of label keys, so that they cannot clash with the keys above.
const LABEL: &str = "l.";
/// The schema version that this agent writes. Volumes with another version are left unchanged.
const FORM: &str = "1";

/// The parsed tags of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a tag, beside the others"
)]
pub(crate) struct Tags {
    /// The image id.
    pub(super) id: ImageId,
    /// The class that created it.
    pub(super) class: String,
    /// The node that created it.
    pub(super) node: String,
    /// The labels of the image.
    pub(super) labels: Labels,
    /// The size that it shows, in bytes, if that is not its length.
    pub(super) size: Option<u64>,
    /// It is incomplete, and must not be visible yet.
    pub(super) is_incomplete: bool,
    /// It is being deleted: part of its data may be gone.
    pub(super) is_deleting: bool,
    /// The image that it is copied from.
    pub(super) source: Option<ImageId>,
    /// The number of bytes that are already copied.
    pub(super) copied: Option<u64>,
    /// It is being extended, and was deactivated for that.
    pub(super) is_growing: bool,
    /// The tags were written by a newer agent.
    pub(super) is_newer: bool,
}

impl Tags {
    /// The tags of an image without labels.
    pub(super) fn new(id: ImageId, class: &str, node: &str) -> Self {
        Self {
            id,
            class: class.to_owned(),
            node: node.to_owned(),
            labels: Labels::new(),
            size: None,
            is_incomplete: false,
            is_deleting: false,
            source: None,
            copied: None,
            is_growing: false,
            is_newer: false,
        }
    }

    /// Parses the tags of a volume; none when it is foreign.
    pub(super) fn read(tags: &[String]) -> Option<Self> {
        let nothing = ImageId {
            kind: ImageKind::Volume,
            key: Key::parse("00000000-0000-0000-0000-000000000000")?,
        };
        let mut read = Self::new(nothing, "", "");
        let mut has_id = false;
        for tag in tags {
            let Some((key, value)) = tag.strip_prefix(OURS).and_then(|rest| rest.split_once('='))
            else {
                continue;
            };
            let (Some(key), Some(value)) = (decode(key), decode(value)) else {
                continue;
            };
            match (key.as_str(), key.strip_prefix(LABEL)) {
                (_, Some(label)) => {
                    read.labels.insert(label.to_owned(), value);
                }
                (ID, _) => {
                    read.id = parse_id(&value)?;
                    has_id = true;
                }
                (CLASS, _) => read.class = value,
                (NODE, _) => read.node = value,
                (SIZE, _) => read.size = value.parse().ok(),
                (INCOMPLETE, _) => read.is_incomplete = true,
                (DELETING, _) => (read.is_incomplete, read.is_deleting) = (true, true),
                (SOURCE, _) => read.source = parse_id(&value),
                (COPIED, _) => read.copied = value.parse().ok(),
                (GROWING, _) => read.is_growing = true,
                (SCHEMA, _) => read.is_newer = value != FORM,
                _ => {}
            }
        }
        has_id.then_some(read)
    }

    /// The tags that a volume is created with.
    pub(super) fn write(&self) -> Vec<String> {
        let mut tags = vec![
            tag(SCHEMA, FORM),
            tag(ID, &id_text(self.id)),
            tag(CLASS, &self.class),
            tag(NODE, &self.node),
        ];
        tags.extend(self.size.map(|bytes| tag(SIZE, &bytes.to_string())));
        tags.extend(self.is_incomplete.then(incomplete));
        tags.extend(self.source.map(source));
        tags.extend(self.copied.map(copied));
        tags.extend(self.is_growing.then(growing));
        tags.extend(self.labels.iter().map(|(key, value)| label(key, value)));
        tags
    }
}

/// Those of our tags that cannot be parsed, or have a key that no agent of this schema writes. A newer agent may write
/// others: then none is wrong.
pub(super) fn wrong(tags: &[String]) -> Vec<&str> {
    if Tags::read(tags).is_some_and(|read| read.is_newer) {
        return Vec::new();
    }
    let is_wrong = |tag: &&String| tag.starts_with(OURS) && !parses(tag);
    let ours: Vec<&String> = tags.iter().filter(is_wrong).collect();
    ours.into_iter().map(String::as_str).collect()
}

/// Returns true if one of our tags has the form that it is written in.
fn parses(tag: &str) -> bool {
    if tag == CREATED_POOL {
        return true;
    }
    let pair = tag.strip_prefix(OURS).and_then(|rest| rest.split_once('='));
    let Some((Some(key), Some(value))) = pair.map(|(key, value)| (decode(key), decode(value)))
    else {
        return false;
    };
    match key.as_str() {
        CLASS | NODE | SCHEMA | INCOMPLETE | DELETING | GROWING => true,
        ID | SOURCE => parse_id(&value).is_some(),
        SIZE | COPIED => value.parse::<u64>().is_ok(),
        other => other.starts_with(LABEL),
    }
}

/// The tag of one label.
pub(super) fn label(key: &str, value: &str) -> String {
    tag(&format!("{LABEL}{key}"), value)
}

/// The tag of an incomplete image.
pub(super) fn incomplete() -> String {
    tag(INCOMPLETE, "yes")
}

/// The tag of an image that is being deleted.
pub(super) fn deleting() -> String {
    tag(DELETING, "yes")
}

/// The tag that names the source of a copy.
pub(super) fn source(id: ImageId) -> String {
    tag(SOURCE, &id_text(id))
}

/// The tag that records the progress of a copy.
pub(super) fn copied(bytes: u64) -> String {
    tag(COPIED, &bytes.to_string())
}

/// The tag of a volume that was deactivated to be extended.
pub(super) fn growing() -> String {
    tag(GROWING, "yes")
}

/// The command that changes the tags of a volume from `old` to `new`, without the volume.
pub(super) fn changed(old: &[String], new: &[String]) -> Command {
    let added = new.iter().filter(|tag| !old.contains(tag)).cloned();
    let removed = old.iter().filter(|tag| !new.contains(tag));
    Command::new("lvchange")
        .add_tags(added)
        .words(removed.flat_map(|tag| ["--deltag".to_owned(), tag.clone()]))
}

fn tag(key: &str, value: &str) -> String {
    format!("{OURS}{}={}", encode(key), encode(value))
}

fn id_text(id: ImageId) -> String {
    format!("{}:{}", id.kind.word(), id.key)
}

fn parse_id(text: &str) -> Option<ImageId> {
    let (word, key) = text.split_once(':')?;
    let kind = ImageKind::ALL
        .into_iter()
        .find(|kind| kind.word() == word)?;
    Some(ImageId {
        kind,
        key: Key::parse(key)?,
    })
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_./:#&!".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "+{byte:02x}");
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'+' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Parses the text of a volume group as it is on disk, with the tags of its volumes.
pub(crate) fn read_metadata(text: &str) {
    metadata::read_all(text, |volume| {
        let _ = Tags::read(&volume.tags);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Name;
    use proptest::prelude::*;

    fn tags(labels: Labels) -> Tags {
        let kind = ImageKind::Snapshot;
        let id = ImageId {
            kind,
            key: Key::of(kind, &Name::parse("name", "größe").unwrap()),
        };
        Tags {
            labels,
            size: Some(5 << 20),
            is_incomplete: true,
            source: Some(id),
            copied: Some(1 << 40),
            is_growing: true,
            ..Tags::new(id, "fast", "node-a")
        }
    }

    proptest! {
        #[test]
        fn any_labels_come_back_and_use_only_what_a_tag_may_have(labels: Labels) {
            let tags = tags(labels);
            let written = tags.write();
            for tag in &written {
                prop_assert!(tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#&+-./:=_".contains(&byte)), "{}", tag);
                prop_assert!(tag.starts_with("drumlin."));
            }
            prop_assert_eq!(Tags::read(&written), Some(tags));
        }
    }

    /// These tags are on the disks of hosts: a change here requires a new schema version.
    #[test]
    fn the_tags_of_a_volume_are_these() {
        let labels = Labels::from([("name".to_owned(), "a b".to_owned())]);
        let id = "snapshot:0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab001";
        let mut all = Tags::new(parse_id(id).unwrap(), "fast", "node-a");
        (all.labels, all.size, all.copied) = (labels, Some(5 << 20), Some(4096));
        (all.is_incomplete, all.is_growing) = (true, true);
        all.source = parse_id("volume:0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab002");
        let mut written = all.write();
        written.push(deleting());
        assert_eq!(
            written,
            [
                "drumlin.schema=1",
                "drumlin.id=snapshot:0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab001",
                "drumlin.class=fast",
                "drumlin.node=node-a",
                "drumlin.size=5242880",
                "drumlin.incomplete=yes",
                "drumlin.source=volume:0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab002",
                "drumlin.copied=4096",
                "drumlin.growing=yes",
                "drumlin.l.name=a+20b",
                "drumlin.deleting=yes",
            ]
        );
    }

    #[test]
    fn what_no_agent_writes_is_wrong() {
        let mut tags = tags(Labels::from([("a".to_owned(), "b c".to_owned())])).write();
        tags.extend(["backup=yes".to_owned(), deleting()]);
        assert_eq!(wrong(&tags), [""; 0]);
        assert_eq!(wrong(&[CREATED_POOL.to_owned()]), [""; 0]);
        let bad = [
            "drumlin.pool=other",
            "drumlin.broken=+zz",
            "drumlin.id=volume:1",
            "drumlin.size=big",
            "drumlin.unknown=1",
            "drumlin.class",
        ];
        for tag in bad {
            assert_eq!(wrong(&[tag.to_owned()]), [tag]);
        }
        let newer = ["drumlin.schema=2", tags[1].as_str(), bad[4]];
        assert_eq!(wrong(&newer.map(str::to_owned)), [""; 0]);
    }

    #[test]
    fn tags_of_others_are_none_of_ours() {
        assert_eq!(
            Tags::read(&["backup=yes".to_owned(), "drumlin.schema=1".to_owned()]),
            None
        );
        let mut written = tags(Labels::new()).write();
        written.push("backup".to_owned());
        written.push("drumlin.broken=+zz".to_owned());
        assert_eq!(Tags::read(&written), Some(tags(Labels::new())));
        written.push("drumlin.schema=2".to_owned());
        assert!(Tags::read(&written).unwrap().is_newer);
    }
}
