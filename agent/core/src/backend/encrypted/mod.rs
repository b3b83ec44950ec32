//! Encryption: a back end over any other, whose images have a LUKS2 header before their data.
//!
//! The inner back end stores images that are longer by the header, and knows nothing of keys. Everything above sees the
//! size of the data and the decrypted device, a mapping of dm-crypt over the device of the inner back end.
//!
//! The record of an image says that it is encrypted, where its data begins, and whether its header was written (see
//! `state.rs`); so a class can be encrypted from some day on, and its older images stay as they are. The header is
//! written when the image is attached first, not when it is created: creating stays one step, and an image whose
//! record has no key was never opened, so writing its header (again, after an interruption) loses nothing.
//!
//! Copies are copies of the inner image, header included: they open with the same key until they are re-keyed, which
//! happens when they are attached (`rekey.rs`). The key of the data itself, which is in the header, stays that of the
//! source.
//!
//! **Invariant:** a header is written only over an image that this agent created and that was never opened.
//! **Invariant:** a key slot is removed only after another one was seen to open the same header.

mod candidates;
mod class;
mod delegated;
mod device;
mod format;
mod keys;
mod owner;
mod ranges;
mod rekey;
mod state;

pub use class::{Encrypted, EncryptedSettings};
pub use keys::{ClassKeys, EncryptionSettings, KeySource};
pub use owner::Tenant;
pub(crate) use state::{has_written_header, header_of, is_encrypted};
