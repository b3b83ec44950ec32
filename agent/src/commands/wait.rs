//! `drumlin wait`: until objects are as they shall be.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use drumlin_crd::ObjectKey;
use drumlin_reconciler::awaited::{Awaited, Waiting};
use tokio::time::{Instant, sleep};

use super::{object_name, print::note, progress_bars::ProgressBars};
use crate::{cli::WaitArguments, config::host_name};

/// Exit code if an object is not as is waited for when the time is over.
const NOT_YET: u8 = 3;
/// Interval at which the state files are read.
const INTERVAL: Duration = Duration::from_millis(200);

/// Waits.
pub(crate) async fn run(arguments: &WaitArguments) -> anyhow::Result<ExitCode> {
    let awaited = awaited(&arguments.awaited)?;
    let keys = arguments.objects.iter();
    let keys: anyhow::Result<Vec<ObjectKey>> =
        keys.map(|text| object_name::with_kind(text)).collect();
    let keys = keys?;
    let deadline = Instant::now() + arguments.timeout;
    let mut objects = Waiting::new(&arguments.state_dir, host_name().unwrap_or_default());
    let mut bars = ProgressBars::default();
    loop {
        bars.show_objects(&arguments.state_dir);
        let waiting = if arguments.mounts {
            objects.unmounted().await?
        } else {
            objects.missing(&keys, &awaited).await?
        };
        if waiting.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= deadline {
            drop(bars);
            for (key, why) in waiting {
                note(&format!("{key}: {why}"));
            }
            return Ok(ExitCode::from(NOT_YET));
        }
        sleep(INTERVAL.min(deadline - Instant::now())).await;
    }
}

fn awaited(text: &str) -> anyhow::Result<Awaited> {
    if text == "delete" {
        return Ok(Awaited::Deleted);
    }
    let condition = text
        .strip_prefix("condition=")
        .filter(|rest| !rest.is_empty());
    let Some(condition) = condition else {
        bail!("--for={text}: is none of condition=TYPE, condition=TYPE=STATUS and delete");
    };
    let (kind, status) = condition.split_once('=').unwrap_or((condition, "True"));
    Ok(Awaited::Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
    })
}
