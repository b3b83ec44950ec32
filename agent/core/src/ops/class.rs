//! Device classes: a name, a back end, one of them the default.

use std::sync::{Arc, Mutex};

use crate::{
    Error, Kind, Result,
    backend::{Backend, encrypted::ClassKeys},
    host::{io_limits::IoLimits, lock},
    ops::TrashPolicy,
    types::{ClassName, NodeName},
};

/// A device class.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its name; part of the handles of its images.
    pub name: ClassName,
    /// The back end that stores its images.
    pub backend: Arc<dyn Backend>,
    /// How long it keeps what is deleted; none if it is destroyed at once.
    pub trash: Option<TrashPolicy>,
    /// The highest rates of each of its volumes.
    pub limits: IoLimits,
    /// The keys of its back end, if that encrypts.
    pub keys: Arc<ClassKeys>,
}

/// The classes that an agent has at a time.
#[derive(Debug, Clone, Default)]
pub struct ClassSet {
    /// The classes in which volumes can be created.
    pub open: Vec<Class>,
    /// The class of volumes whose parameters name none; it may be on other nodes only.
    pub default: Option<ClassName>,
    /// Retired classes: no volume is created in them, and they stay until their last volume is deleted.
    pub retired: Vec<Class>,
    /// The classes that are configured for other nodes.
    pub elsewhere: Vec<ClassName>,
    /// Those of `elsewhere` whose storage on this node could not be read: their volumes, if any, are unknown.
    pub unread: Vec<ClassName>,
    /// Why it is not known which classes this node has, if it is not.
    pub undecided: Option<String>,
}

/// The classes of an agent. They can be replaced while it serves.
#[derive(Debug, Default)]
pub struct Classes(Mutex<Arc<ClassSet>>);

impl Class {
    /// Returns true if this is the same class over the same back end.
    pub fn is(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.backend, &other.backend)
    }
}

impl From<Vec<Class>> for ClassSet {
    /// Open classes; the first one is the default.
    fn from(open: Vec<Class>) -> Self {
        Self {
            default: open.first().map(|class| class.name.clone()),
            open,
            ..Self::default()
        }
    }
}

impl ClassSet {
    /// All classes: the open ones, then the retired ones.
    pub fn all(&self) -> impl Iterator<Item = &Class> {
        self.open.iter().chain(&self.retired)
    }

    /// Returns true for a class in which volumes can be created.
    pub(crate) fn is_open(&self, class: &Class) -> bool {
        self.open.iter().any(|open| open.is(class))
    }
}

impl Classes {
    /// These classes.
    pub fn new(set: ClassSet) -> Self {
        Self(Mutex::new(Arc::new(set)))
    }

    /// Checks the names of the classes of a configuration for node `node`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if two classes have the same name, or if handles would exceed 128 bytes.
    pub fn check_names(node: &NodeName, names: &[ClassName]) -> Result<()> {
        for (index, name) in names.iter().enumerate() {
            let id = node.as_str().len() + name.as_str().len() + 2 + 36;
            if id > crate::types::HANDLE_BYTES {
                return Err(Error::invalid(format!(
                    "volume ids of node {node} and class {name} would have {id} bytes, at most {} are allowed; choose shorter names",
                    crate::types::HANDLE_BYTES
                )));
            }
            if names.iter().skip(index + 1).any(|other| other == name) {
                return Err(Error::invalid(format!(
                    "class {name} is configured twice; give each class its own name"
                )));
            }
        }
        Ok(())
    }

    /// The classes at this time.
    pub(crate) fn now(&self) -> Arc<ClassSet> {
        Arc::clone(&lock(&self.0))
    }

    pub(crate) fn replace(&self, set: ClassSet) {
        *lock(&self.0) = Arc::new(set);
    }

    /// All classes at this time: the open ones, then the retired ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Class> + use<> {
        self.now().all().cloned().collect::<Vec<_>>().into_iter()
    }

    /// The class of an image that exists, open or retired.
    pub(crate) fn get(&self, name: &ClassName) -> Option<Class> {
        self.now().all().find(|class| class.name == *name).cloned()
    }

    /// The class `name`, or the default one when no name is given. It may be retired: what was created in it earlier can
    /// be found, and before anything is created [`Self::check_open`] decides.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] for a class that other nodes have, [`Kind::Invalid`] for one that no node has.
    pub(crate) fn find(&self, name: Option<&ClassName>) -> Result<Class> {
        let set = self.now();
        let wanted = name.or(set.default.as_ref());
        let found = wanted.and_then(|wanted| set.all().find(|class| class.name == *wanted));
        found.cloned().ok_or_else(|| set.refusal(wanted))
    }

    /// Checks that volumes can be created in a class.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] if it is retired.
    pub(crate) fn check_open(&self, class: &Class) -> Result<()> {
        if self.now().is_open(class) {
            return Ok(());
        }
        Err(Error::new(
            Kind::NoSpace,
            format!(
                "class {} is retired on this node: nothing new is created in it, and its volumes can be used",
                class.name
            ),
        ))
    }
}

impl ClassSet {
    /// Why there is no such class.
    fn refusal(&self, wanted: Option<&ClassName>) -> Error {
        let Some(wanted) = wanted else {
            return Error::new(
                Kind::NoSpace,
                "parameters.class is missing, and this node has no default class",
            );
        };
        if self.elsewhere.contains(wanted) {
            let why = self
                .undecided
                .as_deref()
                .unwrap_or("its nodeSelector does not match the labels of this node");
            return Error::new(
                Kind::NoSpace,
                format!("class {wanted} is not on this node: {why}"),
            );
        }
        let names: Vec<&str> = self.open.iter().map(|class| class.name.as_str()).collect();
        Error::new(
            Kind::Invalid,
            format!(
                "parameters.class: class {wanted} does not exist on this node; choose one of: {}",
                names.join(", ")
            ),
        )
    }
}
