//! Volumes: create, get, list, expand, modify. How they are deleted is in `delete_volume.rs`.

use std::sync::Arc;

use crate::ops::{
    Class, Listing, Operations, PageRequest,
    capacity::minimum_size,
    labels::{self, Read},
    locks::{LockGuard, LockMode},
    lookup::{LocatedImage, not_here},
    mutable_parameters, parameters,
};
use crate::{
    Error, Kind, Result,
    backend::{Fault, Features, Image, ImageSpec, Labels, Origin},
    fail,
    host::{FileSystem, format},
    types::{
        AccessType, Capability, Handle, ImageId, ImageKind, Key, Map, Name, NodeName, Reference,
        Requirement, Size, SizeRange,
    },
};

/// A volume as recorded on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its handle.
    pub handle: Handle,
    /// Its size in bytes.
    pub size: Size,
    /// Its source, if it is a copy.
    pub source: Option<Source>,
    /// The node to which the controller has published it.
    pub published: Option<NodeName>,
    /// Its condition.
    pub condition: Condition,
}

/// The condition of a volume (CSI, `VolumeCondition`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// True if something is wrong with the volume.
    pub abnormal: bool,
    /// The problem, for humans.
    pub message: String,
}

/// The source of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A snapshot.
    Snapshot(Reference),
    /// Another volume, at the time of the call.
    Volume(Reference),
}

/// A request to create a volume (CSI, `CreateVolume`).
#[derive(Debug, Clone)]
pub struct CreateVolume {
    /// Its name, the idempotency key.
    pub name: Name,
    /// The requested size.
    pub size: SizeRange,
    /// The requested capabilities: at least one.
    pub capabilities: Vec<Capability>,
    /// `class` and the other parameters of the call.
    pub parameters: Map,
    /// Mutable parameters: `protected`, `label.<name>`.
    pub mutable: Map,
    /// The source, if it is a copy.
    pub source: Option<Source>,
    /// The topology in which it must be accessible.
    pub topology: Requirement,
}

impl Condition {
    /// The condition of a volume with this fault.
    pub(crate) fn with(fault: Option<&Fault>) -> Self {
        Self {
            abnormal: fault.is_some(),
            message: fault.map_or_else(
                || "volume is healthy".to_owned(),
                |fault| fault.message.clone(),
            ),
        }
    }
}

impl Source {
    /// The kind and the reference of the source.
    pub(crate) fn split(&self) -> (ImageKind, &Reference) {
        match self {
            Self::Snapshot(id) => (ImageKind::Snapshot, id),
            Self::Volume(id) => (ImageKind::Volume, id),
        }
    }

    fn to_label(&self) -> String {
        let (kind, id) = self.split();
        format!("{}:{id}", kind.word())
    }
}

impl From<LocatedImage> for Volume {
    fn from(found: LocatedImage) -> Self {
        Self {
            size: found.image.size,
            source: found.image.source(),
            published: found
                .image
                .publication()
                .ok()
                .flatten()
                .map(|published| published.node),
            condition: found.condition(),
            handle: found.handle,
        }
    }
}

impl Operations {
    /// Creates a volume. Idempotent: an earlier volume of this name is returned. A repeated call with other arguments
    /// is a conflict; after an interruption the repeated call starts over.
    ///
    /// # Errors
    /// `Invalid`, `NotFound` (source), `Conflict`, `Busy`, `OutOfRange`, `NoSpace`, `WrongNode`, `Precondition`.
    pub async fn create_volume(self: &Arc<Self>, request: CreateVolume) -> Result<Volume> {
        let class = self.class_of(&request)?;
        mutable_parameters::check(&request.mutable)?;
        check_capabilities("volume_capabilities", &request.capabilities)?;
        let id = volume_id(&request.name);
        let mut holds = vec![LockMode::Exclusive(id)];
        if let Some(source) = &request.source
            && let (kind, reference) = source.split()
            && let Some(Handle { key, .. }) = reference.handle()
        {
            let source = ImageId { kind, key: *key };
            if source == id {
                return Err(Error::new(
                    Kind::Conflict,
                    format!("volume {} cannot be a copy of itself", request.name),
                ));
            }
            holds.push(match kind {
                // A volume is quiesced while it is copied, by one operation at a time.
                ImageKind::Volume => LockMode::Exclusive(source),
                _ => LockMode::Shared(source),
            });
        }
        let this = Arc::clone(self);
        let is_copy = request.source.is_some();
        let make = move |guard| async move { this.make_volume(class, id, request, guard).await };
        if is_copy {
            self.changes.join(holds, make).await
        } else {
            self.changes.run_holding(holds, make).await
        }
    }

    async fn make_volume(
        self: &Arc<Self>,
        class: Class,
        id: ImageId,
        request: CreateVolume,
        mut guard: LockGuard,
    ) -> Result<Volume> {
        // Idempotency: checked before the source, which may have been deleted since the first call.
        if let Some(found) = self.named(&class, id).await? {
            found.answers(&request)?;
            return Ok(found.into());
        }
        self.classes.check_open(&class)?;
        self.check_limits(&request.mutable, &class).await?;
        if !request.topology.is_met_by(&self.settings().node) {
            return Err(Error::new(
                Kind::NoSpace,
                format!(
                    "accessibility_requirements exclude node {}",
                    self.settings().node
                ),
            ));
        }
        let handle = Handle {
            node: self.settings().node.clone(),
            class: class.name.clone(),
            key: id.key,
        };
        let (origin, source) = match &request.source {
            None => (Origin::Blank, None),
            Some(source) => {
                let found = self.source_of(source, &class).await?;
                (Origin::CopyOf(found.id), Some(found))
            }
        };
        let features = class.backend.features().await?;
        let spec = ImageSpec {
            id,
            size: choose_size(features, &request, source.as_ref())?,
            labels: volume_labels(features, &request, source.as_ref()).await?,
            origin,
        };
        let create = || class.backend.create(&spec);
        let image = self
            .with_room(&class, spec.size, create)
            .await?
            .into_inner();
        self.known.insert(&class, id);
        fail::point("create-volume.made");
        if let Some(Source::Volume(_)) = &request.source {
            // The point in time is fixed: the source can be used again while the data is copied.
            guard.keep_only(id);
        }
        class.backend.finish(&spec).await?;
        tracing::info!(volume.id = %handle, volume.name = %request.name, bytes = image.size.bytes(), "volume created");
        Ok(LocatedImage {
            handle,
            class,
            image,
        }
        .into())
    }

    /// The class that the request names, else the class of its source, else the default class.
    fn class_of(&self, request: &CreateVolume) -> Result<Class> {
        let name = parameters::class(&request.parameters)?;
        if name.is_none()
            && let Some(source) = &request.source
            && let Some(handle) = source.split().1.handle()
            && handle.node == self.settings().node
            && let Some(class) = self.classes.get(&handle.class)
        {
            return Ok(class);
        }
        self.classes.find(name.as_ref())
    }

    /// The existing image with this key, in any class that can be read.
    pub(crate) async fn named(&self, wanted: &Class, id: ImageId) -> Result<Option<LocatedImage>> {
        // First in the class itself: a class that was away may have an image of the same name.
        if let Some(image) = wanted.backend.get(id).await? {
            return Ok(Some(self.found(wanted, image)));
        }
        let get = move |class: Class| async move { class.backend.get(id).await };
        for (class, image) in self.of_each_class_but(wanted, get).await {
            match image {
                Ok(Some(image)) => return Ok(Some(self.found(&class, image))),
                Ok(None) => {}
                // An unavailable class must not block calls for this one.
                Err(error) => self.known.check_unused(&class, id, error)?,
            }
        }
        Ok(None)
    }

    async fn source_of(&self, source: &Source, class: &Class) -> Result<Image> {
        let (kind, reference) = source.split();
        let found = match kind {
            ImageKind::Snapshot => self.find_snapshot(reference).await?,
            _ => self.find(kind, reference).await?,
        };
        found.healthy()?;
        if found.class.name != class.name {
            return Err(Error::invalid(format!(
                "volume_content_source: {} {reference} is in class {}; a copy must be in the same class, not in {}",
                kind.word(),
                found.class.name,
                class.name
            )));
        }
        Ok(found.image)
    }

    /// One volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get_volume(&self, reference: &Reference) -> Result<Volume> {
        let found = self.find(ImageKind::Volume, reference).await;
        found.map(Volume::from).map_err(not_here)
    }

    /// The volumes of all classes that can be read, in pages.
    ///
    /// # Errors
    /// `StaleToken`; errors of a class, `Silent` naming one that does not answer.
    pub async fn list_volumes(&self, page: &PageRequest) -> Result<Listing<Volume>> {
        let all = self.everything(ImageKind::Volume).await?;
        Ok(page.cut(all)?.map(Volume::from))
    }

    /// Lists every image of a kind. A class that cannot be read fails the whole list: an omitted volume would appear
    /// lost.
    pub(crate) async fn everything(&self, kind: ImageKind) -> Result<Vec<LocatedImage>> {
        let mut all = Vec::new();
        for (class, images) in self.lists(kind).await {
            let images = images?;
            self.known.replace(&class, kind, &images);
            all.extend(images.into_iter().map(|image| self.found(&class, image)));
        }
        Ok(all)
    }

    /// Expands a volume. Returns its size, and true if the node must grow the file system.
    ///
    /// # Errors
    /// `Invalid`, `Unsupported`, `NotFound`, `OutOfRange`, `NoSpace`, `Busy`, `Precondition`.
    pub async fn expand_volume(
        self: &Arc<Self>,
        reference: &Reference,
        size: SizeRange,
        capability: Option<Capability>,
    ) -> Result<(Size, bool)> {
        if size == SizeRange::default() {
            return Err(Error::invalid("capacity_range is missing"));
        }
        if let Some(capability) = &capability {
            check_capabilities("volume_capability", std::slice::from_ref(capability))?;
        }
        let place = self.place(ImageKind::Volume, reference).map_err(not_here)?;
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let found = place.find().await?;
                let image = found.healthy()?;
                found.supports(capability.as_slice())?;
                let has_file_system = image.file_system().is_some()
                    && !capability.is_some_and(|capability| capability.is_block());
                // A volume never shrinks: a limit below its current size is OUT_OF_RANGE.
                let rules = found.class.backend.features().await?.sizes;
                let wanted = size.choose(&rules, Some(image.size))?;
                let more = wanted.bytes().saturating_sub(image.size.bytes());
                let grow = || found.class.backend.grow(image.id, wanted);
                let after = this.with_room(&found.class, Size::try_from(more)?, grow).await?;
                let after = after.into_inner();
                fail::point("expand-volume.grown");
                if after.size > image.size {
                    tracing::info!(volume.id = %found.handle, bytes = after.size.bytes(), "volume expanded");
                }
                Ok((after.size, has_file_system))
            })
            .await
    }

    /// Sets and removes mutable parameters: `protected`, limits of reads and writes, `label.<name>` (an empty value removes a
    /// limit or a label). A limit holds at once.
    ///
    /// # Errors
    /// `Invalid` naming the parameter, `NotFound`, `Busy`, `Precondition` for limits that this host cannot set.
    pub async fn modify_volume(
        self: &Arc<Self>,
        reference: &Reference,
        parameters: Map,
    ) -> Result<()> {
        mutable_parameters::check(&parameters)?;
        let place = self.place(ImageKind::Volume, reference).map_err(not_here)?;
        self.check_limits(&parameters, &place.class).await?;
        let holds = vec![LockMode::Exclusive(place.id)];
        let this = Arc::clone(self);
        self.changes
            .run(holds, async move {
                let mut found = place.find().await?;
                let image = found.readable()?;
                let change = mutable_parameters::change(&parameters);
                if let Some(labels) = change.apply(&image.labels) {
                    found.class.backend.relabel(image.id, &change).await?;
                    fail::point("modify-volume.recorded");
                    found.image.labels = labels;
                    tracing::info!(volume.id = %found.handle, "volume modified");
                }
                // Also of a repeated call: the first one may not have come so far.
                if mutable_parameters::limits_anything(&parameters) {
                    this.limit(&found).await?;
                } else if mutable_parameters::names_limits(&parameters) {
                    this.limit_if_possible(&found).await;
                }
                Ok(())
            })
            .await
    }

    /// Checks that limits among mutable parameters are below those of the class, and that this host can set them.
    async fn check_limits(&self, mutable: &Map, class: &Class) -> Result<()> {
        mutable_parameters::check_limits(mutable, &class.limits)?;
        if mutable_parameters::limits_anything(mutable) {
            self.limiter.check().await?;
        }
        Ok(())
    }
}

impl LocatedImage {
    fn condition(&self) -> Condition {
        Condition::with(self.faults().first())
    }
}

/// The image id of the volume with name `name`.
pub(crate) fn volume_id(name: &Name) -> ImageId {
    let kind = ImageKind::Volume;
    ImageId {
        kind,
        key: Key::of(kind, name),
    }
}

/// Refuses capabilities that a local volume does not support, and contradictory ones.
pub(crate) fn check_capabilities(field: &str, capabilities: &[Capability]) -> Result<()> {
    if capabilities.is_empty() {
        return Err(Error::invalid(format!("{field} is missing")));
    }
    let mut file_system = None;
    for capability in capabilities {
        if capability.mode.is_multi_node() {
            return Err(Error::unsupported(format!(
                "{field}: access mode {} needs several nodes, but a local volume is on one node only",
                capability.mode.word()
            )));
        }
        if let AccessType::Mount { flags, .. } = &capability.access_type {
            let kind = capability.file_system();
            if let (Some(one), Some(other)) = (file_system, kind)
                && one != other
            {
                return Err(Error::invalid(format!(
                    "{field}: one volume cannot have the file systems {one} and {other}"
                )));
            }
            file_system = file_system.or(kind);
            crate::ops::stage::check_flags(field, kind, flags)?;
        }
    }
    Ok(())
}

/// The requested file system, if any: by name, else the one of the class.
fn wanted_file_system(features: Features, capabilities: &[Capability]) -> Option<FileSystem> {
    let mut mounts = capabilities
        .iter()
        .filter(|capability| !capability.is_block());
    mounts.clone().next()?;
    let named = mounts.find_map(Capability::file_system);
    Some(named.unwrap_or(features.file_system))
}

fn choose_size(features: Features, request: &CreateVolume, source: Option<&Image>) -> Result<Size> {
    let mut rules = features.sizes;
    if source.is_none()
        && let Some(kind) = wanted_file_system(features, &request.capabilities)
    {
        rules.minimum = rules.minimum.max(minimum_size(kind));
    }
    request.size.choose(&rules, source.map(|image| image.size))
}

async fn volume_labels(
    features: Features,
    request: &CreateVolume,
    source: Option<&Image>,
) -> Result<Labels> {
    let mut labels = Labels::from([
        (labels::NAME.to_owned(), request.name.to_string()),
        (labels::CREATED.to_owned(), labels::now()),
        (
            labels::PARAMETERS.to_owned(),
            labels::json(&request.parameters)?,
        ),
    ]);
    labels.extend(mutable_parameters::change(&request.mutable).set);
    if !request.mutable.is_empty() {
        labels.insert(labels::MUTABLE.to_owned(), labels::json(&request.mutable)?);
    }
    if let (Some(from), Some(image)) = (&request.source, source) {
        labels.insert(labels::SOURCE.to_owned(), from.to_label());
        inherit(&mut labels, request, image)?;
    } else if let Some(kind) = wanted_file_system(features, &request.capabilities) {
        format::check_maker(kind).await?;
        labels.insert(labels::FILE_SYSTEM.to_owned(), kind.to_string());
        labels.insert(labels::FORMAT.to_owned(), "pending".to_owned());
    }
    Ok(labels)
}

/// A copy inherits the file system of its source, or its label that allows formatting if the source was never
/// formatted.
fn inherit(labels: &mut Labels, request: &CreateVolume, source: &Image) -> Result<()> {
    let Some(kind) = source.file_system() else {
        return Ok(());
    };
    for capability in &request.capabilities {
        if let Some(wanted) = capability.file_system()
            && wanted != kind
        {
            return Err(Error::invalid(format!(
                "volume_capabilities: fs_type is {wanted}, but the file system of the source is {kind}"
            )));
        }
    }
    labels.insert(labels::FILE_SYSTEM.to_owned(), kind.to_string());
    match source.label(labels::FORMAT) {
        Some(state) => labels.insert(labels::FORMAT.to_owned(), state.to_owned()),
        None => labels.insert(labels::IDENTITY.to_owned(), "copied".to_owned()),
    };
    Ok(())
}
