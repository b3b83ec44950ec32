//! Group snapshots of thick volumes: snapshots whose exception stores are emptied again before the freeze barrier.

use drumlin_lvm::{command::Command, metadata::GroupMetadata};

use crate::{
    Error, Kind, Result,
    backend::lvm::{
        ImageSpec, Layout, Lvm, Thick, group_snapshot::copy_in, thick::volumes::check_group_room,
    },
    host::{device_mapper::DeviceMapper, quiesce::Step},
};

impl Lvm {
    /// Registers the exception stores of the copies with dmeventd again. Failure to monitor does not fail the group
    /// snapshot.
    pub(crate) async fn monitor_copies(&self, specs: &[ImageSpec]) -> Result<()> {
        let now = self.group.now().await?;
        let mut paths = Vec::new();
        for spec in specs {
            let copy = copy_in(&now, spec)?;
            // LVM refuses to monitor an inactive snapshot, and registers it on activation.
            if self.device(&now, copy)?.is_some() {
                paths.push(self.group.path(&copy.name));
            }
        }
        if paths.is_empty() {
            return Ok(());
        }
        // Unregister first: dmeventd may not have noticed yet that the device is gone, and would count as still
        // monitoring it.
        let commands = ["n", "y"].map(|monitor| {
            Command::new("lvchange")
                .words(["-q", "--monitor", monitor])
                .words(paths.clone())
        });
        if let Err(error) = self.group.change(commands.into()).await {
            tracing::warn!(group = %self.group.name, error = %error.chain(), "snapshots of a group snapshot not registered with dmeventd");
        }
        Ok(())
    }
}

/// Refuses a group snapshot whose exception stores take more bytes than there is room for.
pub(crate) fn check_stores(now: &GroupMetadata, thick: &Thick, bytes: u64) -> Result<()> {
    let room = check_group_room(now, thick, Layout::Linear, bytes);
    room.map_err(|error| {
        Error::new(
            error.kind(),
            "the volume group has no room for all exception stores of the group snapshot",
        )
        .because(error)
    })
}

/// The steps that remove the device of an old-style snapshot and the blocks it has kept so far, and those that create
/// it anew.
pub(crate) fn empty_again(mapper: &DeviceMapper, uuid: &str) -> Result<(Vec<Step>, Vec<Step>)> {
    let gone = |what: &str| Error::new(Kind::HalfDone, format!("{what} has no device"));
    let copy = mapper.find(uuid)?.ok_or_else(|| gone("a new snapshot"))?;
    let store = mapper.find(&format!("{uuid}-cow"))?;
    let store = store.ok_or_else(|| gone("the store of a new snapshot"))?;
    let table = mapper.table(uuid)?;
    let uuid = copy.uuid;
    Ok((
        vec![
            Step::Unmap { uuid: uuid.clone() },
            Step::Forget {
                store: store.node()?,
            },
            // A snapshot reads its store when it is prepared, and keeps nothing before it starts.
            Step::Prepare {
                name: copy.name,
                uuid: uuid.clone(),
                table,
            },
        ],
        vec![Step::Start { uuid }],
    ))
}
