//! Volumes that others made: listed, adopted in place, and handed back. Their data is never written.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::foreign_contents::{Contents, HostMounts, MountedAt, is_of_kubelet, logical_volume};
use crate::ops::{
    Class, Operations,
    devices::PathState,
    labels::{self, Read},
    locks::LockMode,
    lookup::{LocatedImage, not_here},
    parameters,
    volume::volume_id,
};
use crate::{
    Error, Kind, Result,
    backend::{AdoptionSpec, ForeignVolume, Labels, Maker, Selection, foreign::not_adoptable},
    blocking, fail,
    host::{FileSystem, Probe, Superblock, mount, probe},
    types::{AbsolutePath, ClassName, Handle, ImageId, ImageKind, Map, Name, Reference},
};

/// A volume that others made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// What its back end knows of it, with all refusals and warnings.
    pub volume: ForeignVolume,
    /// The class that it would be in; none if no class can have it.
    pub class: Option<ClassName>,
    /// Its file system, if this agent mounts that.
    pub file_system: Option<FileSystem>,
    /// Where it is mounted.
    pub mount: Option<MountedAt>,
}

/// The volumes that others made, and the classes that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForeignList {
    /// The volumes, by location.
    pub volumes: Vec<Foreign>,
    /// The classes that could not be read, each with the reason.
    pub unreadable: Vec<(ClassName, String)>,
}

/// Whether a change is made, or only checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Everything is checked, and nothing is changed.
    Dry,
    /// The change is made.
    Real,
}

/// A request to adopt a volume that others made.
#[derive(Debug, Clone)]
pub struct AdoptVolume {
    /// Its location: `GROUP/NAME` or the path of a logical volume, or the path of an image file.
    pub source: String,
    /// The class that it comes to; none for the one that fits.
    pub class: Option<ClassName>,
    /// The name of the volume that it becomes, the idempotency key.
    pub name: Name,
    /// The parameters that describe its owner.
    pub owner: Map,
    /// Whether it is adopted or only checked.
    pub run: Run,
}

/// An adopted volume, or one that would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The handle of the volume.
    pub handle: Handle,
    /// What it was before.
    pub foreign: Foreign,
}

/// A request to hand a volume back to the host.
#[derive(Debug, Clone)]
pub struct ReleaseVolume {
    /// The volume.
    pub volume: Reference,
    /// Where its image file is moved to; none for where it was adopted.
    pub to: Option<PathBuf>,
    /// The staging path of the caller: if it is mounted there, it is unmounted. Other mounts stay.
    pub staging: Option<AbsolutePath>,
    /// Whether it is handed back or only checked.
    pub run: Run,
}

/// A volume that was handed back, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Its location: `GROUP/NAME` of a logical volume, or the path of an image file.
    pub source: String,
    /// Where it stays mounted.
    pub mounts: Vec<String>,
}

impl Operations {
    /// Lists the volumes in the storage of the classes that this agent has not made. Changes nothing.
    ///
    /// # Errors
    /// None for a class that cannot be read: it is reported beside the others.
    pub async fn list_foreign(&self) -> Result<ForeignList> {
        let mut list = ForeignList::default();
        let mut found: BTreeMap<String, Foreign> = BTreeMap::new();
        for class in self.classes.iter() {
            let (own, reading) = (class.clone(), class.clone());
            let read = async move { look_at(&own, Selection::All).await };
            match reading.read(read).await {
                Ok(volumes) => {
                    for volume in volumes {
                        match found.entry(volume.volume.source.clone()) {
                            Entry::Vacant(new) => drop(new.insert(volume)),
                            Entry::Occupied(mut known) => known.get_mut().or_else(volume),
                        }
                    }
                }
                Err(error) => list.unreadable.push((class.name.clone(), error.chain())),
            }
        }
        list.volumes = found.into_values().map(Foreign::with_misfit).collect();
        Ok(list)
    }

    /// Adopts a volume that others made. Idempotent: it is found again by the name. Only its record is written.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` if the name has another volume, `Precondition` with every reason why it cannot be adopted
    /// and what to do, `Busy`.
    pub async fn adopt_volume(self: &Arc<Self>, request: AdoptVolume) -> Result<Adopted> {
        parameters::check_owner(&request.owner)?;
        let source = logical_volume(&request.source).unwrap_or_else(|| request.source.clone());
        let request = AdoptVolume { source, ..request };
        let id = volume_id(&request.name);
        let this = Arc::clone(self);
        self.changes
            .run(vec![LockMode::Exclusive(id)], async move {
                this.adopt(id, request).await
            })
            .await
    }

    async fn adopt(&self, id: ImageId, request: AdoptVolume) -> Result<Adopted> {
        if let Some(found) = self.existing(id).await? {
            return adopted_before(found, &request).await;
        }
        let (class, foreign) = self.foreign_at(&request).await?;
        self.classes.check_open(&class)?;
        let AdoptVolume {
            source,
            name,
            owner,
            ..
        } = request;
        let mut refusals = foreign.volume.refusals.clone();
        refusals.extend(foreign.volume.misfit.clone());
        if refusals.is_empty()
            && let Some(FileSystem::Btrfs) = foreign.file_system
        {
            refusals.extend(same_btrfs(&class, &foreign).await?);
        }
        if !refusals.is_empty() {
            return Err(not_adoptable(&source, &refusals));
        }
        let spec = AdoptionSpec {
            labels: adopted_labels(&class, &foreign, (&name, owner))?,
            id,
            source,
        };
        class.backend.check_adoption(&spec).await?;
        let handle = self.handle_in(&class, id);
        if request.run == Run::Real {
            fail::point("adopt-volume.checked");
            class.backend.adopt(&spec).await?;
            self.known.insert(&class, id);
            fail::point("adopt-volume.adopted");
            tracing::info!(volume.id = %handle, volume.name = %name, source = %spec.source, "volume of others adopted");
        }
        Ok(Adopted { handle, foreign })
    }

    /// The volume with this id in any class.
    async fn existing(&self, id: ImageId) -> Result<Option<LocatedImage>> {
        match self.classes.iter().next() {
            Some(first) => self.named(&first, id).await,
            None => Ok(None),
        }
    }

    /// The volume at the location of a request, and the class that it would be in.
    async fn foreign_at(&self, request: &AdoptVolume) -> Result<(Class, Foreign)> {
        if request.class.is_some() {
            self.classes.find(request.class.as_ref())?;
        }
        let mut found: Option<(Class, Foreign)> = None;
        let mut unreadable = None;
        for class in self.classes.iter() {
            if request
                .class
                .as_ref()
                .is_some_and(|name| *name != class.name)
            {
                continue;
            }
            let (own, source) = (class.clone(), request.source.clone());
            let read = async move { look_at(&own, Selection::One(&source)).await };
            match class.read(read).await {
                Ok(volumes) => {
                    for volume in volumes {
                        match &mut found {
                            None => found = Some((class.clone(), volume)),
                            Some((fits, known)) => {
                                if known.class.is_none() && volume.class.is_some() {
                                    *fits = class.clone();
                                }
                                known.or_else(volume);
                            }
                        }
                    }
                }
                Err(error) => unreadable = Some((class.name.clone(), error)),
            }
        }
        match (found, unreadable) {
            (Some(found), _) => Ok(found),
            (None, Some((class, error))) => Err(Error::new(
                error.kind(),
                format!(
                    "{} was not found, but class {class} could not be read",
                    request.source
                ),
            )
            .because(error)),
            (None, None) => Err(Error::not_found(missing(&request.source))),
        }
    }

    /// Hands a volume back to the host: its record is removed, its data, its name and its mounts stay.
    ///
    /// # Errors
    /// `Invalid` for the path, `NotFound`, `InUse` if it is published or in a pod, `Precondition` if it has snapshots, is
    /// in a group or protected.
    pub async fn release_volume(self: &Arc<Self>, request: ReleaseVolume) -> Result<Released> {
        let place = self
            .place(ImageKind::Volume, &request.volume)
            .map_err(not_here)?;
        let this = Arc::clone(self);
        self.changes
            .run(vec![LockMode::Exclusive(place.id)], async move {
                let found = place.find().await?;
                this.check_releasable(&found).await?;
                this.release(&found, request).await
            })
            .await
    }

    async fn check_releasable(&self, found: &LocatedImage) -> Result<()> {
        found.healthy()?;
        found.check_deletable()?;
        if found.image.is_format_running() {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "the formatting of volume {} was interrupted; mount it once to complete that",
                    found.handle
                ),
            ));
        }
        self.check_in_no_group(found).await?;
        let snapshots = found.class.list(ImageKind::Snapshot).await?;
        let own = found.handle.to_string();
        let snapshots: Vec<String> = snapshots
            .into_iter()
            .filter(|snapshot| snapshot.label(labels::SNAPSHOT_OF) == Some(&own))
            .map(|snapshot| self.handle_in(&found.class, snapshot.id).to_string())
            .collect();
        if snapshots.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Precondition,
            format!(
                "volume {own} has snapshots ({}); delete them first",
                snapshots.join(", ")
            ),
        ))
    }

    async fn release(&self, found: &LocatedImage, request: ReleaseVolume) -> Result<Released> {
        let (backend, id) = (&found.class.backend, found.image.id);
        let adopted = found.image.label(labels::ADOPTED).map(Path::new);
        let adopted = adopted.filter(|path| path.is_absolute());
        let to = request.to.as_deref().or(adopted);
        let source = backend.check_release(id, to).await?;
        let staging = request.staging;
        let run = request.run;
        let looked = found.look(move |found, (devices, table)| {
            let own = staging.as_ref().and_then(|path| mount::resolve(path).ok());
            let mut mounts = Vec::new();
            for mount in devices.mounts(table) {
                if Some(&mount.target) != own.as_ref() {
                    mounts.push(mount.target.display().to_string());
                }
            }
            if let Some(pod) = mounts.iter().find(|target| is_of_kubelet(target)) {
                return Err(Error::new(
                    Kind::InUse,
                    format!(
                        "volume {} is mounted at {pod} for a pod; stop the pod first",
                        found.handle
                    ),
                ));
            }
            if let Some(path) = staging
                && run == Run::Real
                && let PathState::Ours(_) = devices.at(table, &path)
            {
                mount::unmount(&path)?;
                fail::point("release-volume.unstaged");
            }
            Ok(mounts)
        });
        let mounts = looked.await?;
        if run == Run::Real {
            backend.release(id, to).await?;
            self.known.remove(&found.class, id);
            fail::point("release-volume.released");
            tracing::info!(volume.id = %found.handle, source = %source, "volume handed over to the host");
        }
        Ok(Released { source, mounts })
    }
}

impl Foreign {
    /// Takes what a later class says of the same volume: a class that it fits takes precedence, and then the order of the
    /// classes. If it fits none, each says why.
    fn or_else(&mut self, later: Self) {
        if self.class.is_some() {
            return;
        }
        if later.class.is_some() {
            *self = later;
        } else if let (Some(why), Some(more)) = (&mut self.volume.misfit, later.volume.misfit) {
            why.push_str("; ");
            why.push_str(&more);
        }
    }

    /// With the reason why no class can have it among the refusals.
    fn with_misfit(mut self) -> Self {
        if self.class.is_none() {
            self.volume.refusals.extend(self.volume.misfit.clone());
        }
        self
    }
}

/// The volumes of others in the storage of a class, with their contents.
async fn look_at(class: &Class, selection: Selection<'_>) -> Result<Vec<Foreign>> {
    let volumes = class.backend.foreign(selection).await?;
    let name = class.name.clone();
    let look = move || {
        let host = HostMounts::read();
        let volumes = volumes.into_iter();
        let looked = volumes.map(|volume| with_contents(volume, &name, &host));
        Ok(looked.collect())
    };
    blocking(look).await
}

/// One that cannot be read is refused, and hides no other.
fn with_contents(mut volume: ForeignVolume, class: &ClassName, host: &HostMounts) -> Foreign {
    let contents = Contents::of(&volume, host).unwrap_or_else(|error| Contents {
        refusals: vec![format!("it cannot be looked at: {}", error.chain())],
        ..Contents::default()
    });
    volume.refusals.extend(contents.refusals);
    volume.warnings.extend(contents.warnings);
    Foreign {
        class: volume.misfit.is_none().then(|| class.clone()),
        file_system: contents.superblock.map(|superblock| superblock.kind),
        mount: contents.mount,
        volume,
    }
}

/// The answer to a repeated adoption.
async fn adopted_before(found: LocatedImage, request: &AdoptVolume) -> Result<Adopted> {
    if found.image.label(labels::ADOPTED) != Some(&request.source) {
        return Err(Error::new(
            Kind::Conflict,
            format!(
                "name: volume {} has it already, and is not {}",
                found.handle, request.source
            ),
        ));
    }
    let devices = found.class.backend.devices(found.image.id).await?;
    let device = devices.into_iter().next();
    let volume = ForeignVolume {
        source: request.source.clone(),
        size: found.image.size,
        maker: maker(&request.source),
        contents: device.clone(),
        device,
        misfit: None,
        refusals: Vec::new(),
        warnings: Vec::new(),
    };
    let name = found.class.name.clone();
    let mut foreign =
        blocking(move || Ok(with_contents(volume, &name, &HostMounts::read()))).await?;
    foreign.file_system = foreign.file_system.or(found.image.file_system());
    // It is adopted, whatever is there now.
    foreign.volume.refusals.clear();
    Ok(Adopted {
        handle: found.handle,
        foreign,
    })
}

fn maker(source: &str) -> Maker {
    match source.split_once('/') {
        Some((group, name)) if !group.is_empty() => Maker::of_logical_volume(name),
        _ => Maker::Hand,
    }
}

/// Why nothing was found that can be adopted.
fn missing(source: &str) -> String {
    if source.starts_with('/') {
        format!("source {source}: there is no such image file")
    } else {
        format!(
            "source {source}: there is no such logical volume in a volume group of a class of this node (GROUP/NAME); an image file has an absolute path"
        )
    }
}

/// The labels that an adopted volume gets: it is known as one that was formatted before.
fn adopted_labels(class: &Class, foreign: &Foreign, (name, owner): (&Name, Map)) -> Result<Labels> {
    let mut parameters = owner;
    parameters.insert(parameters::CLASS.to_owned(), class.name.to_string());
    let mut labels = Labels::from([
        (labels::NAME.to_owned(), name.to_string()),
        (labels::CREATED.to_owned(), labels::now()),
        (labels::PARAMETERS.to_owned(), labels::json(&parameters)?),
        (labels::ADOPTED.to_owned(), foreign.volume.source.clone()),
    ]);
    let file_system = foreign.file_system.map(|kind| kind.to_string());
    labels.extend(file_system.map(|kind| (labels::FILE_SYSTEM.to_owned(), kind)));
    Ok(labels)
}

/// Why a btrfs cannot be adopted: the kernel takes two with one UUID for the same.
async fn same_btrfs(class: &Class, foreign: &Foreign) -> Result<Option<String>> {
    let own = foreign.volume.clone();
    let others = class.backend.foreign(Selection::All).await?;
    blocking(move || {
        let uuid = |volume: &ForeignVolume| match volume.contents.as_deref().map(probe) {
            Some(Ok(Probe::Known(Superblock { uuid, .. }))) => Some(uuid),
            _ => None,
        };
        let wanted = uuid(&own);
        let mut others = others.iter().filter(|other| other.source != own.source);
        let same = others.find(|other| wanted.is_some() && uuid(other) == wanted);
        Ok(same.map(|same| {
            format!(
                "{} has the same btrfs UUID, so the kernel may mix the two up; give one of them another with btrfstune -u while it is not mounted",
                same.source
            )
        }))
    })
    .await
}
