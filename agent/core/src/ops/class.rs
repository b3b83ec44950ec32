//! Device classes: a name, a back end, one of them the default.

use std::sync::Arc;

use crate::{
    Error, Kind, Result,
    backend::Backend,
    types::{ClassName, NodeName},
};

/// A device class.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its name; part of the handles of its images.
    pub name: ClassName,
    /// The back end that stores its images.
    pub backend: Arc<dyn Backend>,
}

/// The classes of an agent: at least one, names unique, the default first.
#[derive(Debug)]
pub struct Classes(Vec<Class>);

impl Classes {
    /// The classes of node `node`; the first one is the default.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if there is no class, if two classes have the same name, or if handles would exceed 128 bytes.
    pub fn new(node: &NodeName, classes: Vec<Class>) -> Result<Self> {
        if classes.is_empty() {
            return Err(Error::invalid(
                "no device class is configured; add at least one to classes",
            ));
        }
        for (index, class) in classes.iter().enumerate() {
            let id = node.as_str().len() + class.name.as_str().len() + 2 + 36;
            if id > crate::types::HANDLE_BYTES {
                return Err(Error::invalid(format!(
                    "volume ids of node {node} and class {} would have {id} bytes, at most {} are allowed; choose shorter names",
                    class.name,
                    crate::types::HANDLE_BYTES
                )));
            }
            if classes
                .iter()
                .skip(index + 1)
                .any(|other| other.name == class.name)
            {
                return Err(Error::invalid(format!(
                    "class {} is configured twice; give each class its own name",
                    class.name
                )));
            }
        }
        Ok(Self(classes))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Class> {
        self.0.iter()
    }

    /// The class `name`, or the default one when no name is given.
    pub(crate) fn find(&self, name: Option<&ClassName>) -> Result<&Class> {
        let found = match name {
            Some(name) => self.0.iter().find(|class| class.name == *name),
            None => self.0.first(),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|class| class.name.as_str()).collect();
            Error::new(
                Kind::Invalid,
                format!(
                    "parameters.class: class {} does not exist on this node; choose one of: {}",
                    name.map_or("", ClassName::as_str),
                    names.join(", ")
                ),
            )
        })
    }
}
