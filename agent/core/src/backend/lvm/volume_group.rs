//! A volume group: what its disks say now, and changing it, one program at a time.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    command::{self, Command},
    in_flight::InFlight,
    metadata::{Reader, VolumeGroup},
    physical_volumes::FoundDisks,
    preflight,
    reservations::Reservations,
    system_dir::SettingsStamp,
    unresponsive_disks,
};
use crate::{
    Error, Kind, Result,
    backend::gate::TimedMutex,
    blocking, blocking_at_once,
    host::{device_mapper::DeviceMapper, session::Session},
    types::NodeName,
};

/// So long disks that work take at the very most to be read.
const SLOW_TO_READ: Duration = Duration::from_secs(5);
/// So long a change keeps others waiting before they are told to come again.
const SLOW_TO_CHANGE: Duration = Duration::from_mins(1);
/// So long an `lvm` waits for the next change.
const IDLE: Duration = Duration::from_secs(10);

/// A volume group of this machine.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    /// Held while disks are read, which may take for ever: never locked where async code runs.
    reader: Mutex<Option<Reader>>,
    /// The uuid and the path of each disk, as they were last found.
    disks: Mutex<Vec<(String, PathBuf)>>,
    /// The uuid that it had when it was first read: a name alone may come to be another group's.
    pub(super) uuid: OnceLock<String>,
    /// The size of an extent, once it is known.
    extent: AtomicU64,
    mapper: OnceLock<DeviceMapper>,
    looks: TimedMutex,
    pub(super) changes: TimedMutex,
    waiting: Mutex<Vec<Job>>,
    running: tokio::sync::Mutex<RunningLvm>,
    /// Held by whoever runs programs that change the group.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// What room of its pools is promised to what is on its way.
    pub(super) claims: Reservations,
    /// What this process is in the middle of.
    pub(super) in_hand: InFlight,
    /// The node that this is, once it was repaired for it.
    pub(super) node: OnceLock<NodeName>,
    /// Nothing is left half-done, as far as is known.
    pub(super) is_repaired: AtomicBool,
    /// So often was it repaired, or found to need none.
    pub(super) repairs: AtomicU64,
    /// Held by whoever makes a pool in it: several classes may want the same one.
    pub(super) making_pool: tokio::sync::Mutex<()>,
}

/// An `lvm` that was started for a change and waits for the next one: to start one costs more than most changes.
#[derive(Debug, Default)]
struct RunningLvm {
    session: Option<Session>,
    uses: u64,
    /// The host's settings as they were when it was started.
    seen: Option<SettingsStamp>,
}

/// What somebody wants changed, command after command.
#[derive(Debug)]
struct Job {
    commands: Vec<Command>,
    answer: oneshot::Sender<Result<()>>,
}

impl RunningLvm {
    /// The one that waits, or a new one.
    async fn take(&mut self) -> Result<Session> {
        let seen = Some(blocking(|| Ok(SettingsStamp::now())).await?);
        if let Some(mut session) = self.session.take() {
            if session.is_running() && self.seen == seen {
                return Ok(session);
            }
            session.end().await;
        }
        self.seen = seen;
        command::start().await
    }
}

impl Group {
    /// The group `name`, the same for all classes that are in it.
    pub(super) fn of(name: &str) -> Arc<Self> {
        static GROUPS: Mutex<Option<HashMap<String, Weak<Group>>>> = Mutex::new(None);
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = groups.get_or_insert_default();
        if let Some(group) = groups.get(name).and_then(Weak::upgrade) {
            return group;
        }
        let group = Arc::new(Self {
            name: name.to_owned(),
            reader: Mutex::new(None),
            disks: Mutex::default(),
            uuid: OnceLock::new(),
            extent: AtomicU64::new(0),
            mapper: OnceLock::new(),
            looks: TimedMutex::new(SLOW_TO_READ),
            changes: TimedMutex::new(SLOW_TO_CHANGE),
            waiting: Mutex::new(Vec::new()),
            running: tokio::sync::Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            claims: Reservations::default(),
            in_hand: InFlight::default(),
            node: OnceLock::new(),
            is_repaired: AtomicBool::new(false),
            repairs: AtomicU64::new(0),
            making_pool: tokio::sync::Mutex::new(()),
        });
        groups.insert(name.to_owned(), Arc::downgrade(&group));
        group
    }

    /// The name of a volume in it, as LVM's programs want it.
    pub(super) fn path(&self, volume: &str) -> String {
        format!("{}/{volume}", self.name)
    }

    /// The kernel's device-mapper.
    pub(super) fn mapper(&self) -> Result<&DeviceMapper> {
        if self.mapper.get().is_none() {
            let _ = self.mapper.set(DeviceMapper::open()?);
        }
        self.mapper
            .get()
            .ok_or_else(|| Error::new(Kind::Bug, "device-mapper was opened but is not available"))
    }

    /// What the disks say now. Starts a program only to find the disks: the first time, and when they changed.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when there is no such group, `Io` when its disks cannot be read, `Busy` when they do not
    /// answer.
    pub(super) async fn now(self: &Arc<Self>) -> Result<Arc<VolumeGroup>> {
        // A udevd that is busy says nothing of the disks.
        preflight::check().await?;
        let this = Arc::clone(self);
        let look = async move {
            let known = Arc::clone(&this);
            // One look at a time, for which others must not be waited.
            let look = blocking_at_once(move || Ok(known.read_known()));
            if let Some(group) = look.await? {
                return Ok(group);
            }
            // Those that are no group's any more can be taken away.
            this.close_disks();
            let disks = this.find_disks().await?;
            blocking_at_once(move || this.read_these(disks)).await
        };
        let group = self.look(look).await?;
        match &group.refusal {
            None => Ok(group),
            Some(why) => {
                // One that is exported is about to be taken away.
                self.close_disks();
                Err(Error::new(
                    Kind::Precondition,
                    format!("volume group {} {why}", group.name),
                ))
            }
        }
    }

    /// Looks at the disks, or at what the kernel can tell only when they answer. One look at a time: disks that do not
    /// answer hold up one thread, and nobody for long.
    ///
    /// # Errors
    /// [`Kind::Busy`] when they do not answer.
    pub(super) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if let Some(found) = self.looks.pass(look).await {
            return found;
        }
        // Other groups must not wait for the same disks.
        unresponsive_disks::look_for().await;
        Err(self.does_not_answer())
    }

    /// Refuses what would only wait.
    ///
    /// # Errors
    /// [`Kind::Busy`] when the disks do not answer, or a change takes very long.
    pub(super) fn check_answers(&self) -> Result<()> {
        if self.looks.is_stuck() {
            return Err(self.does_not_answer());
        }
        if self.changes.is_stuck() {
            return Err(Error::new(
                Kind::Busy,
                format!(
                    "a change of volume group {} has been running for {} s and continues; retry later",
                    self.name,
                    SLOW_TO_CHANGE.as_secs()
                ),
            ));
        }
        Ok(())
    }

    fn does_not_answer(&self) -> Error {
        Error::new(
            Kind::Busy,
            format!(
                "the disks of volume group {} have not answered for {} s; check dmsetup info for suspended devices, and the kernel log",
                self.name,
                SLOW_TO_READ.as_secs()
            ),
        )
    }

    /// Reads the disks that are known already; none when those are not the group's, or it is not this host's, any more.
    pub(super) fn read_known(&self) -> Option<Arc<VolumeGroup>> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let found = reader.as_mut()?;
        let group = found.read().ok().flatten()?;
        let is_ours = group.name == self.name && self.is_uuid(&group.uuid);
        (is_ours && found.has_all_of(&group)).then_some(group)
    }

    /// What the disks say to whoever holds LVM's lock, which whoever looks for disks would wait for. Every disk that can
    /// be read has the newest text, so one that is away, or was added since, may be left out.
    ///
    /// # Errors
    /// [`Kind::Busy`] when none of those that are known tells anything later than `before`.
    pub(super) fn read_locked(&self, before: &VolumeGroup) -> Result<Arc<VolumeGroup>> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let now = reader
            .as_mut()
            .and_then(|known| known.read().ok().flatten());
        let is_same = |now: &Arc<VolumeGroup>| {
            (&now.name, &now.uuid) == (&self.name, &before.uuid) && now.sequence >= before.sequence
        };
        now.filter(is_same).ok_or_else(|| {
            Error::new(
                Kind::Busy,
                format!(
                    "the disks of volume group {} changed during the operation; retry",
                    self.name
                ),
            )
        })
    }

    /// The size of an extent, in bytes; one that was read once does not change.
    ///
    /// # Errors
    /// As those of [`Group::now`].
    pub(super) async fn extent(self: &Arc<Self>) -> Result<u64> {
        match self.extent.load(Ordering::Relaxed) {
            0 => {
                let extent = self.now().await?.extent;
                self.extent.store(extent, Ordering::Relaxed);
                Ok(extent)
            }
            known => Ok(known),
        }
    }

    /// Where the disk with this uuid is, as it was last seen.
    pub(super) fn disk(&self, uuid: &str) -> Option<PathBuf> {
        let disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = disks.iter().find(|(known, _)| known == uuid);
        found.map(|(_, path)| path.clone())
    }

    /// The group's disks, as they were last found.
    fn disks(&self) -> Vec<PathBuf> {
        let disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        disks.iter().map(|(_, path)| path.clone()).collect()
    }

    /// Lets go of the disks: they are looked for again when they are read the next time. Those that are being read
    /// now are not waited for, which may take for ever.
    fn close_disks(&self) {
        if let Ok(mut reader) = self.reader.try_lock() {
            *reader = None;
        }
    }

    fn read_these(&self, found: FoundDisks) -> Result<Arc<VolumeGroup>> {
        let mut reader = Reader::new(found.paths)?;
        let group = reader.read()?.filter(|group| group.name == self.name);
        let group = group.ok_or_else(|| {
            Error::new(
                Kind::Precondition,
                format!(
                    "volume group {} was not found on its disks {}",
                    self.name,
                    reader.names()
                ),
            )
        })?;
        if !self.is_uuid(&group.uuid) {
            return Err(self.is_another(&reader.names()));
        }
        if group.system_id != found.system_id {
            return Err(Error::new(
                Kind::Busy,
                format!(
                    "the system id of volume group {} changed during the operation; retry",
                    self.name
                ),
            ));
        }
        let _ = self.uuid.set(group.uuid.clone());
        *self.disks.lock().unwrap_or_else(PoisonError::into_inner) = reader.paths();
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
        Ok(group)
    }

    /// Carries out commands, one after the other until one fails. What several callers want at a time is done by one
    /// program; whatever becomes of a caller, what was begun is carried out.
    ///
    /// # Errors
    /// That of the command that failed; those before it are done.
    pub(super) async fn change(self: &Arc<Self>, commands: Vec<Command>) -> Result<()> {
        let (answer, result) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Job { commands, answer });
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let _turn = this.turn.lock().await;
            let _begun = this.changes.begin();
            let jobs =
                std::mem::take(&mut *this.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            this.carry_out(jobs).await;
        });
        result.await.map_err(|error| {
            Error::new(Kind::Bug, "an LVM change task ended unexpectedly").because(error)
        })?
    }

    async fn carry_out(self: &Arc<Self>, jobs: Vec<Job>) {
        // No program is started that would only wait for the disks.
        if let Err(error) = self.now().await {
            for job in jobs {
                let error = Error::new(error.kind(), error.chain());
                let _ = job.answer.send(Err(error));
            }
            return;
        }
        let mut running = self.running.lock().await;
        let mut session = match running.take().await {
            Ok(session) => Some(session),
            Err(error) => {
                tracing::warn!(group = %self.name, error = %error.chain(), "LVM shell unavailable; starting a process for each command");
                None
            }
        };
        let mut died: Option<Error> = None;
        for Job {
            mut commands,
            answer,
        } in jobs
        {
            let result = match &died {
                // What it has left has to be looked at before anything else is done.
                Some(error) => Err(Error::new(
                    Kind::Busy,
                    format!(
                        "an earlier change of the volume group failed; retry: {}",
                        error.chain()
                    ),
                )),
                None => {
                    self.one_by_one(&mut commands, &mut session, &mut died)
                        .await
                }
            };
            let is_unclear = |error: &Error| matches!(error.kind(), Kind::HalfDone | Kind::Command);
            if result.as_ref().is_err_and(is_unclear) {
                // A program may have been killed. Who asks again finds it repaired.
                self.is_repaired.store(false, Ordering::Release);
            }
            // Who asked may be gone.
            let _ = answer.send(result);
        }
        if let (Some(session), None) = (session, died) {
            self.keep(&mut running, session);
        }
    }

    /// Carries out commands until one fails: by the running `lvm`, or each by a program of its own.
    async fn one_by_one(
        self: &Arc<Self>,
        commands: &mut [Command],
        session: &mut Option<Session>,
        died: &mut Option<Error>,
    ) -> Result<()> {
        for command in &mut *commands {
            if command.is_conditional() {
                command.prepare(&*self.now().await?)?;
            }
            command.hiding(unresponsive_disks::hiding(&self.disks()));
            let result = match session {
                Some(session) if command.is_for_session() => {
                    let carried_out = command::carry_out(session, command).await;
                    carried_out.map_err(|error| {
                        let told = Error::new(error.kind(), error.chain());
                        *died = Some(error);
                        told
                    })?
                }
                _ => command.run().await,
            };
            if let Err(error) = &result
                && error.kind() == Kind::Precondition
            {
                // A disk has come or gone, perhaps with another group of this name.
                self.close_disks();
            }
            let now = self.now().await?;
            let Err(error) = result else {
                if command.is_done(&now) == Some(false) {
                    return Err(Error::new(
                        Kind::HalfDone,
                        format!("{command:?} changed nothing, and LVM reported no error"),
                    ));
                }
                continue;
            };
            // LVM complains of other things, too: of what it does not know in its settings, of other groups' disks.
            match (error.kind(), command.is_done(&now)) {
                // What is to be removed was.
                (Kind::NotFound, Some(true)) => {}
                (Kind::Command, Some(true)) if self.is_sound(now).await? => {
                    tracing::debug!(group = %self.name, error = %error.chain(), "command reported errors, but the metadata shows that it succeeded");
                }
                // A program of its own tells a status.
                (Kind::Command, None) if session.is_some() => command.run().await?,
                _ => return Err(error),
            }
        }
        tracing::debug!(group = %self.name, commands = commands.len(), "commands carried out");
        Ok(())
    }

    /// Runs a command in a process of its own that reads no silent disk of other groups.
    pub(super) async fn run(&self, mut command: Command) -> Result<()> {
        command.hiding(unresponsive_disks::hiding(&self.disks()));
        command.run().await
    }

    /// Whether nothing is half-done in the kernel, or between it and the record.
    async fn is_sound(self: &Arc<Self>, now: Arc<VolumeGroup>) -> Result<bool> {
        let this = Arc::clone(self);
        blocking(move || this.check_devices(&now)).await
    }

    /// Keeps a running `lvm` for the next change, which may come.
    fn keep(self: &Arc<Self>, running: &mut RunningLvm, session: Session) {
        running.session = Some(session);
        running.uses += 1;
        let (uses, this) = (running.uses, Arc::downgrade(self));
        tokio::spawn(async move {
            tokio::time::sleep(IDLE).await;
            let Some(this) = this.upgrade() else { return };
            let mut running = this.running.lock().await;
            if running.uses == uses
                && let Some(session) = running.session.take()
            {
                session.end().await;
            }
        });
    }
}
