//! A class whose images may be encrypted: the operations of all back ends.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use uuid::Uuid;

use super::{
    keys::{Asking, ClassKeys},
    owner::Tenant,
    state::{State, shown},
};
use crate::{
    Error, Kind, Result,
    backend::{
        AttachedDevice, Backend, Capacity, Change, Family, Features, Image, ImageSpec, LabelChange,
        Labels, Origin, StorageKind, Utilization,
    },
    fail,
    host::{Access, crypt_mapping, luks},
    types::{ClassName, ImageId, ImageKind, NodeName, Size},
};

/// The room for a header: that of 16 key slots, and one extent of LVM's default size.
const HEADER: Size = Size::from_mebibytes(4);

/// What an encrypted class is told of itself.
#[derive(Debug, Clone)]
pub struct EncryptedSettings {
    /// This node.
    pub node: NodeName,
    /// The name of the class.
    pub class: ClassName,
    /// The tenant whose volume has these labels.
    pub tenant: fn(&Labels) -> Tenant,
}

/// A back end over another one, whose images are encrypted if the class says so.
#[derive(Debug)]
pub struct Encrypted {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) keys: Arc<ClassKeys>,
    pub(super) settings: EncryptedSettings,
}

/// An encrypted image, as the inner back end has it.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    pub(super) image: Image,
    pub(super) state: State,
}

impl Sealed {
    /// An image, if it is encrypted.
    pub(super) fn of(image: Image) -> Result<Option<Self>> {
        let state = State::of(&image)?;
        Ok(state.map(|state| Self { image, state }))
    }
}

impl Encrypted {
    /// A back end over `inner`, with the keys of its class.
    pub fn new(inner: Arc<dyn Backend>, keys: Arc<ClassKeys>, settings: EncryptedSettings) -> Self {
        Self {
            inner,
            keys,
            settings,
        }
    }

    pub(super) fn asking(&self) -> Asking {
        Asking {
            node: self.settings.node.clone(),
            class: self.settings.class.clone(),
        }
    }

    /// The name for a mapping of an image over its device. The key of its id is in it; the rest tells those of other
    /// agents of this host apart. It is short: the kernel cuts a longer UUID, which has the name in it.
    pub(super) fn mapping_name(&self, id: ImageId, device: &Path) -> String {
        let EncryptedSettings { node, class, .. } = &self.settings;
        let (kind, device) = (id.kind.word(), device.display());
        let rest = format!("{node}/{class}/{kind}/{device}");
        let rest = Uuid::new_v5(&Uuid::NAMESPACE_OID, rest.as_bytes()).simple();
        let rest: String = rest.to_string().chars().take(8).collect();
        format!("{}{}-{rest}", crypt_mapping::NAME, id.key)
    }

    /// An image, if it exists and is encrypted.
    pub(super) async fn sealed(&self, id: ImageId) -> Result<Option<Sealed>> {
        if !id.kind.has_bytes() {
            return Ok(None);
        }
        match self.inner.get(id).await? {
            Some(image) => Sealed::of(image),
            None => Ok(None),
        }
    }

    /// The room for the header of a new image: a multiple of the unit of sizes.
    pub(super) async fn header(&self) -> Result<Size> {
        let unit = self.inner.features().await?.sizes.unit;
        let rounded = HEADER.round_up(unit);
        rounded.ok_or_else(|| Error::new(Kind::Bug, "the unit of sizes is too large"))
    }

    /// The specification of the inner image.
    pub(super) async fn inner_spec(&self, spec: &ImageSpec) -> Result<ImageSpec> {
        let mut spec = spec.clone();
        if !spec.id.kind.has_bytes() {
            return Ok(spec);
        }
        let state = match spec.origin {
            Origin::Blank if self.keys.now().is_none() => None,
            Origin::Blank => Some(State::new(self.header().await?)),
            // A copy is encrypted as its source is.
            Origin::CopyOf(source) => self.sealed(source).await?.map(|source| source.state),
        };
        if let Some(state) = state {
            spec.size = state.outer_to_inner(spec.size)?;
            spec.labels.extend(state.labels());
        }
        Ok(spec)
    }

    /// The specifications of the inner images.
    pub(super) async fn inner_specs(&self, specs: &[ImageSpec]) -> Result<Vec<ImageSpec>> {
        let mut inner = Vec::with_capacity(specs.len());
        for spec in specs {
            inner.push(self.inner_spec(spec).await?);
        }
        Ok(inner)
    }

    /// Refuses a blank volume that could never be opened.
    fn check_new(&self, spec: &ImageSpec) -> Result<()> {
        let Some(settings) = self.keys.now() else {
            return Ok(());
        };
        if spec.origin != Origin::Blank || !spec.id.kind.has_bytes() {
            return Ok(());
        }
        luks::check_program()?;
        let checked = settings.current.check();
        checked.map_err(|error| {
            let class = &self.settings.class;
            let message = format!("class {class} has no key for new volumes");
            Error::new(error.kind(), message).because(error)
        })
    }

    /// Closes the mapping of an image that is going to change behind it, if it is encrypted.
    pub(super) async fn close_sealed(&self, id: ImageId) -> Result<Reopen> {
        if self.sealed(id).await?.is_some() && self.close(id).await?.is_made() {
            return Ok(Reopen::Yes);
        }
        Ok(Reopen::No)
    }

    /// Grows the inner image. LVM grows a thick volume that has snapshots only while nothing has it open, be it a
    /// mapping that nobody uses; returns whether that was closed.
    async fn grow_inner(&self, sealed: &Sealed, to: Size) -> Result<(Change<Image>, Reopen)> {
        let id = sealed.image.id;
        let mut reopen = Reopen::No;
        if self.inner.kind() == StorageKind::Thick
            && to > sealed.image.size
            && let Ok(Change::Made(())) = self.close(id).await
        {
            reopen = Reopen::Yes;
        }
        let grown = self.inner.grow(id, to).await;
        if grown.is_err() && reopen == Reopen::Yes {
            self.attach_sealed(sealed, Access::ReadWrite).await?;
        }
        Ok((grown?, reopen))
    }
}

/// Whether a mapping is to be opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reopen {
    /// It was open, and nobody used it: a raw volume that is staged.
    Yes,
    /// It was not open.
    No,
}

#[async_trait]
impl Backend for Encrypted {
    fn family(&self) -> Family {
        self.inner.family()
    }

    fn kind(&self) -> StorageKind {
        self.inner.kind()
    }

    async fn features(&self) -> Result<Features> {
        self.inner.features().await
    }

    async fn recover(&self) -> Result<()> {
        self.inner.recover().await?;
        self.resume_left().await
    }

    async fn capacity(&self) -> Result<Capacity> {
        let capacity = self.inner.capacity().await?;
        if self.keys.now().is_none() {
            return Ok(capacity);
        }
        let header = self.header().await?.bytes();
        let largest = Size::try_from(capacity.largest.bytes().saturating_sub(header))?;
        Ok(Capacity {
            largest,
            ..capacity
        })
    }

    async fn utilization(&self) -> Result<Utilization> {
        self.inner.utilization().await
    }

    async fn list(&self, kind: ImageKind) -> Result<Vec<Image>> {
        let images = self.inner.list(kind).await?;
        Ok(images.into_iter().map(shown).collect())
    }

    async fn get(&self, id: ImageId) -> Result<Option<Image>> {
        Ok(self.inner.get(id).await?.map(shown))
    }

    async fn create(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        self.check_new(spec)?;
        let spec = self.inner_spec(spec).await?;
        Ok(self.inner.create(&spec).await?.map(shown))
    }

    async fn finish(&self, spec: &ImageSpec) -> Result<()> {
        let spec = self.inner_spec(spec).await?;
        self.inner.finish(&spec).await
    }

    async fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        let Some(sealed) = self.sealed(id).await? else {
            return self.inner.grow(id, to).await;
        };
        let inner = sealed.state.outer_to_inner(to)?;
        let (grown, reopen) = self.grow_inner(&sealed, inner).await?;
        fail::point("encrypted.grow.below");
        if reopen == Reopen::Yes {
            self.attach_sealed(&sealed, Access::ReadWrite).await?;
        }
        if let Some(mapping) = self.mapping(id).await? {
            self.lengthen(&sealed, &mapping).await?;
        }
        Ok(grown.map(shown))
    }

    async fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>> {
        Ok(self.inner.relabel(id, change).await?.map(shown))
    }

    async fn rename(
        &self,
        from: ImageId,
        to: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>> {
        self.close_sealed(from).await?;
        Ok(self.inner.rename(from, to, change).await?.map(shown))
    }

    async fn delete(&self, id: ImageId) -> Result<Change<()>> {
        self.close_sealed(id).await?;
        self.inner.delete(id).await
    }

    async fn deleting(&self) -> Result<Vec<ImageId>> {
        self.inner.deleting().await
    }

    async fn end_deletion(&self, id: ImageId) -> Result<()> {
        self.inner.end_deletion(id).await
    }

    async fn attach(&self, id: ImageId, access: Access) -> Result<AttachedDevice> {
        match self.sealed(id).await? {
            Some(sealed) => Ok(self.attach_sealed(&sealed, access).await?.into()),
            None => self.inner.attach(id, access).await,
        }
    }

    async fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>> {
        if self.sealed(id).await?.is_none() {
            return self.inner.devices(id).await;
        }
        match self.mapping(id).await? {
            Some(mapping) => Ok(vec![super::device::node(mapping).await?]),
            None => Ok(Vec::new()),
        }
    }

    async fn detach(&self, id: ImageId) -> Result<Change<()>> {
        if self.sealed(id).await?.is_none() {
            return self.inner.detach(id).await;
        }
        let closed = self.close(id).await?;
        let detached = self.inner.detach(id).await?;
        Ok(if closed.is_made() { closed } else { detached })
    }

    async fn outdated(&self) -> Result<Vec<ImageId>> {
        self.find_outdated().await
    }

    async fn locked(&self) -> Result<Vec<ImageId>> {
        self.find_locked().await
    }

    async fn rekey(&self, id: ImageId) -> Result<Change<()>> {
        self.rekey_image(id).await
    }
}

impl Encrypted {
    /// Refuses to take a volume of others into a class that encrypts.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.keys.now().map(|_| {
            "its class encrypts its volumes, and this one is not encrypted; copy its data into a new volume of the class"
        })
    }
}
