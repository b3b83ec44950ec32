//! The long-running operations of a back end.

use crate::types::ImageId;

/// Operations that take as long as there are bytes to copy or wipe.
pub trait Jobs {
    /// The progress of a long-running operation on the image, as text for people; none if there is no such operation.
    fn progress(&self, _: ImageId) -> Option<String> {
        None
    }

    /// The agent is stopping: long-running operations stop where they can be resumed.
    fn stop(&self) {}
}
