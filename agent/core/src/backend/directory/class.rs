//! A directory as a back end: its settings, and the operations of all back ends.

use std::{os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{layout::Layout, open_lock::Opening, watched::ListCache};
use crate::{
    Error, Kind, Result,
    backend::{
        Adoption, AttachedDevice, Backend, Capacity, Change, ChangedBlocks, ChangedQuery, Checks,
        Family, Fault, Features, Image, ImageSpec, Jobs, LabelChange, RangeSink, Reason, Running,
        Snapshots, Space, StorageKind, Utilization,
        room::{choose, freed},
        utilization::{percent, sum},
    },
    blocking, blocking_at_once,
    host::{
        Access, Disk, FileSystem, MountTable, TimedMutex, changed, exclusive_bytes, fs_errors,
        quiesce::QuiescePlan,
    },
    types::{ImageId, ImageKind, NodeName, Size, SizeRules},
};

/// Whether the blocks of a volume are reserved at creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Allocation {
    /// Sparse files: blocks are allocated on the first write.
    #[default]
    Thin,
    /// All blocks are reserved and none shared: a volume never runs out of space.
    Thick,
}

/// Settings of a directory class.
#[derive(Debug, Clone)]
pub struct DirectorySettings {
    /// The directory of the images.
    pub path: PathBuf,
    /// Whether blocks are reserved.
    pub allocation: Allocation,
    /// The default file system of new volumes.
    pub file_system: FileSystem,
    /// What to do when `path` is missing.
    pub missing: Missing,
    /// The directory where it is remembered that `path` was used; without it that is forgotten at the end.
    pub memory: Option<PathBuf>,
    /// Timeout of the freeze barrier of a group snapshot; one second by default, and then mounted images that cannot
    /// share blocks are refused.
    pub longest_freeze: Option<Duration>,
    /// This node.
    pub node: NodeName,
    /// The nodes whose images it adopts.
    pub adoption: Adoption,
}

/// What to do when the directory of a class is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Create it: the path belongs to the agent.
    Create,
    /// Report an error: the path belongs to the administrator, and a file system may not be mounted.
    Refuse,
}

/// A directory of image files.
#[derive(Debug)]
pub struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: DirectorySettings,
    pub(super) layout: Layout,
    pub(super) opening: Opening,
    looks: TimedMutex,
    threads: Arc<Semaphore>,
    watched: ListCache,
    pub(super) running: Running,
}

/// Maximum number of threads that work in one directory: a disk that stalls must not block other classes.
const THREADS: usize = 64;
/// Timeout for checking a working directory.
const SLOW_TO_LOOK: Duration = Duration::from_secs(5);
/// The unit of sizes: the largest block size of the file systems that go on top.
pub(super) const UNIT: Size = Size::from_kibibytes(4);
/// The smallest image.
pub(super) const MINIMUM: Size = Size::from_mebibytes(1);
/// The default size of a volume.
const DEFAULT: Size = Size::from_mebibytes(1024);

impl Directory {
    /// A class over a directory, which is opened at the first use.
    pub fn new(settings: DirectorySettings) -> Self {
        Self {
            inner: Arc::new(Inner {
                layout: Layout::new(&settings.path),
                opening: Opening::default(),
                looks: TimedMutex::new(SLOW_TO_LOOK),
                threads: Arc::new(Semaphore::new(THREADS)),
                watched: ListCache::default(),
                running: Running::default(),
                settings,
            }),
        }
    }

    /// Runs `work` where blocking is allowed, after making sure that the directory is usable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        // The semaphore is never closed.
        let permit = Arc::clone(&inner.threads).acquire_owned().await;
        blocking(move || {
            let _permit = permit;
            inner.open()?;
            work(&inner)
        })
        .await
    }
}

impl Inner {
    pub(super) fn capacity(&self) -> Result<Capacity> {
        self.capacity_of(&Disk::of(&self.settings.path)?)
    }

    fn capacity_of(&self, disk: &Disk) -> Result<Capacity> {
        Ok(Capacity {
            available: Size::try_from(disk.available)?,
            largest: Size::try_from(self.room_of(disk.available))?.round_down(UNIT),
        })
    }

    /// The bytes of the largest image where so many are available.
    fn room_of(&self, available: u64) -> u64 {
        match self.settings.allocation {
            Allocation::Thin => available,
            // The file system needs some space for its own metadata.
            Allocation::Thick => available.saturating_sub(available / 256 + (2 << 20)),
        }
    }

    fn does_not_answer(&self) -> Error {
        Error::new(
            Kind::Silent,
            format!(
                "directory {} has not answered for {} s; check its disk and the kernel log",
                self.settings.path.display(),
                SLOW_TO_LOOK.as_secs()
            ),
        )
    }

    fn utilization(&self) -> Result<Utilization> {
        let volumes = self.watched.list(&self.layout, ImageKind::Volume)?;
        let trash = self.watched.list(&self.layout, ImageKind::Trash)?;
        let disk = Disk::of(&self.settings.path)?;
        // As df says it: what is reserved for root is neither used nor available.
        let usable = disk.used.saturating_add(disk.available);
        Ok(Utilization {
            space: Space {
                size: sum([disk.total]),
                promised: sum(volumes.iter().map(|volume| volume.size.bytes())),
                data_percent: Some(percent(disk.used, usable)),
                deleting_percent: 0,
                metadata_percent: None,
            },
            capacity: self.capacity_of(&disk)?,
            volumes: u64::try_from(volumes.len()).unwrap_or(u64::MAX),
            trash: trash.iter().map(|volume| volume.size.bytes()).collect(),
        })
    }
}

#[async_trait]
impl Backend for Directory {
    fn family(&self) -> Family {
        Family::Directory
    }

    fn kind(&self) -> StorageKind {
        StorageKind::Directory
    }

    async fn features(&self) -> Result<Features> {
        Ok(Features {
            sizes: SizeRules {
                unit: UNIT,
                minimum: MINIMUM,
                default: DEFAULT,
            },
            file_system: self.inner.settings.file_system,
            keeps_devices: false,
            takes_back: self.inner.settings.allocation == Allocation::Thin,
        })
    }

    async fn recover(&self) -> Result<()> {
        self.run(|_| Ok(())).await
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.run(Inner::capacity).await
    }

    async fn utilization(&self) -> Result<Utilization> {
        self.run(Inner::utilization).await
    }

    async fn list(&self, kind: ImageKind) -> Result<Vec<Image>> {
        self.run(move |inner| inner.watched.list(&inner.layout, kind))
            .await
    }

    async fn get(&self, id: ImageId) -> Result<Option<Image>> {
        self.run(move |inner| Ok(inner.layout.get(id))).await
    }

    async fn create(&self, spec: &ImageSpec) -> Result<Change<Image>> {
        let spec = spec.clone();
        self.run(move |inner| inner.create(&spec)).await
    }

    async fn grow(&self, id: ImageId, to: Size) -> Result<Change<Image>> {
        self.run(move |inner| inner.grow(id, to)).await
    }

    async fn relabel(&self, id: ImageId, change: &LabelChange) -> Result<Change<Image>> {
        let change = change.clone();
        self.run(move |inner| inner.relabel(id, &change)).await
    }

    async fn rename(
        &self,
        from: ImageId,
        to: ImageId,
        change: &LabelChange,
    ) -> Result<Change<Image>> {
        let change = change.clone();
        self.run(move |inner| {
            let renamed = inner.rename(from, to, &change);
            inner.watched.tidy();
            renamed
        })
        .await
    }

    async fn delete(&self, id: ImageId) -> Result<Change<()>> {
        self.run(move |inner| {
            let deleted = inner.delete(id);
            inner.watched.tidy();
            deleted
        })
        .await
    }

    async fn attach(&self, id: ImageId, access: Access) -> Result<AttachedDevice> {
        self.run(move |inner| inner.attach(id, access)).await
    }

    async fn devices(&self, id: ImageId) -> Result<Vec<PathBuf>> {
        self.run(move |inner| inner.devices(id)).await
    }

    async fn detach(&self, id: ImageId) -> Result<Change<()>> {
        self.run(move |inner| inner.detach(id)).await
    }
}

#[async_trait]
impl ChangedBlocks for Directory {
    async fn changed(&self, query: ChangedQuery, mut sink: Box<dyn RangeSink>) -> Result<()> {
        self.run(move |inner| {
            let image = |id: ImageId| {
                inner.layout.usable(id)?;
                Ok(inner.layout.image(id))
            };
            let target = image(query.target)?;
            match query.base {
                None => changed::allocated(&target, query.start, &mut sink),
                Some(base) => {
                    let (base, target) = (&image(base)?, &target);
                    let pair = changed::Pair { base, target };
                    changed::differing(pair, query.start, &mut sink)
                }
            }
        })
        .await
    }
}

#[async_trait]
impl Checks for Directory {
    /// One system call once the directory is open: a Probe must be cheap. One check at a time: a directory that does
    /// not answer blocks one thread, and Probes only briefly.
    async fn check(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let look = blocking_at_once(move || {
            if inner.was_opened() && inner.check().is_ok() {
                return Ok(());
            }
            inner.open()?;
            inner.check()
        });
        let looked = self.inner.looks.pass(look).await;
        looked.unwrap_or_else(|| Err(self.inner.does_not_answer()))
    }

    fn known_silence(&self) -> Option<Error> {
        let is_silent = self.inner.looks.is_stuck();
        is_silent.then(|| self.inner.does_not_answer())
    }

    async fn faults(&self) -> Vec<Fault> {
        let look = self.run(|inner| {
            let table = MountTable::read()?;
            let mount = table.holding(&inner.settings.path);
            Ok(mount.and_then(fs_errors::errors_of))
        });
        let errors = look.await.unwrap_or_else(|error| Some(error.chain()));
        let errors = errors.map(|errors| Fault::new(Reason::FileSystemErrors, errors));
        errors.into_iter().collect()
    }

    async fn check_deletable(&self, id: ImageId) -> Result<()> {
        self.run(move |inner| inner.check_detachable(id)).await
    }

    /// Each image is a file of its own.
    async fn check_unbound(&self, _: ImageId) -> Result<()> {
        Ok(())
    }

    async fn usage(&self, id: ImageId) -> Result<Option<u64>> {
        self.run(move |inner| {
            inner.layout.usable(id)?;
            let path = inner.layout.image(id);
            let metadata = std::fs::metadata(&path)
                .map_err(|error| Error::io(format!("could not stat {}", path.display()), error))?;
            Ok(Some(metadata.blocks() * 512))
        })
        .await
    }

    async fn room_by_deleting(
        &self,
        needed: Size,
        oldest_first: &[ImageId],
    ) -> Result<Vec<ImageId>> {
        let images = oldest_first.to_vec();
        self.run(move |inner| {
            let disk = Disk::of(&inner.settings.path)?;
            // What cannot be read frees nothing that is certain.
            let frees = |id: &ImageId| exclusive_bytes(&inner.layout.image(*id)).unwrap_or(0);
            let frees: Vec<u64> = images.iter().map(frees).collect();
            Ok(choose(&images, |deleted| {
                let available = disk.available.saturating_add(freed(&frees, deleted));
                inner.room_of(available) >= needed.bytes()
            }))
        })
        .await
    }
}

#[async_trait]
impl Snapshots for Directory {
    async fn check_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()> {
        let specs = specs.to_vec();
        self.run(move |inner| inner.check_copies(&specs)).await
    }

    async fn prepare_group_snapshot(&self, specs: &[ImageSpec]) -> Result<QuiescePlan> {
        let specs = specs.to_vec();
        self.run(move |inner| inner.prepare_copies(&specs)).await
    }

    async fn flush_group_snapshot(&self, specs: &[ImageSpec]) -> Result<()> {
        let specs = specs.to_vec();
        self.run(move |inner| inner.keep_copies(&specs)).await
    }

    async fn check_rollback(&self, pairs: &[(ImageId, ImageId)]) -> Result<()> {
        let pairs = pairs.to_vec();
        self.run(move |inner| inner.check_rollback(&pairs)).await
    }

    async fn roll_back(&self, id: ImageId, from: ImageId) -> Result<()> {
        self.run(move |inner| inner.roll_back(id, from)).await
    }
}

impl Jobs for Directory {
    fn running(&self) -> &Running {
        &self.inner.running
    }
}
