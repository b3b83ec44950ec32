//! One pass over a directory of manifests, for scripts: as the reconciler would converge it, and then it ends.

use std::{sync::Arc, time::Duration};

use drumlin_crd::ObjectKey;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Settings,
    blocking::blocking,
    client::Client,
    engine::Engine,
    one_pass::OnePass,
    record::Record,
    source::{directory::Directory, trust::Trust},
    state::Shared,
    store::Store,
};

/// How long the agent may take to answer at all.
const GREETING: Duration = Duration::from_secs(10);
/// Interval between two looks at the objects; a change of one is looked at at once.
const LOOK: Duration = Duration::from_millis(100);
/// The reasons of objects that the agent is at work on, or may be in a moment; all other ones wait for something that
/// this pass does not bring.
const IN_FLIGHT: [&str; 5] = [
    "Creating",
    "OperationPending",
    "OutcomeUnknown",
    "Reconciling",
    "Unavailable",
];

/// Converges a directory of manifests once. Ends when each object is ready, needs a person or waits for something that
/// does not come by itself, and after `patience` at the latest.
///
/// # Errors
/// When another reconciler has locked the state directory, the agent does not answer, or the state cannot be written.
pub async fn apply(settings: Settings, patience: Duration) -> Result<(), Error> {
    let Some(manifests) = settings.manifests else {
        return Err(Error::State(
            "no directory of manifests was named".to_owned(),
        ));
    };
    let deadline = Instant::now() + patience;
    let store = Store::open(&settings.state_dir)?;
    let shared = Arc::new(Shared::new(store, settings.state_dir, settings.hooks)?);
    let engine = Arc::new(Engine::new(shared, Client::new(&settings.socket)?));
    let stop = CancellationToken::new();
    let working = tokio::spawn(Arc::clone(&engine).run(stop.clone()));
    let trust = Trust::new(&settings.manifest_owners);
    let directory = Directory::of(&manifests, trust)?;
    let result = pass(&engine, directory, deadline).await;
    stop.cancel();
    let _ = working.await;
    // Nothing is left to write, unless it could not be written.
    blocking(|| engine.shared.write_all())?;
    result
}

async fn pass(engine: &Engine, directory: Directory, deadline: Instant) -> Result<(), Error> {
    let answer = timeout_at(Instant::now() + GREETING, engine.open()).await;
    if answer.is_err() {
        let why = engine.greet().await.err().map(|failure| failure.message);
        return Err(Error::Unreachable(why.unwrap_or_default()));
    }
    let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
    engine.shared.listen(sender);
    OnePass::begin(engine, directory).await?;
    while !is_over(engine) && Instant::now() < deadline {
        let look = deadline.min(Instant::now() + LOOK);
        let _ = timeout_at(look, changes.recv()).await;
    }
    Ok(())
}

/// True if nothing is due now, and no object has a call in flight.
fn is_over(engine: &Engine) -> bool {
    let is_in_flight = |record: &Record| {
        let ready = record.condition("Ready");
        let is_waiting = ready.is_some_and(|ready| {
            let is_seen = record.observed_generation() == record.generation();
            is_seen && !IN_FLIGHT.contains(&&*ready.reason)
        });
        record.is_of_file() && engine.shared.needs_work(record) && !is_waiting
    };
    let in_flight: Vec<ObjectKey> = engine.shared.keys_of(is_in_flight);
    engine.shared.queue.is_idle() && in_flight.is_empty()
}
