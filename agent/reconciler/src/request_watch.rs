//! Carries out the requests of an administrator.

use std::time::Duration;

use drumlin_crd::ObjectKey;

use crate::{blocking::blocking, engine::Engine, record::Record, requests::AdminRequest};

/// Polling interval.
const ROUND: Duration = Duration::from_secs(3);

impl Engine {
    /// Carries out requests, forever.
    pub(crate) async fn follow_requests(&self) {
        let mut heard = Vec::new();
        loop {
            let requests = blocking(|| self.shared.requests.all());
            heard.retain(|request| requests.contains(request));
            for request in requests {
                self.carry_out(&request).await;
                if !heard.contains(&request) {
                    self.wake_waiting_for(&request).await;
                    heard.push(request);
                }
            }
            tokio::time::sleep(ROUND).await;
        }
    }

    /// Queues the objects that may have waited for a request.
    async fn wake_waiting_for(&self, request: &AdminRequest) {
        self.client.forget_inventory().await;
        self.reset(&request.key);
        self.shared.tell(&request.key);
        self.shared.look_at_directory();
    }

    /// Removes the request with which an object has taken over the record of its name, and the resource with it.
    pub(crate) fn forget_taken_over(&self, key: &ObjectKey) {
        let handle = |record: &Record| record.handle().map(str::to_owned);
        let handle = self.shared.with(key, handle).flatten();
        self.shared.requests.forget_about(key, handle.as_deref());
    }

    /// Removes the record of an orphan, or of the snapshot of a schedule, whose resource was deleted.
    async fn carry_out(&self, request: &AdminRequest) {
        let Some(handle) = &request.handle else {
            return;
        };
        let is_meant = |record: &Record| {
            let book = &record.drumlin;
            let has_no_manifest = book.orphan_since.is_some() || book.schedule.is_some();
            has_no_manifest && record.handle() == Some(handle)
        };
        if self.shared.with(&request.key, is_meant) != Some(true) {
            return;
        }
        let Ok(None) = self.client.object(handle).await else {
            return;
        };
        match self.shared.forget(&request.key) {
            Ok(()) => {
                self.shared.requests.forget(&request.key);
                tracing::info!(object = %request.key, handle, "record of a deleted orphan removed");
            }
            Err(error) => {
                tracing::error!(object = %request.key, error = %error, "state could not be written");
            }
        }
    }
}
