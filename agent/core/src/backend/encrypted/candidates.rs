//! Which key opens an image: the one that its record names, and otherwise any of its class.

use std::{path::Path, sync::Arc};

use super::{
    class::{Encrypted, Sealed},
    keys::{EncryptionSettings, KeySource, fingerprint},
    owner::KeyOwner,
};
use crate::{
    Error, Kind, Result,
    host::{
        Access,
        luks::{self, Fit, LuksKey},
    },
};

/// What is done with a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attempt<'a> {
    /// Opens the device under a name.
    Open {
        device: &'a Path,
        name: &'a str,
        access: Access,
    },
    /// Makes the mapping of this name as long as its device.
    Resize { name: &'a str },
    /// Nothing.
    Try { device: &'a Path },
}

/// A key that fits, and what its fingerprint is.
#[derive(Debug)]
pub(super) struct FittingKey {
    pub(super) key: LuksKey,
    pub(super) fingerprint: String,
}

impl Attempt<'_> {
    async fn run(self, key: &LuksKey) -> Result<Fit> {
        match self {
            Self::Open {
                device,
                name,
                access,
            } => luks::open(device, name, key, access).await,
            Self::Resize { name } => luks::resize(name, key).await,
            Self::Try { device } => luks::try_key(device, key).await,
        }
    }
}

impl Encrypted {
    /// The settings of the class.
    ///
    /// # Errors
    /// `Precondition` when it has none.
    pub(super) fn settings(&self) -> Result<Arc<EncryptionSettings>> {
        self.keys.now().ok_or_else(|| {
            Error::new(
                Kind::Precondition,
                format!(
                    "it is encrypted, and class {} has no key: its configuration has no `encryption`",
                    self.settings.class
                ),
            )
        })
    }

    /// Whom a new key of an image is asked for.
    pub(super) fn owner(&self, sealed: &Sealed) -> KeyOwner {
        KeyOwner::of(&sealed.image, (self.settings.tenant)(&sealed.image.labels))
    }

    /// Does it with the first key of the class that fits.
    ///
    /// # Errors
    /// `Precondition` when none fits, saying which key is missing.
    pub(super) async fn with_key(
        &self,
        sealed: &Sealed,
        attempt: Attempt<'_>,
    ) -> Result<FittingKey> {
        let settings = self.settings()?;
        let (mut others, mut problems) = (Vec::new(), Vec::new());
        for (source, owner) in self.candidates(sealed, &settings)? {
            let key = match source.read(&self.asking(), &owner).await {
                Ok(key) => key,
                Err(error) => {
                    problems.push(error.chain());
                    continue;
                }
            };
            let found = FittingKey {
                fingerprint: fingerprint(&key),
                key,
            };
            if sealed.state.key.as_ref() != Some(&found.fingerprint) {
                others.push(found);
            } else if attempt.run(&found.key).await? == Fit::Fits {
                return Ok(found);
            }
        }
        // A rotation may have been interrupted before it was recorded.
        for found in others {
            if attempt.run(&found.key).await? == Fit::Fits {
                return Ok(found);
            }
        }
        Err(self.locked(sealed, &problems))
    }

    /// The keys that may fit, those that most likely do first.
    ///
    /// # Errors
    /// `Precondition` when its key may be that of another tenant.
    fn candidates<'a>(
        &self,
        sealed: &Sealed,
        settings: &'a EncryptionSettings,
    ) -> Result<Vec<(&'a KeySource, KeyOwner)>> {
        let own = self.owner(sealed);
        let first = sealed.state.owner.clone().unwrap_or_else(|| own.clone());
        let mut all: Vec<_> = settings.all().map(|source| (source, own.clone())).collect();
        let apart = || settings.all().filter(|source| source.tells_owners_apart());
        if first == own || apart().next().is_none() {
            return Ok(all);
        }
        if first.tenant != own.tenant {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "it is a copy of a volume of {}, whose key is not asked for {}; restore it there",
                    first.tenant, own.tenant
                ),
            ));
        }
        all.extend(apart().map(|source| (source, first.clone())));
        Ok(all)
    }

    /// The error for an image that no key opens.
    fn locked(&self, sealed: &Sealed, problems: &[String]) -> Error {
        let wanted = sealed.state.key.as_deref().unwrap_or("unknown");
        let class = &self.settings.class;
        let why = if problems.is_empty() {
            String::new()
        } else {
            format!(" ({})", problems.join("; "))
        };
        Error::new(
            Kind::Precondition,
            format!(
                "no key of class {class} opens it; it needs the key with fingerprint {wanted}: add that to previousKeys of the class{why}"
            ),
        )
    }
}
