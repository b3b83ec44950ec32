//! The devices in a thin pool, as its metadata has them (`thin_ls`), whatever LVM knows of them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use drumlin_lvm::metadata::GroupMetadata;
use tracing::Instrument;

use crate::{
    Error, Kind, Result,
    backend::lvm::group::Group,
    blocking,
    host::{Sectors, device_mapper::Mapped, exec::Program},
};

/// A device in a thin pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThinDevice {
    /// Its number in the pool.
    pub(super) device: u64,
    /// What was counted, in bytes.
    pub(super) bytes: u64,
}

/// Which of the blocks of a device are counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counted {
    /// All that are mapped.
    Mapped,
    /// Those that no other device of the pool has.
    Exclusive,
}

/// Runs what has reserved the metadata snapshot of a pool to its end, even if the caller goes away: it must be released.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let ended = tokio::spawn(work.in_current_span()).await;
    ended.map_err(|error| Error::new(Kind::Bug, "a task ended early").because(error))?
}

impl Counted {
    /// The column of `thin_ls`.
    fn column(self) -> &'static str {
        match self {
            Self::Mapped => "MAPPED_SECTORS",
            Self::Exclusive => "EXCLUSIVE_SECTORS",
        }
    }
}

impl Group {
    /// The devices of a pool; none when its metadata cannot be read now. No other process may change the group
    /// meanwhile. To be run [`to_its_end`].
    pub(super) async fn list_thin_devices(
        self: &Arc<Self>,
        pool: &str,
        counted: Counted,
    ) -> Result<Option<(Arc<GroupMetadata>, Vec<ThinDevice>)>> {
        /// Timeout: longer than a million devices take.
        const PATIENCE: Duration = Duration::from_secs(30);
        let (this, name) = (Arc::clone(self), pool.to_owned());
        let Some((now, uuid, metadata)) = blocking(move || this.reserve(&name)).await? else {
            return Ok(None);
        };
        let columns = format!("DEV,{}", counted.column());
        let listed = Program::reading("thin_ls")
            .args(["--no-headers", "-o", &columns, "--metadata-snap"])
            .arg(metadata)
            .run();
        let listed = tokio::time::timeout(PATIENCE, listed).await;
        let this = Arc::clone(self);
        blocking(move || this.mapper()?.message(&uuid, "release_metadata_snap")).await?;
        let listed = listed.map_err(|_| {
            Error::new(
                Kind::Command,
                "thin_ls exceeded its timeout and was stopped",
            )
        })??;
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        Ok(Some((now, parse(&text)?)))
    }

    /// Reserves a metadata snapshot of a pool for reading; returns the group, the UUID of the pool and the path of
    /// the metadata. None when the pool is not active, or another process is reading its metadata.
    pub(super) fn reserve(
        &self,
        pool: &str,
    ) -> Result<Option<(Arc<GroupMetadata>, String, PathBuf)>> {
        let mapper = self.mapper()?;
        let Some(now) = self.read_known() else {
            return Ok(None);
        };
        let Some((volume, parts)) = now.pool(pool) else {
            return Ok(None);
        };
        let uuid = now.pool_uuid(volume);
        let metadata = now.volumes.get(&parts.metadata);
        let metadata = metadata.map(|metadata| format!("{}-tmeta", now.mapped_uuid(metadata)));
        let live = |uuid: &str| -> Result<Option<Mapped>> {
            Ok(mapper.find(uuid)?.filter(|device| device.is_live))
        };
        let (Some(_), Some(metadata)) = (live(&uuid)?, metadata) else {
            return Ok(None);
        };
        let Some(metadata) = live(&metadata)? else {
            return Ok(None);
        };
        // "<transaction> <metadata> <data> <held root> …"
        let Some(words) = mapper.status(&uuid)? else {
            return Ok(None);
        };
        if words
            .split_whitespace()
            .nth(3)
            .is_some_and(|held| held != "-")
        {
            // The pool itself has it open.
            if metadata.open > 1 {
                return Ok(None);
            }
            tracing::warn!(pool, group = %self.name, "releasing an unused metadata snapshot of a thin pool");
            mapper.message(&uuid, "release_metadata_snap")?;
        }
        mapper.message(&uuid, "reserve_metadata_snap")?;
        Ok(Some((now, uuid, metadata.node()?)))
    }
}

/// Parses the output of `thin_ls`: a device and its sectors per line.
fn parse(text: &str) -> Result<Vec<ThinDevice>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::parse::<u64>);
            match (words.next(), words.next(), words.next()) {
                (Some(Ok(device)), Some(Ok(sectors)), None) => Ok(ThinDevice {
                    device,
                    bytes: Sectors(sectors).bytes(),
                }),
                _ => Err(Error::new(
                    Kind::Command,
                    format!("could not parse the output line {line:?} of thin_ls"),
                )),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_thin_ls_prints_is_read() {
        let thin = |device, bytes| ThinDevice { device, bytes };
        let read = parse("   1       128\n  24         0\n\n").unwrap();
        assert_eq!(read, [thin(1, 64 << 10), thin(24, 0)]);
        assert_eq!(parse("").unwrap(), []);
        for wrong in ["1", "1 2 3", "a 1", "1 1GiB"] {
            assert_eq!(parse(wrong).unwrap_err().kind(), Kind::Command, "{wrong}");
        }
    }
}
