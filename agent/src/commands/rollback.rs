//! `drumlin rollback`: rolls the volumes of a group snapshot back to it.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use drumlin_proto::{
    Endpoint,
    drumlin::v1::{
        RollbackVolumeGroupSnapshotRequest, RollbackVolumeGroupSnapshotResponse,
        group_controller_client::GroupControllerClient,
    },
};
use tonic::{Code, transport::Channel};

use super::{
    agent_status::{is_answer, is_temporary},
    object_handle::handle,
    print::{note, print},
};
use crate::cli::{GroupSnapshotKind, RollbackArguments};

/// Pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Timeout without progress: the command gives up when the message of the agent has not changed for this long.
const PATIENCE: Duration = Duration::from_mins(5);

/// Repeats the call until the rollback is complete.
pub(crate) async fn run(arguments: RollbackArguments) -> anyhow::Result<()> {
    let GroupSnapshotKind::Group = arguments.kind;
    let endpoint: Endpoint = arguments.endpoint.parse().context("endpoint")?;
    let group_snapshot_id = handle(&arguments.state_dir, "GroupSnapshot", &arguments.which)?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => format!("rollback-{}", now()),
    };
    let request = RollbackVolumeGroupSnapshotRequest {
        name: name.clone(),
        group_snapshot_id,
        discard: arguments.discard,
    };
    let channel = drumlin_proto::connect(endpoint.path())?;
    let mut client = GroupControllerClient::new(channel);
    let answer = ask(&mut client, &request).await;
    let answer = answer.with_context(|| format!("rollback {name} at {endpoint}"))?;
    print(&match answer.kept {
        None => format!(
            "rolled back to {}; the previous contents were discarded\n",
            arguments.which
        ),
        Some(kept) => format!(
            "rolled back to {}, {} volumes\nthe previous contents are in group snapshot {id}; to return to them:\n  drumlin rollback dgsnap {id}\n",
            arguments.which,
            kept.snapshots.len(),
            id = kept.group_snapshot_id
        ),
    });
    Ok(())
}

/// Seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Repeats the call while the rollback is in progress, because it must not be abandoned half-way.
async fn ask(
    client: &mut GroupControllerClient<Channel>,
    request: &RollbackVolumeGroupSnapshotRequest,
) -> anyhow::Result<RollbackVolumeGroupSnapshotResponse> {
    let (mut told, mut since) = (String::new(), Instant::now());
    loop {
        match client.rollback_volume_group_snapshot(request.clone()).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if is_temporary(&status) => {
                if told != status.message() {
                    note(status.message());
                    status.message().clone_into(&mut told);
                    since = Instant::now();
                }
                if since.elapsed() >= PATIENCE {
                    bail!(
                        "{told}; to continue the rollback, repeat it with --name {}",
                        request.name
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(status) if !is_answer(&status) => bail!(
                "the agent cannot be reached; a rollback that has started continues: repeat it with --name {}",
                request.name
            ),
            Err(status) => bail!("{}{}", status.message(), hint(status.code())),
        }
    }
}

fn hint(code: Code) -> &'static str {
    match code {
        Code::FailedPrecondition => {
            "\nnothing was changed; stop what uses the volumes, and take `mount` out of their manifests until this is done"
        }
        Code::ResourceExhausted | Code::NotFound | Code::AlreadyExists => "\nnothing was changed",
        _ => "",
    }
}
