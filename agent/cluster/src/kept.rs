//! Objects of a watch by their names. A new list replaces them when it is complete, and not before.

use std::collections::HashMap;

use kube::{ResourceExt, runtime::watcher::Event};

/// What is kept of each object.
#[derive(Debug)]
pub(crate) struct Kept<V> {
    known: HashMap<String, V>,
    listing: Option<HashMap<String, V>>,
}

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            listing: None,
        }
    }
}

impl<V> Kept<V> {
    /// Applies an event; of an object is kept what `read` makes of it, if anything.
    pub(crate) fn follow<K: ResourceExt>(
        &mut self,
        event: Event<K>,
        read: impl Fn(K) -> Option<V>,
    ) {
        match event {
            Event::Init => self.listing = Some(HashMap::new()),
            Event::InitApply(object) => {
                let listing = self.listing.get_or_insert_default();
                let name = object.name_any();
                if let Some(value) = read(object) {
                    listing.insert(name, value);
                }
            }
            Event::InitDone => {
                if let Some(listing) = self.listing.take() {
                    self.known = listing;
                }
            }
            Event::Apply(object) => {
                let name = object.name_any();
                match read(object) {
                    Some(value) => self.known.insert(name, value),
                    None => self.known.remove(&name),
                };
            }
            Event::Delete(object) => {
                self.known.remove(&object.name_any());
            }
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&V> {
        self.known.get(name)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&String, &V)> {
        self.known.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;

    fn node(name: &str) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node
    }

    #[test]
    fn a_list_that_is_not_complete_hides_nothing() {
        let mut kept = Kept::default();
        let mut follow = |event| {
            kept.follow(event, |node: Node| node.metadata.name);
            let mut names: Vec<String> = kept.all().map(|(name, _)| name.clone()).collect();
            names.sort();
            names
        };
        follow(Event::Init);
        assert!(follow(Event::InitApply(node("a"))).is_empty());
        follow(Event::InitApply(node("b")));
        assert_eq!(follow(Event::InitDone), ["a", "b"]);
        assert_eq!(follow(Event::Apply(node("c"))), ["a", "b", "c"]);
        follow(Event::Init);
        assert_eq!(follow(Event::InitApply(node("c"))), ["a", "b", "c"]);
        assert_eq!(follow(Event::InitDone), ["c"]);
        assert!(follow(Event::Delete(node("c"))).is_empty());
    }
}
