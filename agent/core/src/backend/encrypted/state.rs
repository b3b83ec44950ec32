//! What the record of an image says of its encryption.

use super::owner::KeyOwner;
use crate::{
    Error, Kind, Result,
    backend::{Image, LabelChange, Labels},
    host::Sectors,
    types::Size,
};

/// The offset of the data behind the header, in bytes. Only encrypted images have it.
const OFFSET: &str = "luks";
/// The fingerprint of the key of its key slot, from when the header was written.
const KEY: &str = "luks-key";
/// Whom the key was asked for, as JSON.
const OWNER: &str = "luks-owner";

/// The encryption of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    /// The offset of its data, in bytes.
    pub(super) offset: u64,
    /// The fingerprint of its key; none until its header is written.
    pub(super) key: Option<String>,
    /// Whom that key was asked for.
    pub(super) owner: Option<KeyOwner>,
}

impl State {
    /// That of a new image whose data begins at this offset.
    pub(super) fn new(offset: Size) -> Self {
        Self {
            offset: offset.bytes(),
            key: None,
            owner: None,
        }
    }

    /// That of an image; none if it is not encrypted.
    ///
    /// # Errors
    /// `Precondition` when its record cannot be understood.
    pub(super) fn of(image: &Image) -> Result<Option<Self>> {
        let Some(offset) = image.labels.get(OFFSET) else {
            return Ok(None);
        };
        let unreadable = || {
            Error::new(
                Kind::Precondition,
                format!(
                    "{} is encrypted in a way that this agent does not know; upgrade it",
                    image.id
                ),
            )
        };
        let offset = offset.parse().map_err(|_| unreadable())?;
        let owner = image.labels.get(OWNER).map(|text| KeyOwner::parse(text));
        Ok(Some(Self {
            offset,
            key: image.labels.get(KEY).cloned(),
            owner: owner.transpose().map_err(|_| unreadable())?,
        }))
    }

    /// The labels that say so.
    pub(super) fn labels(&self) -> Labels {
        let mut labels = Labels::from([(OFFSET.to_owned(), self.offset.to_string())]);
        if let Some(key) = &self.key {
            labels.insert(KEY.to_owned(), key.clone());
        }
        if let Some(owner) = &self.owner {
            labels.insert(OWNER.to_owned(), owner.to_string());
        }
        labels
    }

    /// The change that makes a record say this.
    pub(super) fn change(&self) -> LabelChange {
        let set = self.labels();
        let remove = [KEY, OWNER].into_iter().map(str::to_owned);
        LabelChange {
            remove: remove.filter(|key| !set.contains_key(key)).collect(),
            set,
        }
    }

    /// The offset in sectors.
    pub(super) fn sectors(&self) -> Sectors {
        Sectors::within(self.offset)
    }

    /// The size of an inner image for this size of data.
    pub(super) fn outer_to_inner(&self, size: Size) -> Result<Size> {
        Size::try_from(size.bytes().saturating_add(self.offset))
    }
}

/// The image as callers see it: its size is that of its data.
pub(super) fn shown(image: Image) -> Image {
    let Some(offset) = header_of(&image.labels) else {
        return image;
    };
    let size = Size::try_from(image.size.bytes().saturating_sub(offset));
    Image {
        size: size.unwrap_or_default(),
        ..image
    }
}

/// The bytes of the header of an image with these labels; none if it is not encrypted.
pub(crate) fn header_of(labels: &Labels) -> Option<u64> {
    labels.get(OFFSET)?.parse().ok()
}

/// Returns true for an image with these labels whose header was written.
pub(crate) fn has_written_header(labels: &Labels) -> bool {
    labels.contains_key(OFFSET) && labels.contains_key(KEY)
}

/// Returns true for an image that is encrypted.
pub(crate) fn is_encrypted(image: &Image) -> bool {
    image.labels.contains_key(OFFSET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::Health,
        types::{ImageId, ImageKind, Key},
    };

    fn image(labels: Labels) -> Image {
        Image {
            id: ImageId {
                kind: ImageKind::Volume,
                key: Key::NIL,
            },
            size: Size::from_mebibytes(12),
            labels,
            health: Health::Good,
        }
    }

    #[test]
    fn the_state_of_an_image_is_read_back_as_it_was_written() {
        let mut state = State::new(Size::from_mebibytes(4));
        let new = image(state.labels());
        assert_eq!(State::of(&new).unwrap(), Some(state.clone()));
        assert_eq!(shown(new).size, Size::from_mebibytes(8));
        state.key = Some("00c0ffee".to_owned());
        state.owner = Some(KeyOwner::default());
        let written = image(state.labels());
        assert_eq!(State::of(&written).unwrap(), Some(state.clone()));
        let change = State::new(Size::from_mebibytes(4)).change();
        let after = change.apply(&written.labels).unwrap();
        assert_eq!(after, State::new(Size::from_mebibytes(4)).labels());
    }

    #[test]
    fn an_image_without_the_label_is_as_it_was() {
        let plain = image(Labels::new());
        assert_eq!(State::of(&plain).unwrap(), None);
        assert_eq!(shown(plain.clone()), plain);
        let newer = image(Labels::from([(OFFSET.to_owned(), "v3".to_owned())]));
        assert_eq!(State::of(&newer).unwrap_err().kind(), Kind::Precondition);
    }
}
