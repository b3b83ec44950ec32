//! What must come of the manifests, whatever happened on the way.

use std::collections::BTreeMap;

use crate::host::object;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Volume,
    Snapshot,
    Group,
    GroupSnapshot,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Volume => "Volume",
            Self::Snapshot => "Snapshot",
            Self::Group => "VolumeGroup",
            Self::GroupSnapshot => "GroupSnapshot",
        }
    }

    /// Where the agent has what it made of such objects.
    pub(super) fn directory(self) -> &'static str {
        match self {
            Self::Volume => "volumes",
            Self::Snapshot => "snapshots",
            Self::Group => "groups",
            Self::GroupSnapshot => "group-snapshots",
        }
    }

    /// The field of a status that has its id.
    pub(super) fn handle(self) -> &'static str {
        match self {
            Self::Volume => "volumeHandle",
            Self::Snapshot => "snapshotHandle",
            Self::Group => "groupHandle",
            Self::GroupSnapshot => "groupSnapshotHandle",
        }
    }

    /// Whether it shows a moment: another one of the same name is another moment.
    fn is_moment(self) -> bool {
        matches!(self, Self::Snapshot | Self::GroupSnapshot)
    }
}

/// An object by kind and name.
pub(super) type Key = (Kind, &'static str);

/// All objects of a history. A snapshot is of the volume beside it, the group is of all volumes.
pub(super) const OBJECTS: [Key; 7] = [
    (Kind::Volume, "v0"),
    (Kind::Volume, "v1"),
    MOUNTED,
    (Kind::Snapshot, "s0"),
    (Kind::Snapshot, "s1"),
    GROUP,
    (Kind::GroupSnapshot, "t"),
];

/// The volume with a file system, which is mounted.
pub(super) const MOUNTED: Key = (Kind::Volume, "v2");

/// The group of all volumes.
pub(super) const GROUP: Key = (Kind::Group, "g");

/// What an image has that was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// These bytes, at its beginning.
    Bytes(u64),
    /// These, in a file of its file system.
    File(u64),
    /// Nothing that is looked at.
    Something,
}

/// The volume that a snapshot is of.
pub(super) fn source(name: &str) -> &'static str {
    if name == "s0" { "v0" } else { "v1" }
}

/// What a valid manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Of a volume, in MiB.
    pub(super) capacity: u64,
    pub(super) is_absent: bool,
    pub(super) is_deleted: bool,
}

impl Manifest {
    /// The document; a volume with a file system is mounted at this path.
    pub(super) fn text(&self, key: Key, path: &str) -> String {
        let (kind, name) = key;
        let policy = if self.is_deleted { "Delete" } else { "Retain" };
        let mut metadata = String::new();
        if self.is_absent {
            metadata.push_str("  annotations: {drumlin.dev/state: absent}\n");
        }
        if kind == Kind::Volume {
            metadata.push_str("  labels: {in: g}\n");
        }
        let capacity = self.capacity;
        let spec = match kind {
            Kind::Volume if key == MOUNTED => {
                format!("capacity: {capacity}Mi, mount: {{path: {path}}}")
            }
            Kind::Volume => format!("capacity: {capacity}Mi, volumeMode: Block"),
            Kind::Snapshot => format!("source: {{volumeName: {}}}", source(name)),
            Kind::Group => "selector: {matchLabels: {in: g}}".to_owned(),
            Kind::GroupSnapshot => "groupName: g".to_owned(),
        };
        let spec = format!("{spec}, deletionPolicy: {policy}");
        object(kind.word(), name, &metadata, &spec)
    }

    /// Whether it asks for the bytes to be destroyed.
    pub(super) fn destroys(&self) -> bool {
        self.is_absent && self.is_deleted
    }
}

/// The file of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum File {
    Away,
    Broken,
    Valid(Manifest),
}

/// What must be so of an object.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) file: File,
    /// The last valid manifest since there is a record of it.
    pub(super) says: Option<Manifest>,
    /// Its record is kept though its file was away, and has said nothing valid since.
    pub(super) is_orphan: bool,
    /// The id that it has, once it was Ready.
    pub(super) image: Option<String>,
    /// The snapshots that a group snapshot has by then.
    pub(super) members: Vec<String>,
    /// What it has been grown to, in MiB.
    pub(super) capacity: u64,
}

impl Wanted {
    /// Whether it is to be there.
    pub(super) fn asks(&self) -> bool {
        self.says.as_ref().is_some_and(|says| !says.is_absent)
    }
}

/// The whole.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) objects: BTreeMap<Key, Wanted>,
    /// What every image must have that was used, by its id, until its end is asked for.
    pub(super) images: BTreeMap<String, (Kind, Holds)>,
}

impl Model {
    pub(super) fn new() -> Self {
        let nothing = Wanted {
            file: File::Away,
            says: None,
            is_orphan: false,
            image: None,
            members: Vec::new(),
            capacity: 16,
        };
        Self {
            objects: OBJECTS.map(|key| (key, nothing.clone())).into(),
            images: BTreeMap::new(),
        }
    }

    pub(super) fn wanted(&mut self, key: Key) -> &mut Wanted {
        self.objects.get_mut(&key).unwrap()
    }

    /// Whether an object comes to be Ready: what it is made of must be there.
    pub(super) fn is_to_be_ready(&self, key: Key) -> bool {
        let wanted = &self.objects[&key];
        if !wanted.asks() || wanted.is_orphan {
            return false;
        }
        // One that was taken stays; a new one needs what it is made of.
        match key.0 {
            Kind::Volume => true,
            Kind::Snapshot => {
                let volume = &self.objects[&(Kind::Volume, source(key.1))];
                let is_there = volume.image.is_some() || !volume.is_orphan;
                wanted.image.is_some() || (volume.asks() && is_there)
            }
            Kind::Group => {
                let mut volumes = self.volumes();
                let is_known = |(key, volume): (Key, &Wanted)| {
                    !volume.asks() || volume.image.is_some() || self.is_to_be_ready(key)
                };
                volumes.clone().any(|(_, volume)| volume.asks()) && volumes.all(is_known)
            }
            Kind::GroupSnapshot => wanted.image.is_some() || self.is_to_be_ready(GROUP),
        }
    }

    /// Whether an object may come to be Ready, and need not: a group snapshot of a group that is an orphan, whose members
    /// may have changed since.
    pub(super) fn may_be_ready(&self, key: Key) -> bool {
        let wanted = &self.objects[&key];
        let group = &self.objects[&GROUP];
        let is_kept = group.is_orphan && group.image.is_some();
        key.0 == Kind::GroupSnapshot && wanted.asks() && !wanted.is_orphan && is_kept
    }

    fn volumes(&self) -> impl Iterator<Item = (Key, &Wanted)> + Clone {
        let all = self.objects.iter().map(|(key, wanted)| (*key, wanted));
        all.filter(|(key, _)| key.0 == Kind::Volume)
    }

    /// Whether a group may hold an object that is to go, and nobody has it let go: it is released, or in no manifest.
    pub(super) fn may_be_held(&self, key: Key) -> bool {
        let group = &self.objects[&GROUP];
        let is_looked_after = group.asks() && !group.is_orphan;
        key.0 == Kind::Volume && group.image.is_some() && !is_looked_after
    }

    /// A file says something else from now on, or is broken or away.
    pub(super) fn write(&mut self, key: Key, file: File) {
        let wanted = self.wanted(key);
        match &file {
            File::Valid(manifest) => {
                wanted.says = Some(manifest.clone());
                wanted.is_orphan = false;
                wanted.capacity = wanted.capacity.max(manifest.capacity);
            }
            // What has gone as it was asked to, or was never begun, is forgotten with its file.
            File::Away if !wanted.asks() || wanted.image.is_none() => {
                wanted.says = None;
                wanted.let_go(key.0);
            }
            File::Away => wanted.is_orphan = true,
            File::Broken => {}
        }
        wanted.file = file;
    }

    /// The node is called otherwise, and so is all that was made on it.
    pub(super) fn rename(&mut self, before: &str, now: &str) {
        let renamed = |handle: &String| {
            let rest = handle.strip_prefix(before).unwrap();
            format!("{now}{rest}")
        };
        for wanted in self.objects.values_mut() {
            wanted.image = wanted.image.as_ref().map(renamed);
            wanted.members = wanted.members.iter().map(renamed).collect();
        }
        let images = std::mem::take(&mut self.images).into_iter();
        self.images = images
            .map(|(handle, held)| (renamed(&handle), held))
            .collect();
    }

    /// The state directory is lost: only what the files say now is known.
    pub(super) fn forget(&mut self) {
        for (key, wanted) in &mut self.objects {
            // What it has let go of says so itself.
            let was_released = wanted.says.as_ref().is_some_and(|says| says.is_absent);
            wanted.is_orphan = false;
            match &wanted.file {
                File::Valid(manifest) => wanted.says = Some(manifest.clone()),
                File::Away | File::Broken => wanted.says = None,
            }
            if was_released || !wanted.asks() && matches!(wanted.file, File::Valid(_)) {
                wanted.let_go(key.0);
            }
        }
    }
}

impl Wanted {
    /// The name of a moment that was released means another one from now on; that of a volume means the same.
    fn let_go(&mut self, kind: Kind) {
        if kind.is_moment() {
            self.image = None;
            self.members.clear();
        }
    }
}
