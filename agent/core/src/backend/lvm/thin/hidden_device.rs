//! Hidden devices, through which inactive thin volumes are looked at.

use std::sync::Arc;

use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume, VolumeKind};

use crate::{
    Error, Kind, Result,
    backend::lvm::{Lvm, group_snapshot::HIDDEN},
    blocking,
    host::{Sectors, device_mapper::Line, udev::Visibility},
};

impl Lvm {
    /// Returns true if an inactive thin volume has no mapped blocks.
    pub(crate) async fn is_blank(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<bool> {
        // "<mapped sectors> <highest mapped sector>"
        let words = self.hidden_status(now, volume).await?;
        Ok(words.split_whitespace().next() == Some("0"))
    }

    /// The status of a thin volume, read through a hidden device.
    ///
    /// # Errors
    /// When the pool has no device of its number, or is not active.
    pub(crate) async fn hidden_status(
        &self,
        now: &GroupMetadata,
        volume: &LogicalVolume,
    ) -> Result<String> {
        let VolumeKind::Thin { pool, device, .. } = &volume.kind else {
            return Err(Error::new(
                Kind::Bug,
                "a volume of a thin class is not thin",
            ));
        };
        let (pool, _) = now.pool(pool).ok_or_else(|| {
            Error::new(
                Kind::HalfDone,
                format!("thin pool {pool} does not exist any more"),
            )
        })?;
        let pool = now.pool_uuid(pool);
        let name = format!("drumlin-{}", volume.uuid);
        let uuid = format!("{HIDDEN}{}{}", now.uuid, volume.uuid);
        let (length, device) = (Sectors::within(now.bytes(volume)), *device);
        let _hand = self.group.in_flight.take(uuid.clone());
        let group = Arc::clone(&self.group);
        let words = blocking(move || {
            let mapper = group.mapper()?;
            let pool = mapper.find(&pool)?.ok_or_else(|| {
                Error::new(
                    Kind::HalfDone,
                    "the thin pool of an active volume is not active",
                )
            })?;
            let line = Line {
                start: Sectors(0),
                length,
                kind: "thin".to_owned(),
                words: format!("{}:{} {device}", pool.number.major, pool.number.minor),
            };
            if mapper.find(&uuid)?.is_some() {
                mapper.remove(&uuid)?;
            }
            mapper.create(&name, &uuid, &[line], Visibility::Hidden)?;
            let words = mapper.status(&uuid);
            mapper.remove(&uuid)?;
            words
        })
        .await?;
        Ok(words.unwrap_or_default())
    }
}
