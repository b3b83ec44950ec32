//! What the deletion of thin volumes frees: of what is promised all that they promise, of the data only the blocks that no
//! other volume has.

use std::{collections::HashMap, sync::Arc};

use drumlin_lvm::metadata::{GroupMetadata, VolumeKind};

use super::{
    class::ThinClass,
    devices::{Counted, to_its_end},
    pool::{promisable, promised},
};
use crate::{
    Result,
    backend::{
        lvm::{Lvm, OwnVolume, group::Group, volume_type::ids},
        room::{choose, freed},
    },
    blocking,
    types::ImageId,
};

impl Lvm {
    /// The volumes, of these, whose deletion certainly makes room for this many bytes.
    pub(crate) async fn thin_room_by_deleting(
        &self,
        now: &GroupMetadata,
        pool: &ThinClass,
        needed: u64,
        oldest_first: &[OwnVolume<'_>],
    ) -> Result<Vec<ImageId>> {
        let promise = |ours: &OwnVolume<'_>| now.bytes(ours.volume);
        let sizes: Vec<u64> = oldest_first.iter().map(promise).collect();
        let (bytes, state) = self.pool_state(now, pool).await?;
        let promised = promised(now, pool);
        let fits = |data: &[u64], deleted: &[usize]| {
            let rest = promised.saturating_sub(freed(&sizes, deleted));
            let after = state
                .as_ref()
                .map(|state| state.without(freed(data, deleted)));
            let refusal = after.and_then(|after| after.refusal(pool.limits));
            promisable(bytes, pool, rest) >= needed && refusal.is_none()
        };
        let ids = ids(oldest_first);
        let mut mapped = Vec::new();
        for ours in oldest_first {
            mapped.push(self.taken(now, ours).await?.unwrap_or(0));
        }
        // What only they have takes a program that reads all metadata of the pool.
        let chunks = |bytes: Vec<u64>| -> Vec<u64> {
            let chunk = now
                .pool(&pool.name)
                .map_or(1, |(_, pool)| pool.chunk.max(1));
            bytes.into_iter().map(|bytes| bytes / chunk).collect()
        };
        let mapped = chunks(mapped);
        if choose(&ids, |deleted| fits(&mapped, deleted)).is_empty() {
            return Ok(Vec::new());
        }
        let is_full = state.as_ref().and_then(|state| state.refusal(pool.limits));
        let data = if is_full.is_some() {
            let Some(exclusive) = self.exclusive(pool, oldest_first).await? else {
                return Ok(Vec::new());
            };
            chunks(exclusive)
        } else {
            mapped
        };
        Ok(choose(&ids, |deleted| fits(&data, deleted)))
    }

    /// The bytes that each of these volumes shares with no other one; none when they cannot be counted now.
    async fn exclusive(
        &self,
        pool: &ThinClass,
        volumes: &[OwnVolume<'_>],
    ) -> Result<Option<Vec<u64>>> {
        let (this, name) = (Arc::clone(&self.group), pool.name.clone());
        let counted = to_its_end(async move { this.exclusive_bytes(&name).await }).await?;
        Ok(counted.map(|counted| {
            let of = |ours: &OwnVolume<'_>| match ours.volume.kind {
                VolumeKind::Thin { device, .. } => counted.get(&device).copied().unwrap_or(0),
                _ => 0,
            };
            volumes.iter().map(of).collect()
        }))
    }
}

impl Group {
    /// The bytes that only one device of a pool has, by its number; none when they cannot be counted now.
    async fn exclusive_bytes(self: &Arc<Self>, pool: &str) -> Result<Option<HashMap<u64, u64>>> {
        let _held = self.hold_changes().await;
        let this = Arc::clone(self);
        let _lock = blocking(move || this.lock()).await?;
        let listed = self.list_thin_devices(pool, Counted::Exclusive).await?;
        Ok(listed.map(|(_, all)| {
            let all = all.into_iter();
            all.map(|thin| (thin.device, thin.bytes)).collect()
        }))
    }
}
