//! The objects of a watch, by namespace and name.

use std::collections::{HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;

/// The objects of one watch.
#[derive(Debug)]
pub(super) struct Index<T> {
    by_namespace: HashMap<String, HashMap<String, T>>,
    /// The objects of a list that is being read.
    listed: HashSet<(String, String)>,
    is_complete: bool,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self {
            by_namespace: HashMap::new(),
            listed: HashSet::new(),
            is_complete: false,
        }
    }
}

impl<T> Index<T> {
    /// Applies a watch event; returns the affected namespaces.
    pub(super) fn follow<K>(
        &mut self,
        event: Event<K>,
        metadata: impl Fn(&K) -> &ObjectMeta,
        read: impl FnOnce(K) -> T,
    ) -> Vec<String> {
        let place = |object: &K| {
            let metadata = metadata(object);
            let namespace = metadata.namespace.clone().unwrap_or_default();
            (namespace, metadata.name.clone().unwrap_or_default())
        };
        match event {
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                let (namespace, name) = place(&object);
                self.listed.insert((namespace.clone(), name.clone()));
                self.set(&namespace, name, read(object));
                Vec::new()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let about = self.by_namespace.keys().cloned().collect();
                self.by_namespace.retain(|namespace, objects| {
                    objects.retain(|name, _| listed.contains(&(namespace.clone(), name.clone())));
                    !objects.is_empty()
                });
                self.is_complete = true;
                about
            }
            Event::Apply(object) => {
                let (namespace, name) = place(&object);
                self.set(&namespace, name, read(object));
                vec![namespace]
            }
            Event::Delete(object) => {
                let (namespace, name) = place(&object);
                if let Some(objects) = self.by_namespace.get_mut(&namespace) {
                    objects.remove(&name);
                    if objects.is_empty() {
                        self.by_namespace.remove(&namespace);
                    }
                }
                vec![namespace]
            }
        }
    }

    fn set(&mut self, namespace: &str, name: String, object: T) {
        let objects = self.by_namespace.entry(namespace.to_owned()).or_default();
        objects.insert(name, object);
    }

    /// True if the first list has been read: before that, a missing object may exist.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        self.by_namespace.get(namespace)?.get(name)
    }

    /// All objects of a namespace.
    pub(super) fn of<'a>(&'a self, namespace: &str) -> impl Iterator<Item = (&'a String, &'a T)> {
        self.by_namespace.get(namespace).into_iter().flatten()
    }

    /// All objects, each with its namespace and name.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &String, &T)> {
        let objects = self.by_namespace.iter();
        objects.flat_map(|(namespace, objects)| {
            objects
                .iter()
                .map(move |(name, object)| (namespace, name, object))
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn one(namespace: &str, name: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        ConfigMap {
            metadata,
            ..ConfigMap::default()
        }
    }

    #[test]
    fn nothing_is_left_of_a_namespace_that_is_emptied() {
        let mut index: Index<()> = Index::default();
        let mut hear = |event| index.follow(event, |one: &ConfigMap| &one.metadata, drop);
        for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "one")] {
            hear(Event::Apply(one(namespace, name)));
        }
        assert_eq!(hear(Event::Delete(one("b", "one"))), ["b"]);
        hear(Event::Init);
        // An object that was deleted meanwhile changes its namespace.
        assert_eq!(hear(Event::InitDone), ["a"]);
        assert!(index.by_namespace.is_empty());
        assert!(index.is_complete());
    }
}
