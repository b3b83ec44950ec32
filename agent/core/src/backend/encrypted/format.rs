//! The first opening of an image: its header is written.

use std::path::{Path, PathBuf};

use super::{
    class::{Encrypted, Sealed},
    device::{ENDS, free_name, opened, zero},
    keys::fingerprint,
    state::State,
};
use crate::{
    Error, Kind, Result, blocking, fail,
    host::{
        Access, crypt_mapping,
        luks::{self, Fit},
    },
};

impl Encrypted {
    /// Writes the header of an image that was never opened, and opens it. Repeated after an interruption, it writes
    /// another one: nobody got the device before.
    pub(super) async fn open_first(&self, sealed: &Sealed, device: &Path) -> Result<PathBuf> {
        let settings = self.settings()?;
        let owner = self.owner(sealed);
        let key = settings.current.read(&self.asking(), &owner).await?;
        let name = self.mapping_name(sealed.image.id, device);
        free_name(&name).await?;
        luks::format(device, &key, sealed.state.offset).await?;
        fail::point("encrypted.format.written");
        if luks::open(device, &name, &key, Access::ReadWrite).await? == Fit::Wrong {
            let message = "the header that was just written does not open";
            return Err(Error::new(Kind::Bug, message));
        }
        fail::point("encrypted.format.opened");
        let path = opened(device).await?;
        let node = path.clone();
        // What was never written reads as random bytes, and could be taken for contents.
        blocking(move || {
            let mapping = crypt_mapping::length_of(&node)?.bytes();
            zero(&node, 0..ENDS.min(mapping))?;
            zero(&node, mapping.saturating_sub(ENDS)..mapping)
        })
        .await?;
        fail::point("encrypted.format.blank");
        let state = State {
            key: Some(fingerprint(&key)),
            owner: Some(owner),
            ..sealed.state.clone()
        };
        self.inner.relabel(sealed.image.id, &state.change()).await?;
        fail::point("encrypted.format.recorded");
        Ok(path)
    }
}
