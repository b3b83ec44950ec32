//! The operations of an agent: its classes, its locks and its tasks.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Class, Classes,
    changes::ChangeCount,
    controller::{
        all_classes::{begin, read},
        class_watch::ClassReadings,
        known_images::KnownImages,
    },
    io_limits::Limiter,
    locks::{LockMode, Locks},
    recovery::RecoveryTime,
    tasks::Tasks,
};
use crate::{
    host::{io_limits::IoLimits, lock},
    types::{ClassName, ImageId, ImageKind, NodeName},
};

/// Settings of the agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node's name.
    pub node: NodeName,
    /// True if the controller must publish a volume before the node may stage or publish it.
    pub attach: bool,
    /// True if callers are told that they may name a group to which the files of a volume are given. One that is named is
    /// respected either way.
    pub mount_group: bool,
    /// Maximum number of volumes published to the node at a time; enforced when `attach` is set.
    pub max_volumes: Option<u32>,
    /// What happens to the members of a group that is deleted.
    pub on_group_delete: OnGroupDelete,
    /// Where the cgroup v2 hierarchy of the host is mounted, for limits of reads and writes.
    pub cgroups: PathBuf,
}

/// What happens to the members of a group that is deleted (volumegroup, `DeleteVolumeGroup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnGroupDelete {
    /// The members are kept, in no group.
    #[default]
    Unlink,
    /// A group that has members is not deleted.
    Refuse,
    /// The members are deleted with the group.
    Cascade,
}

/// The operations of one agent, over all its classes.
#[derive(Debug)]
pub struct Operations {
    pub(crate) settings: Settings,
    pub(crate) classes: Arc<Classes>,
    pub(crate) changes: Tasks,
    pub(crate) known: KnownImages,
    pub(crate) readings: ClassReadings,
    /// The volumes whose stats are being read.
    pub(crate) measuring: Locks,
    pub(crate) limiter: Limiter,
    pub(crate) publishing: tokio::sync::Mutex<()>,
    /// Serializes changes of group memberships, so that no volume joins two groups at the same time.
    pub(crate) grouping: tokio::sync::Mutex<()>,
    /// The classes that could not be read at start: their recovery is still pending.
    unrecovered: Mutex<BTreeSet<ClassName>>,
    /// The problems that the last check of the classes found: each is logged once, not at every check.
    trouble: Mutex<Vec<String>>,
}

impl Operations {
    /// Operations over `classes`. Call [`Operations::recover`] before the first change.
    pub fn new(settings: Settings, classes: Classes) -> Arc<Self> {
        let ended = ChangeCount::default();
        let classes = Arc::new(classes);
        Arc::new(Self {
            limiter: Limiter::new(settings.cgroups.clone()),
            settings,
            changes: Tasks::new(Arc::clone(&classes), ended.clone()),
            readings: ClassReadings::after(ended),
            classes,
            known: KnownImages::default(),
            measuring: Locks::default(),
            publishing: tokio::sync::Mutex::default(),
            grouping: tokio::sync::Mutex::default(),
            unrecovered: Mutex::default(),
            trouble: Mutex::default(),
        })
    }

    /// The settings of the agent.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Recovery: completes or undoes the interrupted operations of an earlier agent, in every class that can be read, all
    /// at once. A class that cannot be read is reported by [`Operations::probe`] and recovered once it is available
    /// again; one that does not answer, as soon as it does.
    pub async fn recover(self: &Arc<Self>) {
        // In a second pass, because the volumes of a group may be in several classes.
        for class in self.recover_each(self.classes.iter().collect()).await {
            if let Err(error) = self.recover_groups(&class, RecoveryTime::Start).await {
                self.recover_later(&class, &error);
            }
        }
    }

    /// Recovers classes, all at once, and returns those that could be; the others are recovered later.
    pub(crate) async fn recover_each(self: &Arc<Self>, classes: Vec<Class>) -> Vec<Class> {
        find_silent(&classes).await;
        let recovering = classes.into_iter().map(|class| {
            let recovering = Arc::clone(self).recover_or_later(class.clone());
            (class, begin(recovering))
        });
        let recovering: Vec<_> = recovering.collect();
        let mut recovered = Vec::new();
        for (class, recovering) in recovering {
            if read(recovering.await).is_ok() {
                recovered.push(class);
            }
        }
        recovered
    }

    /// Recovers a class, and sees to it that this is done later if it cannot be done now.
    async fn recover_or_later(self: Arc<Self>, class: Class) -> crate::Result<()> {
        let (this, own) = (Arc::clone(&self), class.clone());
        let mut recovering = begin(async move { this.recover_class(&own).await });
        let recovered = class.until_silent(&mut recovering).await;
        match &recovered {
            Ok(()) => {}
            Err(error) if error.kind() == crate::Kind::Silent && !recovering.is_finished() => {
                tracing::warn!(class = %class.name, error = %error.chain(), "class unavailable");
                tokio::spawn(async move {
                    let _counted = self.readings.count_when_ended();
                    self.end_late_recovery(&class, read(recovering.await));
                });
            }
            Err(error) => self.recover_later(&class, error),
        }
        recovered
    }

    async fn recover_class(self: &Arc<Self>, class: &Class) -> crate::Result<()> {
        class.backend.recover().await?;
        for kind in ImageKind::ALL {
            let images = class.backend.list(kind).await?;
            self.known.replace(class, kind, &images);
        }
        self.rekey_class(class.clone());
        self.limit_class(class, IoLimits::default());
        self.end_deletions(class).await
    }

    /// Resumes interrupted deletions.
    async fn end_deletions(self: &Arc<Self>, class: &Class) -> crate::Result<()> {
        for id in class.backend.deleting().await? {
            self.end_deletion(class, id);
        }
        Ok(())
    }

    pub(crate) fn recover_later(&self, class: &Class, error: &crate::Error) {
        tracing::warn!(class = %class.name, error = %error.chain(), "class unavailable");
        self.unrecovered().insert(class.name.clone());
    }

    pub(crate) fn unrecovered(&self) -> MutexGuard<'_, BTreeSet<ClassName>> {
        let locked = self.unrecovered.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Recovers, once, a class that could not be read at start and is available now.
    fn recover_now(self: &Arc<Self>, class: &Class) {
        if !self.unrecovered().remove(&class.name) {
            return;
        }
        let (this, class) = (Arc::clone(self), class.clone());
        tokio::spawn(async move {
            let _counted = this.readings.count_when_ended();
            this.end_late_recovery(&class, this.recover_class(&class).await);
        });
    }

    /// Ends the recovery of a class that was not available at start.
    fn end_late_recovery(self: &Arc<Self>, class: &Class, recovered: crate::Result<()>) {
        if let Err(error) = recovered {
            return self.recover_later(class, &error);
        }
        tracing::info!(class = %class.name, "class recovered");
        // Interrupted group operations of other classes may have been waiting for volumes of this one.
        for class in self.classes.iter() {
            let (this, class) = (Arc::clone(self), class.clone());
            tokio::spawn(async move {
                if let Err(error) = this.recover_groups(&class, RecoveryTime::Later).await {
                    this.recover_later(&class, &error);
                }
            });
        }
    }

    /// Resumes an interrupted deletion in the background, as it may take long.
    fn end_deletion(self: &Arc<Self>, class: &Class, id: ImageId) {
        let (this, class) = (Arc::clone(self), class.clone());
        tokio::spawn(async move {
            let delete = async move {
                tracing::warn!(class = %class.name, image = %id, "resuming interrupted deletion");
                class.backend.end_deletion(id).await
            };
            let ended = this
                .changes
                .run(vec![LockMode::Exclusive(id)], delete)
                .await;
            // Busy: another operation is already working on it.
            if let Err(error) = ended
                && error.kind() != crate::Kind::Busy
            {
                // The original caller repeats its call.
                tracing::warn!(image = %id, error = %error.chain(), "interrupted deletion not completed");
            }
        });
    }

    /// Checks that the classes of this node are known, and that every one can be read and written.
    ///
    /// # Errors
    /// [`crate::Kind::Precondition`] naming each unavailable class and its problem.
    pub async fn probe(self: &Arc<Self>) -> crate::Result<()> {
        let check = |class: &Class| {
            let (this, class) = (Arc::clone(self), class.clone());
            begin(async move { this.probe_class(&class).await })
        };
        let set = self.classes.now();
        // All at once, and each in the time that its check takes: the error names those that do not answer.
        let checking: Vec<_> = set.all().map(|class| (class, check(class))).collect();
        let mut problems: Vec<String> = set.undecided.iter().cloned().collect();
        for (class, checking) in checking {
            if let Err(error) = read(checking.await)
                // Ready is who serves what is configured for this node.
                && set.is_open(class)
            {
                problems.push(format!("class {}: {}", class.name, error.chain()));
            }
        }
        self.tell_trouble(&problems);
        self.readings.note_call();
        if problems.is_empty() {
            return Ok(());
        }
        Err(crate::Error::new(
            crate::Kind::Precondition,
            problems.join("; "),
        ))
    }

    async fn probe_class(self: &Arc<Self>, class: &Class) -> crate::Result<()> {
        class.backend.check().await?;
        self.recover_now(class);
        // An LVM command may have been killed while this process continued.
        self.end_deletions(class).await
    }

    /// Logs new problems of the classes, and when all problems are gone.
    fn tell_trouble(&self, problems: &[String]) {
        let mut told = lock(&self.trouble);
        for problem in problems.iter().filter(|problem| !told.contains(problem)) {
            tracing::warn!(error = %problem, "class unavailable");
        }
        if problems.is_empty() && !told.is_empty() {
            tracing::info!("all classes available again");
        }
        if *told != problems {
            self.readings.note_change();
        }
        problems.clone_into(&mut told);
    }

    /// Refuses new operations, ends the watches of the classes, and waits for the in-flight operations to end.
    pub async fn shut_down(&self) {
        self.readings.end();
        self.changes.shut_down().await;
    }
}

/// Has each class checked once, all at once, so that it is known which are silent before any program is started: one of
/// LVM's that repairs a class waits for ever for the disks of another, unless they are known not to answer.
async fn find_silent(classes: &[Class]) {
    let check = |class: &Class| {
        let class = class.clone();
        begin(async move { class.backend.check().await })
    };
    let checking: Vec<_> = classes.iter().map(check).collect();
    for checked in checking {
        // What is wrong is said of the recovery.
        let _ = checked.await;
    }
}
