//! Carries out the requests of an administrator.

use std::time::Duration;

use crate::{blocking::blocking, engine::Engine, record::Record, requests::Word};

/// Polling interval.
const ROUND: Duration = Duration::from_secs(3);

impl Engine {
    /// Carries out requests, forever.
    pub(crate) async fn keep_words(&self) {
        let mut heard = Vec::new();
        loop {
            let words = blocking(|| self.shared.words.all());
            heard.retain(|word| words.contains(word));
            for word in words {
                self.obey(&word).await;
                if !heard.contains(&word) {
                    self.hear(&word).await;
                    heard.push(word);
                }
            }
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Queues the objects that may have waited for a request.
    async fn hear(&self, word: &Word) {
        self.client.forget_inventory().await;
        self.reset(&word.key);
        self.shared.tell(&word.key);
        self.shared.look_at_directory();
    }

    /// Removes the record of an orphan whose resource was deleted.
    async fn obey(&self, word: &Word) {
        let is_meant = |record: &Record| {
            record.drumlin.orphan_since.is_some() && record.handle() == Some(&word.handle)
        };
        if self.shared.with(&word.key, is_meant) != Some(true) {
            return;
        }
        let Ok(None) = self.client.object(&word.handle).await else {
            return;
        };
        match self.shared.forget(&word.key) {
            Ok(()) => {
                self.shared.words.forget(&word.key);
                tracing::info!(object = %word.key, handle = %word.handle, "record of a deleted orphan removed");
            }
            Err(error) => {
                tracing::error!(object = %word.key, error = %error, "state could not be written");
            }
        }
    }
}
