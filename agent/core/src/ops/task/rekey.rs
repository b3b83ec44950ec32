//! Re-keying after a rotation: the images that open with a former key of their class, one after the other, in the
//! background and while they are used.

use std::sync::Arc;

use crate::{
    ops::{Class, Operations},
    types::ImageId,
};

impl Operations {
    /// Re-keys what opens with a former key, in all classes. Does nothing for a class without former keys. What cannot be
    /// re-keyed keeps its key, and is tried again after the next start or reload.
    pub fn rekey(self: &Arc<Self>) {
        for class in self.classes.iter() {
            self.rekey_class(class);
        }
    }

    pub(crate) fn rekey_class(self: &Arc<Self>, class: Class) {
        if class.keys.now().is_none_or(|now| now.previous.is_empty()) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let outdated = match class.backend.outdated().await {
                Ok(outdated) => outdated,
                Err(error) => {
                    tracing::warn!(class = %class.name, error = %error.chain(), "images with former keys not found");
                    return;
                }
            };
            let (all, mut done) = (outdated.len(), 0);
            for id in outdated {
                done += usize::from(this.rekey_one(&class, id).await);
            }
            if all > 0 {
                tracing::info!(class = %class.name, images = all, done, "rotation of the key ended");
            }
        });
    }

    /// Re-keys an image once no other operation has it. Returns true if it opens with the current key.
    async fn rekey_one(self: &Arc<Self>, class: &Class, id: ImageId) -> bool {
        let rekeyed = self.changes.run_once_free(id, || {
            let backend = Arc::clone(&class.backend);
            async move { backend.rekey(id).await }
        });
        match rekeyed.await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(object = %id, error = %error.chain(), "image not re-keyed");
                false
            }
        }
    }
}
