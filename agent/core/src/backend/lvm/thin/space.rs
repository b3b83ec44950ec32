//! How full a thin pool is.

use drumlin_lvm::metadata::GroupMetadata;

use super::pool::promised;
use crate::{
    Result,
    backend::{
        Space,
        lvm::{Lvm, thin::class::ThinClass},
        utilization::sum,
    },
};

impl Lvm {
    /// The space of the pool: its size as planned, and nothing in it, before it exists.
    pub(crate) async fn pool_space(&self, now: &GroupMetadata, pool: &ThinClass) -> Result<Space> {
        if let Some(plan) = pool.planned(now)? {
            return Ok(Space {
                size: sum([plan.bytes(now)]),
                data_percent: Some(0),
                metadata_percent: Some(0),
                ..Space::default()
            });
        }
        let (bytes, state) = self.pool_state(now, pool).await?;
        let percents = state.map(|state| state.percents());
        Ok(Space {
            size: sum([bytes]),
            promised: sum([promised(now, pool)]),
            data_percent: percents.map(|(data, _)| data),
            deleting_percent: 0,
            metadata_percent: percents.map(|(_, metadata)| metadata),
        })
    }
}
