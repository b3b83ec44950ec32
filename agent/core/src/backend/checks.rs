//! What a back end can say of its state, without changing anything.

use async_trait::async_trait;

use super::Fault;
use crate::{
    Error, Result,
    types::{ImageId, Size},
};

/// The checks of a back end and its images.
#[async_trait]
pub trait Checks {
    /// Checks that it is readable and writable; the error says what is missing. Costs a few system calls.
    async fn check(&self) -> Result<()>;

    /// What is wrong if the last check, or reading, has got no answer yet for too long. Looks at memory only.
    fn known_silence(&self) -> Option<Error>;

    /// What is wrong with the storage that its images share, or will be soon; for a back end that passes
    /// [`Checks::check`].
    async fn faults(&self) -> Vec<Fault>;

    /// Refuses an image that [`super::Backend::delete`] would refuse now.
    ///
    /// # Errors
    /// `InUse` when its device is mounted or open, or when it is being copied.
    async fn check_deletable(&self, id: ImageId) -> Result<()>;

    /// Refuses an image whose deletion would take others with it: a thick volume that has snapshots, unless its class
    /// deletes those with it.
    ///
    /// # Errors
    /// `Precondition`, and `Busy` while one of them is being deleted.
    async fn check_unbound(&self, id: ImageId) -> Result<()>;

    /// The space that an image uses in its storage, in bytes, if known. Blocks shared with other images count.
    ///
    /// # Errors
    /// `NotFound`.
    async fn usage(&self, id: ImageId) -> Result<Option<u64>>;

    /// The images, of these, whose deletion certainly makes room for this many bytes: the first ones before the others,
    /// without those that free nothing that is needed. What they share with others is not freed. None if there is room
    /// already, or not even then.
    ///
    /// # Errors
    /// Those of [`super::Backend::capacity`].
    async fn room_by_deleting(
        &self,
        needed: Size,
        oldest_first: &[ImageId],
    ) -> Result<Vec<ImageId>>;
}
