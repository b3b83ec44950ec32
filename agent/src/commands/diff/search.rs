//! The search: a stream of ranges from the agent, which goes on where it broke.

use std::{
    io::{self, Write},
    ops::Range,
};

use anyhow::{Context, anyhow, bail};
use drumlin_proto::{
    csi::v1::{
        BlockMetadata, GetMetadataDeltaRequest, snapshot_metadata_client::SnapshotMetadataClient,
    },
    drumlin::v1::{
        InventoryObject, ListObjectsRequest, ObjectKind, inventory_client::InventoryClient,
    },
};
use tonic::{Code, Status, transport::Channel};

use super::report::Report;
use crate::commands::{
    agent_status::{is_answer, is_temporary},
    repetition::Repetition,
};

/// Why an attempt ended before the last range.
enum Stop {
    /// The call failed, or its stream broke.
    Call(Status),
    /// The output cannot be written.
    Output(io::Error),
    /// A repetition would not help.
    Refused(anyhow::Error),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// A comparison of two snapshots.
pub(super) struct Search<W> {
    channel: Channel,
    report: Report<W>,
    /// The agent has answered once.
    is_reached: bool,
}

impl<W: Write> Search<W> {
    /// A comparison of the snapshots of `report`.
    pub(super) fn new(channel: Channel, report: Report<W>) -> Self {
        Self {
            channel,
            report,
            is_reached: false,
        }
    }

    /// Prints all ranges. A stream that breaks goes on at the end of the last range.
    ///
    /// # Errors
    /// If not all ranges were printed.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut repetition = Repetition::begin();
        loop {
            let before = (self.report.has_begun(), self.report.position());
            let status = match self.attempt().await {
                Ok(()) => return Ok(()),
                // Whoever reads the output has read enough of it.
                Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Ok(());
                }
                Err(Stop::Output(error)) => {
                    return Err(error).context("the output cannot be written");
                }
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Call(status)) => status,
            };
            let why = self.reason_to_wait(&status)?;
            if before != (self.report.has_begun(), self.report.position()) {
                repetition.progress();
            }
            let waited = repetition.wait(&why, None).await;
            waited.map_err(|why| anyhow!("{why}; the output is incomplete: repeat the command"))?;
        }
    }

    /// What the next attempt waits for.
    ///
    /// # Errors
    /// If a repetition would not help.
    fn reason_to_wait(&self, status: &Status) -> anyhow::Result<String> {
        if is_temporary(status) {
            return Ok(status.message().to_owned());
        }
        if is_answer(status) {
            bail!("{}{}", status.message(), hint(status.code()));
        }
        if !self.is_reached {
            bail!(
                "the agent cannot be reached; check that it runs, and that --endpoint is its CSI socket"
            );
        }
        Ok("the connection to the agent broke; trying again".to_owned())
    }

    /// Prints the ranges behind those that are printed already.
    async fn attempt(&mut self) -> Result<(), Stop> {
        self.identify().await?;
        let [base, target] = &self.report.snapshots;
        let request = GetMetadataDeltaRequest {
            base_snapshot_id: base.handle.clone(),
            target_snapshot_id: target.handle.clone(),
            starting_offset: i64::try_from(self.report.position()).unwrap_or(i64::MAX),
            ..GetMetadataDeltaRequest::default()
        };
        let mut client = SnapshotMetadataClient::new(self.channel.clone());
        let mut stream = client.get_metadata_delta(request).await?.into_inner();
        while let Some(message) = stream.message().await? {
            let capacity = u64::try_from(message.volume_capacity_bytes).unwrap_or(0);
            self.report.begin(capacity)?;
            for block in &message.block_metadata {
                self.report.add(range(block)?)?;
            }
            self.report.flush()?;
        }
        Ok(self.report.end()?)
    }

    /// Has the agent name the snapshots. After a break they must be the ones of before: a snapshot that was deleted
    /// and taken again has the same handle, and its ranges must not be mixed with those of the first one.
    async fn identify(&mut self) -> Result<(), Stop> {
        let has_begun = self.report.has_begun();
        for snapshot in &mut self.report.snapshots {
            let request = ListObjectsRequest {
                object_id: snapshot.handle.clone(),
                ..ListObjectsRequest::default()
            };
            let mut inventory = InventoryClient::new(self.channel.clone());
            let answer = inventory.list_objects(request).await?.into_inner();
            self.is_reached = true;
            let object = answer.objects.into_iter().next();
            let uuid = uuid(&snapshot.handle, object).map_err(Stop::Refused)?;
            if has_begun && uuid != snapshot.uuid {
                return Err(Stop::Refused(anyhow!(
                    "snapshot {} was deleted and taken again meanwhile; the output is incomplete: repeat the command",
                    snapshot.handle
                )));
            }
            snapshot.uuid = uuid;
        }
        Ok(())
    }
}

/// The UUID of an object that must be a snapshot.
fn uuid(handle: &str, object: Option<InventoryObject>) -> anyhow::Result<String> {
    let Some(object) = object else {
        bail!(
            "snapshot {handle} does not exist on the node of this agent{}",
            hint(Code::NotFound)
        );
    };
    let kind = match object.kind() {
        ObjectKind::Snapshot => return Ok(object.uuid),
        ObjectKind::Volume => "a volume",
        ObjectKind::VolumeGroup => "a volume group",
        ObjectKind::VolumeGroupSnapshot => "a group snapshot",
        ObjectKind::Unknown => "of another kind",
    };
    bail!(
        "{handle} is {kind}, not a snapshot; `drumlin status -o wide` lists the handles of snapshots"
    )
}

/// A range as the agent sends it.
fn range(block: &BlockMetadata) -> Result<Range<u64>, Stop> {
    let start = u64::try_from(block.byte_offset);
    let size = u64::try_from(block.size_bytes);
    match (start, size) {
        (Ok(start), Ok(size)) => Ok(start..start.saturating_add(size)),
        _ => Err(Stop::Refused(anyhow!(
            "the agent sent a range that cannot be: {} bytes at {}",
            block.size_bytes,
            block.byte_offset
        ))),
    }
}

/// What to do about a refusal of the agent.
fn hint(code: Code) -> &'static str {
    match code {
        Code::NotFound => {
            "\n`drumlin status -o wide` lists the snapshots of this node; those of another node are compared there"
        }
        Code::InvalidArgument => "\nname two snapshots of one volume",
        Code::FailedPrecondition => {
            "\nrepair what is named, or compare with another snapshot; an incremental backup must begin with a full one"
        }
        _ => "",
    }
}
