//! `drumlin wait`: until objects are as they shall be.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use drumlin_crd::ObjectKey;
use drumlin_reconciler::awaited::{Awaited, Waiting};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    object_name,
    print::{note, print_outcome},
    progress_bars::ProgressBars,
};
use crate::{
    cli::{DataOutput, WaitArguments},
    config::host_name,
};

/// Exit code if an object is not as is waited for when the time is over.
const NOT_YET: u8 = 3;
/// Interval at which the state files are read.
const INTERVAL: Duration = Duration::from_millis(200);

/// How the wait ended.
#[derive(Serialize)]
struct Ended {
    /// True if nothing is waited for any more.
    done: bool,
    /// What is not as is waited for.
    waiting: Vec<Unmet>,
}

/// An object that is not as is waited for.
#[derive(Serialize)]
struct Unmet {
    #[serde(flatten)]
    object: ObjectKey,
    /// The reason.
    message: String,
}

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
        let is_done = waiting.is_empty();
        if is_done || Instant::now() >= deadline {
            drop(bars);
            tell(arguments.output, waiting);
            let code = if is_done { 0 } else { NOT_YET };
            return Ok(ExitCode::from(code));
        }
        sleep(INTERVAL.min(deadline - Instant::now())).await;
    }
}

fn tell(output: Option<DataOutput>, waiting: Vec<(ObjectKey, String)>) {
    for (key, why) in &waiting {
        note(&format!("{key}: {why}"));
    }
    let waiting = waiting.into_iter();
    let waiting = waiting.map(|(object, message)| Unmet { object, message });
    let waiting: Vec<Unmet> = waiting.collect();
    let ended = Ended {
        done: waiting.is_empty(),
        waiting,
    };
    print_outcome(output, &ended, "");
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
