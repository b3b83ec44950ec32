//! Re-keying: the current key of the class gets a key slot, and the old key loses its own. The data is not touched, and
//! its users do not notice.
//!
//! The record changes last: until then it names a key that may be gone, and then all keys of the class are tried.

use std::path::Path;

use super::{
    candidates::{Attempt, FittingKey},
    class::{Encrypted, Sealed},
    keys::{KeySource, fingerprint},
    state::State,
};
use crate::{
    Error, Kind, Result,
    backend::Change,
    fail,
    host::{
        Access,
        luks::{self, Fit, LuksKey},
    },
    types::{ImageId, ImageKind},
};

/// The kinds of images that have a header.
const KINDS: [ImageKind; 3] = [ImageKind::Volume, ImageKind::Snapshot, ImageKind::Trash];

impl Encrypted {
    /// The images whose record names another key than the current one. Looks at none while the class has no former
    /// keys.
    pub(super) async fn find_outdated(&self) -> Result<Vec<ImageId>> {
        match self.keys.now() {
            Some(settings) if !settings.previous.is_empty() => {
                self.find_without(&[&settings.current]).await
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The images whose record names none of the keys of the class. Asks no program.
    pub(super) async fn find_locked(&self) -> Result<Vec<ImageId>> {
        let Some(settings) = self.keys.now() else {
            return Ok(Vec::new());
        };
        let all: Vec<&KeySource> = settings.all().collect();
        if all.iter().any(|source| source.tells_owners_apart()) {
            return Ok(Vec::new());
        }
        self.find_without(&all).await
    }

    /// The images whose record names none of these keys.
    async fn find_without(&self, sources: &[&KeySource]) -> Result<Vec<ImageId>> {
        let mut found = Vec::new();
        for kind in KINDS {
            for image in self.inner.list(kind).await? {
                let Some(sealed) = Sealed::of(image)? else {
                    continue;
                };
                let Some(recorded) = &sealed.state.key else {
                    continue;
                };
                let owner = self.owner(&sealed);
                let mut is_known = false;
                for source in sources {
                    let key = source.read(&self.asking(), &owner).await?;
                    is_known |= *recorded == fingerprint(&key);
                }
                if !is_known {
                    found.push(sealed.image.id);
                }
            }
        }
        Ok(found)
    }

    /// Re-keys an image, whether it is in use or not.
    pub(super) async fn rekey_image(&self, id: ImageId) -> Result<Change<()>> {
        let Some(sealed) = self.sealed(id).await? else {
            return Ok(Change::Already(()));
        };
        let Some(recorded) = sealed.state.key.clone() else {
            return Ok(Change::Already(()));
        };
        let is_attached = !self.inner.devices(id).await?.is_empty();
        let device = self.inner.attach(id, Access::ReadWrite).await?;
        let renewed = async {
            let attempt = Attempt::Try { device: &device };
            let found = self.with_key(&sealed, attempt).await?;
            self.renew(&sealed, &device, &found, &recorded).await
        };
        let renewed = renewed.await;
        drop(device);
        if !is_attached {
            self.inner.detach(id).await?;
        }
        renewed.map_err(|error| {
            Error::new(error.kind(), format!("{id} cannot be re-keyed")).because(error)
        })
    }

    /// Makes the current key the one that opens a device, which `found` opens now.
    pub(super) async fn renew(
        &self,
        sealed: &Sealed,
        device: &Path,
        found: &FittingKey,
        recorded: &str,
    ) -> Result<Change<()>> {
        let settings = self.settings()?;
        let owner = self.owner(sealed);
        let new = settings.current.read(&self.asking(), &owner).await?;
        let print = fingerprint(&new);
        if print == found.fingerprint && print == recorded {
            return Ok(Change::Already(()));
        }
        exchange(device, &found.key, &new).await?;
        let state = State {
            key: Some(print),
            owner: Some(owner),
            ..sealed.state.clone()
        };
        self.inner.relabel(sealed.image.id, &state.change()).await?;
        fail::point("encrypted.rekey.recorded");
        tracing::info!(object = %sealed.image.id, "image re-keyed");
        Ok(Change::Made(()))
    }
}

/// Gives `new` a key slot and takes that of `old` away. Repeated after an interruption, it finds what is done.
async fn exchange(device: &Path, old: &LuksKey, new: &LuksKey) -> Result<()> {
    if old == new {
        return Ok(());
    }
    if luks::try_key(device, new).await? == Fit::Wrong
        && luks::add_key(device, old, new).await? == Fit::Wrong
    {
        let message =
            "the key that opened it does not any more; another process changed its header";
        return Err(Error::new(Kind::HalfDone, message));
    }
    fail::point("encrypted.rekey.added");
    if luks::try_key(device, new).await? == Fit::Wrong {
        let message = "its new key does not open it; the old one was kept";
        return Err(Error::new(Kind::HalfDone, message));
    }
    luks::remove_key(device, old).await?;
    fail::point("encrypted.rekey.removed");
    Ok(())
}
