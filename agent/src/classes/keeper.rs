//! Keeps the classes of a running agent as the configuration and the labels of its node say.
//!
//! **Invariant:** a class that leaves while it holds images is retired, and remembered, until its last image is deleted.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use drumlin_core::{
    ops::{Class, ClassSet, Occupancy, Operations},
    types::ClassName,
};

use super::record::ClassRecord;
use crate::{
    cli::AgentArguments,
    config::{ClassPlan, FileClass, Labels},
};

/// Where the labels of this node are known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LabelSource {
    /// The configuration alone.
    Configuration,
    /// The Node of a cluster, and the configuration.
    Cluster,
}

/// A class with its definition.
#[derive(Debug, Clone)]
struct HeldClass {
    definition: FileClass,
    class: Class,
}

/// What a plan makes of the classes of a node.
#[derive(Debug, Default)]
struct Choice {
    open: Vec<HeldClass>,
    /// Those that other nodes have.
    elsewhere: Vec<FileClass>,
    /// Those that are here with other storage than the plan says.
    changed: Vec<FileClass>,
}

/// Keeps the classes of an agent.
#[derive(Debug)]
pub(crate) struct ClassKeeper {
    plan: ClassPlan,
    source: LabelSource,
    state_dir: PathBuf,
    record: ClassRecord,
    /// The record as it is in the state directory.
    saved: ClassRecord,
    open: Vec<HeldClass>,
    retired: Vec<HeldClass>,
    unread: Vec<ClassName>,
    /// Changed settings of classes that have volumes, such as `class a: directory.path`: a restart applies them.
    refused: Vec<String>,
    /// Changed settings beside the classes, which a restart applies.
    fixed: Vec<String>,
}

impl HeldClass {
    /// The class over the same storage, with the rest of what `definition` says of it.
    fn redefined(&self, definition: &FileClass) -> Self {
        let trash = definition.trash();
        let trash = trash.inspect_err(|error| {
            tracing::error!(class = %definition.name(), error = %format!("{error:#}"), "trash of the class not changed");
        });
        let limits = definition.limits();
        let limits = limits.inspect_err(|error| {
            tracing::error!(class = %definition.name(), error = %format!("{error:#}"), "limits of the class not changed");
        });
        match definition.encryption() {
            Ok(settings) => {
                if self.class.keys.replace(settings) {
                    tracing::info!(class = %definition.name(), "keys of the class replaced");
                }
            }
            Err(error) => {
                tracing::error!(class = %definition.name(), error = %format!("{error:#}"), "keys of the class not changed");
            }
        }
        Self {
            definition: definition.clone(),
            class: Class {
                trash: trash.unwrap_or(self.class.trash),
                limits: limits.unwrap_or(self.class.limits),
                ..self.class.clone()
            },
        }
    }
}

impl ClassKeeper {
    /// Keeps the classes of `plan`, and what was retired before.
    pub(crate) fn new(plan: ClassPlan, source: LabelSource, state_dir: &Path) -> Self {
        let mut record = ClassRecord::load(state_dir).unwrap_or_else(|error| {
            tracing::error!(error = %format!("{error:#}"), "record of the classes not read; retired classes that the configuration has no more are missing");
            ClassRecord::default()
        });
        let saved = record.clone();
        record.configured = configured(&plan, &record);
        let mut retired = Vec::new();
        for definition in &record.retired {
            let mut definition = definition.clone();
            // As the configuration has it: otherwise its storage would be another one when it comes back.
            definition.create_in(state_dir);
            match plan.build(&definition) {
                Ok(class) => retired.push(HeldClass { definition, class }),
                Err(error) => {
                    tracing::error!(class = %definition.name(), error = %format!("{error:#}"), "retired class cannot be used");
                }
            }
        }
        Self {
            plan,
            source,
            state_dir: state_dir.to_owned(),
            saved,
            record,
            open: Vec::new(),
            retired,
            unread: Vec::new(),
            refused: Vec::new(),
            fixed: Vec::new(),
        }
    }

    /// The classes at start. One that this node does not have, and that holds images, is retired.
    pub(crate) async fn start(&mut self) -> ClassSet {
        let choice = self.choose();
        self.open = choice.open;
        let open = &self.open;
        self.retired
            .retain(|held| !open.iter().any(|open| open.class.is(&held.class)));
        for definition in choice.changed {
            self.refuse(&definition);
        }
        for definition in choice.elsewhere {
            if self.held(definition.name()).is_some() {
                continue;
            }
            let Some(held) = self.build(&definition) else {
                continue;
            };
            match held.class.is_empty().await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!(class = %definition.name(), "class retired: it has volumes, and is not configured for this node");
                    self.retired.push(held);
                }
                // Most of these nodes have no such storage.
                Err(error) => {
                    tracing::debug!(class = %definition.name(), error = %error.chain(), "class of other nodes not read");
                    self.unread.push(definition.name().clone());
                }
            }
        }
        self.remember();
        self.set()
    }

    /// Refuses a plan of a configuration file that names no class any more.
    ///
    /// # Errors
    /// As those of [`ClassRecord::check`].
    pub(crate) fn check(&self, plan: &ClassPlan, arguments: &AgentArguments) -> anyhow::Result<()> {
        self.record.check(plan, arguments)
    }

    /// Returns true if a class waits for its last image to be deleted.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Notes the changed settings beside the classes, which a restart applies.
    pub(crate) fn note_fixed(&mut self, keys: Vec<String>) {
        self.fixed = keys;
    }

    /// The changes of the configuration that are not applied.
    pub(crate) fn unapplied(&self) -> Vec<String> {
        self.fixed.iter().chain(&self.refused).cloned().collect()
    }

    /// The names of the retired classes.
    pub(crate) fn retired(&self) -> Vec<String> {
        let names = self.retired.iter().map(|held| &held.class.name);
        names.map(ToString::to_string).collect()
    }

    /// Follows a plan, or the labels of the Node.
    pub(crate) async fn follow(
        &mut self,
        operations: &Arc<Operations>,
        plan: Option<ClassPlan>,
        labels: Option<Labels>,
    ) {
        if let Some(labels) = labels {
            self.record.node_labels = Some(labels);
        }
        if let Some(plan) = plan {
            self.record.configured = configured(&plan, &self.record);
            self.plan = plan;
        }
        self.refused.clear();
        let mut choice = self.choose();
        let replaced = self.replaceable(operations, &mut choice).await;
        self.tell(&choice);
        let before = std::mem::replace(&mut self.open, choice.open);
        let open = &self.open;
        self.retired.extend(before);
        self.retired
            .retain(|held| !open.iter().any(|open| open.class.is(&held.class)));
        self.unread
            .retain(|name| !open.iter().any(|open| open.class.name == *name));
        self.remember();
        operations.set_classes(self.set()).await;
        self.settle(operations).await;
        self.replace(operations, replaced).await;
        self.remember();
        operations.rekey();
    }

    /// Removes retired classes that hold nothing. Returns true if an operation in flight may still create an image in one.
    pub(crate) async fn settle(&mut self, operations: &Arc<Operations>) -> bool {
        let (mut kept, mut is_in_flight, before) = (Vec::new(), false, self.retired.len());
        for held in std::mem::take(&mut self.retired) {
            let occupancy = operations.occupancy(&held.class).await;
            match &occupancy {
                Ok(Occupancy::Empty) => {
                    tracing::info!(class = %held.class.name, "class removed");
                    continue;
                }
                Ok(Occupancy::InFlight) => is_in_flight = true,
                Ok(Occupancy::Images) => {}
                Err(error) => {
                    tracing::debug!(class = %held.class.name, error = %error.chain(), "retired class not read");
                }
            }
            kept.push(held);
        }
        self.retired = kept;
        if self.retired.len() != before {
            operations.set_classes(self.set()).await;
            self.remember();
        }
        is_in_flight
    }

    /// The labels of this node; none while they are not known.
    fn labels(&self) -> Option<Labels> {
        let mut labels = self.plan.labels().clone();
        if self.source == LabelSource::Cluster {
            labels.extend(self.record.node_labels.clone()?);
        }
        Some(labels)
    }

    /// What the plan makes of the classes. While the labels are not known, no class with a selector is chosen.
    fn choose(&self) -> Choice {
        let labels = self.labels();
        let mut choice = Choice::default();
        for definition in self.plan.classes() {
            let is_here = match &labels {
                Some(labels) => definition.selects(labels),
                None => !definition.has_selector(),
            };
            if !is_here {
                choice.elsewhere.push(definition.clone());
                continue;
            }
            match self.held(definition.name()) {
                Some(held) if held.definition.has_storage_of(definition) => {
                    choice.open.push(held.redefined(definition));
                }
                Some(_) => choice.changed.push(definition.clone()),
                None => choice.open.extend(self.build(definition)),
            }
        }
        choice
    }

    /// The classes whose storage is to be replaced and that hold nothing. The others stay as they are.
    async fn replaceable(
        &mut self,
        operations: &Arc<Operations>,
        choice: &mut Choice,
    ) -> Vec<FileClass> {
        let mut replaceable = Vec::new();
        for definition in std::mem::take(&mut choice.changed) {
            let Some(held) = self.held(definition.name()).cloned() else {
                continue;
            };
            if let Ok(Occupancy::Empty) = operations.occupancy(&held.class).await {
                replaceable.push(definition);
                continue;
            }
            self.refuse(&definition);
            let is_open = self.open.iter().any(|open| open.class.is(&held.class));
            // The rest of what the file says of it is applied.
            let rest = definition.with_storage_of(&held.definition);
            choice.open.extend(is_open.then(|| held.redefined(&rest)));
        }
        replaceable
    }

    /// Adds the classes whose former storage has left.
    async fn replace(&mut self, operations: &Arc<Operations>, replaced: Vec<FileClass>) {
        if replaced.is_empty() {
            return;
        }
        for definition in replaced {
            let mut retired = self.retired.iter();
            let index = retired.position(|held| held.class.name == *definition.name());
            if let Some(index) = index {
                // A volume was created in it just before.
                self.refuse(&definition);
                self.open.push(self.retired.remove(index));
            } else if let Some(held) = self.build(&definition) {
                tracing::info!(class = %definition.name(), "class added");
                self.open.push(held);
            }
        }
        operations.set_classes(self.set()).await;
    }

    /// Notes that a class keeps the storage that it has.
    fn refuse(&mut self, definition: &FileClass) {
        let name = definition.name();
        let held = self.held(name);
        let keys = held.map_or_else(Vec::new, |held| {
            held.definition.changes_of_storage(definition)
        });
        let keys = keys.join(", ");
        tracing::warn!(
            class = %name,
            keys,
            "changed settings of the class not applied, because it has volumes; the former ones stay in force"
        );
        self.refused.push(format!("class {name}: {keys}"));
    }

    fn held(&self, name: &ClassName) -> Option<&HeldClass> {
        let mut held = self.open.iter().chain(&self.retired);
        held.find(|held| held.class.name == *name)
    }

    fn build(&self, definition: &FileClass) -> Option<HeldClass> {
        let built = self.plan.build(definition).inspect_err(|error| {
            tracing::error!(class = %definition.name(), error = %format!("{error:#}"), "class cannot be used");
        });
        Some(HeldClass {
            definition: definition.clone(),
            class: built.ok()?,
        })
    }

    fn set(&self) -> ClassSet {
        let classes = |held: &[HeldClass]| held.iter().map(|held| held.class.clone()).collect();
        let labels = self.labels();
        let names = self.plan.classes().iter().map(FileClass::name);
        let is_away = |name: &&ClassName| self.held(name).is_none();
        let waits = labels.is_none() && self.plan.classes().iter().any(FileClass::has_selector);
        ClassSet {
            open: classes(&self.open),
            default: self
                .plan
                .default_class(&labels.unwrap_or_default())
                .cloned(),
            retired: classes(&self.retired),
            elsewhere: names.filter(is_away).cloned().collect(),
            unread: self.unread.clone(),
            undecided: waits.then(|| {
                "the labels of the Node are not known yet; the controller writes them into the NodeStorage of the node"
                    .to_owned()
            }),
        }
    }

    /// Logs which classes come and go.
    fn tell(&self, choice: &Choice) {
        let has =
            |all: &[HeldClass], one: &HeldClass| all.iter().any(|held| held.class.is(&one.class));
        for held in choice.open.iter().filter(|held| !has(&self.open, held)) {
            tracing::info!(class = %held.class.name, "class added");
        }
        for held in self.open.iter().filter(|held| !has(&choice.open, held)) {
            tracing::info!(class = %held.class.name, "class retired: it is not configured for this node any more");
        }
    }

    /// Writes the record, if it has changed.
    fn remember(&mut self) {
        let retired = self.retired.iter().map(|held| held.definition.clone());
        let record = ClassRecord {
            node_labels: self.record.node_labels.clone(),
            retired: retired.collect(),
            configured: self.record.configured.clone(),
            unapplied: self.unapplied(),
        };
        if record != self.saved {
            match record.save(&self.state_dir) {
                Ok(()) => self.saved = record.clone(),
                Err(error) => {
                    tracing::error!(error = %format!("{error:#}"), "record of the classes not written");
                }
            }
        }
        self.record = record;
    }
}

/// The classes that the file names in this plan, or did when it named some last.
fn configured(plan: &ClassPlan, before: &ClassRecord) -> Vec<ClassName> {
    if plan.is_of_file() {
        // One like the class that there is without any is found without the file, too.
        let classes = plan.classes().iter();
        let classes = classes.filter(|class| !plan.is_like_built_in(class));
        classes.map(FileClass::name).cloned().collect()
    } else {
        before.configured.clone()
    }
}
