//! Makes a plan.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use drumlin_crd::{ObjectKey, names};
use tonic::Code;

use super::{
    Plan, Shortage,
    change::{Difference, changes},
};
use crate::{
    Error, Hooks,
    client::{Cause, Client, Failure},
    dry_run::DryRun,
    engine::Engine,
    kinds::group_members::is_inside,
    manifest_scan::Manifests,
    one_pass::OnePass,
    prune::Pruning,
    record::{Body, Of, Record},
    state::Shared,
    store::{self, SourceState, Store},
};

/// Maximum number of passes for each object: far more than a plan needs.
const PASSES: usize = 64;

/// Why a snapshot of a schedule is destroyed.
const SUPERFLUOUS: &str = "no longer kept by the retention of its schedule";

/// What a plan is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The socket of the agent.
    pub socket: PathBuf,
    /// The directory of manifests.
    pub manifests: Manifests,
    /// The agent's state directory.
    pub state_dir: PathBuf,
    /// The node's name, for an agent that does not answer and a state without handles.
    pub node: String,
}

/// Plans what a pass over the manifests would do.
///
/// # Errors
/// When the state directory or the socket cannot be used.
pub async fn plan(settings: &Settings) -> Result<Plan, Error> {
    let directory = settings.manifests.open()?;
    let store = Store::dry_run(&settings.state_dir);
    let (loaded, unreadable) = store.load()?;
    let before: HashMap<ObjectKey, Record> = loaded
        .iter()
        .map(|record| (record.key(), record.clone()))
        .collect();
    let (dry_run, unreachable) = agent(settings, &loaded).await?;
    let dry_run = Arc::new(dry_run);
    let (state_dir, hooks) = (settings.state_dir.clone(), Hooks::default());
    let shared = Arc::new(Shared::of(store, state_dir, hooks, loaded));
    let engine = Engine::new(shared, Client::dry_run(Arc::clone(&dry_run)));
    engine.greet().await.map_err(|failure| refused(&failure))?;

    let pass = OnePass::begin(&engine, directory).await?;
    let source = pass.catalog.state().cloned().unwrap_or_default();
    let reasons = destroy_without_manifest(&engine, &settings.state_dir, &pass.directory, &source);
    let calls = settle(&engine, &dry_run, &pass.keys).await;

    let mut after: Vec<Record> = engine
        .shared
        .keys_of(Record::is_of_file)
        .iter()
        .filter_map(|key| engine.shared.record(key))
        .collect();
    after.sort_by_key(Record::key);
    // What is in no manifest that could be read is as it was: nothing follows from that.
    let compared = match source.unavailable {
        Some(_) => &[],
        None => after.as_slice(),
    };
    let inventory = engine.client.inventory().await.ok();
    // A dry run has deleted the handle of what it destroys.
    let found = |key: &ObjectKey, now: &Record| {
        let then = before.get(key).and_then(Record::handle);
        inventory.as_ref()?.get(now.handle().or(then)?)
    };
    let sent = |key: &ObjectKey| calls.get(key).map_or(&[][..], Vec::as_slice);
    let differences = compared.iter().map(|now| Difference {
        before: before.get(&now.key()),
        after: now,
        calls: sent(&now.key()),
        found: found(&now.key(), now),
        destroyed: None,
    });
    let mut differences: Vec<Difference<'_>> = differences.collect();
    if source.unavailable.is_none() {
        differences.extend(
            destroyed(&engine, &before, &calls, &reasons).map(|difference| {
                let record = difference.after;
                let found = found(&record.key(), record);
                Difference {
                    found,
                    ..difference
                }
            }),
        );
    }
    let shortages = shortages(&engine.client, &differences).await;
    let is_here =
        |record: &&Record| record.drumlin.orphan_since.is_none() && !record.drumlin.is_pruned;
    Ok(Plan {
        node: engine
            .known_agent()
            .map(|agent| agent.node.clone())
            .unwrap_or_default(),
        directory: pass.directory,
        agent_unreachable: unreachable,
        files: pass.files,
        objects: after.iter().filter(is_here).count(),
        elsewhere: source.elsewhere,
        changes: changes(&differences),
        problems: source.problems(),
        ignored_files: source.ignored,
        unavailable: source.unavailable,
        unreadable: unreadable.iter().map(ToString::to_string).collect(),
        shortages,
    })
}

/// Has orphans destroyed as the reconciler will, once their manifests are missing for long enough; returns why, by object.
fn destroy_without_manifest(
    engine: &Engine,
    state_dir: &Path,
    directory: &str,
    source: &SourceState,
) -> HashMap<ObjectKey, String> {
    let followed = store::load_source(&state_dir.join(store::DIRECTORY));
    let prune = followed.and_then(|followed| followed.prune);
    let Some(pruning) = Pruning::of(prune.as_ref(), directory, source) else {
        return HashMap::new();
    };
    let why = |record: &Record| pruning.told(record);
    let mut reasons = HashMap::new();
    for key in engine.shared.keys_of(|record| why(record).is_some()) {
        let told = engine.shared.with(&key, why).flatten();
        if engine.shared.edit(&key, Record::prune).is_ok() {
            engine.reset(&key);
            reasons.insert(key, told.unwrap_or_default());
        }
    }
    reasons
}

/// The objects of which the dry run has left nothing, although no manifest asks for that.
fn destroyed<'a>(
    engine: &Engine,
    before: &'a HashMap<ObjectKey, Record>,
    calls: &'a BTreeMap<ObjectKey, Vec<&'static str>>,
    reasons: &'a HashMap<ObjectKey, String>,
) -> impl Iterator<Item = Difference<'a>> {
    let is_forgotten = move |key: &ObjectKey| engine.shared.with(key, |_| ()).is_none();
    before.iter().filter_map(move |(key, record)| {
        let calls = calls.get(key)?;
        let is_destroyed = record.is_of_file() && is_forgotten(key);
        is_destroyed.then(|| Difference {
            before: Some(record),
            after: record,
            calls,
            found: None,
            destroyed: Some(reasons.get(key).map_or(SUPERFLUOUS, String::as_str)),
        })
    })
}

/// The agent, and why it was not asked if it does not answer.
async fn agent(settings: &Settings, records: &[Record]) -> Result<(DryRun, Option<String>), Error> {
    let channel = drumlin_proto::connect(&settings.socket)
        .map_err(|error| Error::Endpoint(error.to_string()))?;
    let why = match Client::new(&settings.socket)?.agent().await {
        Ok(agent) => return Ok((DryRun::before(channel, agent.node), None)),
        Err(failure) if is_refusal(&failure) => return Err(refused(&failure)),
        Err(failure) => failure.message,
    };
    let node = node(records, &settings.node);
    let groups = records.iter().filter_map(members).collect();
    Ok((DryRun::offline(node, groups), Some(why)))
}

/// The name of this node by the handles of its objects, or this one as long as there are none.
pub(crate) fn node(records: &[Record], name: &str) -> String {
    let mut handles = records
        .iter()
        .filter(|record| record.is_of_file())
        .filter_map(Record::handle);
    handles.find_map(names::node_of).unwrap_or(name).to_owned()
}

fn refused(failure: &Failure) -> Error {
    Error::Endpoint(format!("{}: {}", failure.rpc, failure.message))
}

/// True if the agent has answered. One behind a proxy is unavailable by the answer of that.
fn is_refusal(failure: &Failure) -> bool {
    failure.cause == Cause::Answer && failure.code != Code::Unavailable
}

/// The members of a group as they were last seen.
fn members(record: &Record) -> Option<(String, Vec<String>)> {
    let Body::Group(Of { status, .. }) = &record.body else {
        return None;
    };
    let inside = status.members.iter().filter(|member| is_inside(member));
    let handles = inside.filter_map(|member| member.volume_handle.clone());
    Some((status.group_handle.clone()?, handles.collect()))
}

/// Runs passes until none is due; returns the calls of each object.
async fn settle(
    engine: &Engine,
    dry_run: &DryRun,
    keys: &[ObjectKey],
) -> BTreeMap<ObjectKey, Vec<&'static str>> {
    let mut calls: BTreeMap<ObjectKey, Vec<&'static str>> = BTreeMap::new();
    for _ in 0..keys.len().saturating_add(1).saturating_mul(PASSES) {
        let Some(key) = engine.step().await else {
            break;
        };
        let made = dry_run.take_calls();
        if !made.is_empty() {
            calls.entry(key).or_default().extend(made);
        }
    }
    calls
}

/// The classes that have less room than new and growing volumes need. A class that cannot say what it has is left out.
async fn shortages(client: &Client, differences: &[Difference<'_>]) -> Vec<Shortage> {
    let mut needed: BTreeMap<String, u64> = BTreeMap::new();
    for difference in differences {
        if let Some((class, bytes)) = difference.needs() {
            *needed.entry(class).or_default() += bytes;
        }
    }
    let mut shortages = Vec::new();
    for (class, needed_bytes) in needed {
        let Ok(room) = client.room(&class).await else {
            continue;
        };
        let available_bytes = room.available;
        if available_bytes < needed_bytes {
            shortages.push(Shortage {
                class,
                needed_bytes,
                available_bytes,
            });
        }
    }
    shortages
}
