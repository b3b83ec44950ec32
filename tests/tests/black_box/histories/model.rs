//! What must come of the manifests, whatever happened on the way.

use std::collections::BTreeMap;

use crate::host::object;

/// A kind of object whose bytes matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Volume => "Volume",
            Self::Snapshot => "Snapshot",
        }
    }
}

/// An object by kind and name.
pub(super) type Key = (Kind, &'static str);

/// All objects of a history. A snapshot is of the volume beside it.
pub(super) const OBJECTS: [Key; 5] = [
    (Kind::Volume, "v0"),
    (Kind::Volume, "v1"),
    (Kind::Volume, "v2"),
    (Kind::Snapshot, "s0"),
    (Kind::Snapshot, "s1"),
];

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
    /// The document.
    pub(super) fn text(&self, (kind, name): Key) -> String {
        let state = if self.is_absent { "absent" } else { "present" };
        let policy = if self.is_deleted { "Delete" } else { "Retain" };
        let metadata = match state {
            "absent" => "  annotations: {drumlin.dev/state: absent}\n",
            _ => "",
        };
        let spec = match kind {
            Kind::Volume => format!("capacity: {}Mi, volumeMode: Block", self.capacity),
            Kind::Snapshot => format!("source: {{volumeName: {}}}", source(name)),
        };
        let spec = format!("{spec}, deletionPolicy: {policy}");
        object(kind.word(), name, metadata, &spec)
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
    /// The id and the bytes that it has, once it was Ready.
    pub(super) image: Option<(String, u64)>,
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
    /// What bytes every image that was used must have, by its id, until its end is asked for.
    pub(super) images: BTreeMap<String, (Kind, u64)>,
}

impl Model {
    pub(super) fn new() -> Self {
        let nothing = Wanted {
            file: File::Away,
            says: None,
            is_orphan: false,
            image: None,
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
        match key.0 {
            Kind::Volume => true,
            // One that was taken stays; a new one needs its volume.
            Kind::Snapshot => {
                let volume = &self.objects[&(Kind::Volume, source(key.1))];
                let is_there = volume.image.is_some() || !volume.is_orphan;
                wanted.image.is_some() || (volume.asks() && is_there)
            }
        }
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

    /// The state directory is lost: only what the files say now is known.
    pub(super) fn forget(&mut self) {
        for (key, wanted) in &mut self.objects {
            wanted.is_orphan = false;
            match &wanted.file {
                File::Valid(manifest) => wanted.says = Some(manifest.clone()),
                File::Away | File::Broken => wanted.says = None,
            }
            if !wanted.asks() && matches!(wanted.file, File::Valid(_)) {
                wanted.let_go(key.0);
            }
        }
    }
}

impl Wanted {
    /// The name of a moment that was released means another one from now on; that of a volume means the same.
    fn let_go(&mut self, kind: Kind) {
        if kind == Kind::Snapshot {
            self.image = None;
        }
    }
}
