//! Re-keying after a rotation: the images that open with a former key of their class, one after the other, in the
//! background and while they are used.

use std::{sync::Arc, time::Duration};

use crate::{
    Kind,
    ops::{Class, Operations, locks::LockMode},
    types::ImageId,
};

/// Pause between attempts while another operation has an image.
const PAUSE: Duration = Duration::from_millis(500);

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
        loop {
            let backend = Arc::clone(&class.backend);
            let rekey = async move { backend.rekey(id).await };
            let rekeyed = self.changes.run(vec![LockMode::Exclusive(id)], rekey).await;
            match rekeyed {
                Ok(_) => return true,
                Err(error) if error.kind() == Kind::Busy => tokio::time::sleep(PAUSE).await,
                Err(error) => {
                    tracing::warn!(object = %id, error = %error.chain(), "image not re-keyed");
                    return false;
                }
            }
        }
    }
}
