//! `drumlin rollback`: rolls the volumes of a group snapshot back to it.

use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use drumlin_proto::{
    Endpoint,
    drumlin::v1::{
        RollbackVolumeGroupSnapshotRequest, RollbackVolumeGroupSnapshotResponse,
        group_controller_client::GroupControllerClient,
    },
};
use drumlin_reconciler::{counted, progress_of};
use serde::Serialize;
use tokio::time::timeout;
use tonic::{Code, transport::Channel};

use super::{
    agent_status::{is_answer, is_temporary},
    object_handle::handle,
    print::print_outcome,
    repetition::Repetition,
};
use crate::cli::{GroupSnapshotKind, RollbackArguments};

/// A complete rollback.
#[derive(Serialize)]
struct RolledBack {
    /// Its name, with which it does not roll back again.
    name: String,
    /// The handle of the group snapshot that was rolled back to.
    handle: String,
    /// The handle of the group snapshot of the previous contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
}

/// Repeats the call until the rollback is complete.
pub(crate) async fn run(arguments: RollbackArguments) -> anyhow::Result<()> {
    let GroupSnapshotKind::Group = arguments.kind;
    let endpoint: Endpoint = arguments.endpoint.parse().context("endpoint")?;
    let group_snapshot_id = handle(
        &arguments.state_dir,
        "GroupSnapshot",
        (&arguments.which, &arguments.namespace),
    )?;
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
    let text = match &answer.kept {
        None if arguments.discard => format!(
            "rolled back to {}; the previous contents were discarded\n",
            arguments.which
        ),
        // A repeat of one whose previous contents were deleted since.
        None => format!(
            "rolled back to {}; the previous contents are not kept any more\n",
            arguments.which
        ),
        Some(kept) => format!(
            "rolled back to {}, {}\nthe previous contents are in group snapshot {id}; to return to them:\n  drumlin rollback dgsnap {id}\n",
            arguments.which,
            counted(kept.snapshots.len(), "volume"),
            id = kept.group_snapshot_id
        ),
    };
    let done = RolledBack {
        name,
        handle: request.group_snapshot_id,
        kept: answer.kept.map(|kept| kept.group_snapshot_id),
    };
    print_outcome(arguments.output, &done, &text);
    Ok(())
}

/// Time after which an attempt is given up and another one asks how far the rollback is: it goes on without its caller.
const PATIENCE: Duration = Duration::from_secs(3);

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
    let mut repetition = Repetition::begin();
    loop {
        let answer = client.rollback_volume_group_snapshot(request.clone());
        let Ok(answer) = timeout(PATIENCE, answer).await else {
            continue;
        };
        match answer {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if is_temporary(&status) => {
                let waited = repetition
                    .wait(status.message(), progress_of(&status))
                    .await;
                waited.map_err(|why| {
                    let name = &request.name;
                    anyhow!("{why}; to continue the rollback, repeat it with --name {name}")
                })?;
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
