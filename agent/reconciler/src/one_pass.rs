//! The begin of one pass over a directory of manifests, for a plan and for `apply --once`.

use drumlin_crd::ObjectKey;
use tokio::time::Instant;

use crate::{
    Error,
    blocking::blocking,
    engine::Engine,
    ingest::Catalog,
    record::Record,
    source::directory::{Directory, Scan},
};

/// What was read of a directory, with all its objects due.
pub(crate) struct OnePass {
    /// The directory.
    pub(crate) directory: String,
    /// Number of manifest files.
    pub(crate) files: usize,
    pub(crate) catalog: Catalog,
    /// The objects of manifest files.
    pub(crate) keys: Vec<ObjectKey>,
}

impl OnePass {
    /// Reads the directory, and makes all objects of manifest files due now.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub(crate) async fn begin(engine: &Engine, mut directory: Directory) -> Result<Self, Error> {
        let scan = directory.settled_scan().await;
        let files = match &scan {
            Scan::Read(content) => content.files,
            Scan::Unavailable(_) => 0,
        };
        let mut catalog = Catalog::trusting(directory.owners());
        let directory = directory.path().display().to_string();
        blocking(|| catalog.apply(engine, &directory, scan))?;
        engine.verify_resources().await;
        engine.doubt_unmounted().await;
        let keys = engine.shared.keys_of(Record::is_of_file);
        for key in &keys {
            engine.shared.queue.add(key, Instant::now());
        }
        Ok(Self {
            directory,
            files,
            catalog,
            keys,
        })
    }
}
