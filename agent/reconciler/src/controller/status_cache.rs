//! The statuses that the controller has written, so that each is written once.

use std::collections::HashMap;

use drumlin_crd::ObjectKey;
use serde_json::Value;

/// The last status of each object, with the UID of the object.
#[derive(Debug, Default)]
pub(super) struct StatusCache(HashMap<ObjectKey, (String, Value)>);

impl StatusCache {
    /// The last status of this incarnation of the object.
    pub(super) fn of(&self, key: &ObjectKey, uid: &str) -> Option<&Value> {
        let told = self.0.get(key).filter(|(own, _)| own == uid);
        told.map(|(_, status)| status)
    }

    pub(super) fn remember(&mut self, key: &ObjectKey, uid: &str, status: Value) {
        self.0.insert(key.clone(), (uid.to_owned(), status));
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }

    /// Removes objects that do not exist any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ObjectKey) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
