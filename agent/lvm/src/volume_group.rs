//! An LVM volume group: reading its metadata from the disks, and running the commands that change it, one at a time.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use crate::{
    Error, Kind, Result, blocking, blocking_at_once,
    command::{self, Command},
    host::{
        Occupied, TimedMutex,
        device_mapper::DeviceMapper,
        lock,
        session::Session,
        trace::{self, Wait},
    },
    in_flight::InFlight,
    metadata::{self, Reader},
    physical_volumes::FoundDisks,
    preflight,
    reservations::Reservations,
    system_dir::SettingsStamp,
    unresponsive_disks,
};

/// Timeout for reading working disks.
const SLOW_TO_READ: Duration = Duration::from_secs(5);
/// Time after which a running change makes other callers return `Busy`.
const SLOW_TO_CHANGE: Duration = Duration::from_mins(1);
/// Idle timeout of an LVM shell.
const IDLE: Duration = Duration::from_secs(10);

/// Returns true if the kernel's devices of a group agree with its metadata.
type DeviceCheck = Box<dyn Fn(&metadata::GroupMetadata) -> Result<bool> + Send + Sync>;

/// A volume group of this host, which need not exist yet.
pub struct VolumeGroup {
    /// Its name.
    pub name: String,
    /// Locked while disks are read, which may block forever: never lock it in async code.
    reader: Mutex<Option<Reader>>,
    /// The UUID and path of each disk, as they were last found.
    disks: Mutex<Vec<(String, PathBuf)>>,
    /// The UUID at the first read: another group can get the same name later.
    pub(crate) uuid: OnceLock<String>,
    /// The extent size, once it is known.
    extent_size: AtomicU64,
    mapper: OnceLock<DeviceMapper>,
    looks: TimedMutex,
    changes: TimedMutex,
    waiting: Mutex<Vec<Job>>,
    running: tokio::sync::Mutex<RunningLvm>,
    /// Locked while a program runs that changes the group.
    turn: tokio::sync::Mutex<()>,
    /// Capacity of its pools that is promised to operations of this process.
    pub reservations: Reservations,
    /// In-flight operations of this process.
    pub in_flight: InFlight,
    /// True if, as far as is known, nothing is left incomplete.
    is_recovered: AtomicBool,
    device_check: OnceLock<DeviceCheck>,
}

impl fmt::Debug for VolumeGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VolumeGroup").field(&self.name).finish()
    }
}

/// The group is not changed while this value is held.
#[derive(Debug)]
pub struct ChangesHeld<'a> {
    // Dropped before the turn, which lets the next change begin.
    _begun: Occupied,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

/// An LVM shell that was started for a change and waits for the next one: starting it costs more than most changes.
#[derive(Debug, Default)]
struct RunningLvm {
    session: Option<Session>,
    uses: u64,
    /// The host's settings at the time it was started.
    seen: Option<SettingsStamp>,
}

/// A requested change: a list of commands.
#[derive(Debug)]
struct Job {
    commands: Vec<Command>,
    answer: oneshot::Sender<Result<()>>,
    /// The span of its caller.
    caller: Span,
    /// Until its turn.
    wait: Span,
}

impl RunningLvm {
    /// The idle shell, or a new one.
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

impl VolumeGroup {
    /// The group `name`. All operations of a process on a group must share one value.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            reader: Mutex::new(None),
            disks: Mutex::default(),
            uuid: OnceLock::new(),
            extent_size: AtomicU64::new(0),
            mapper: OnceLock::new(),
            looks: TimedMutex::new(SLOW_TO_READ),
            changes: TimedMutex::new(SLOW_TO_CHANGE),
            waiting: Mutex::new(Vec::new()),
            running: tokio::sync::Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            reservations: Reservations::default(),
            in_flight: InFlight::default(),
            is_recovered: AtomicBool::new(false),
            device_check: OnceLock::new(),
        }
    }

    /// Sets how the kernel's devices are compared with the metadata, for commands that reported errors and may have
    /// succeeded all the same. Without it, their errors are returned.
    pub fn check_devices_by(
        &self,
        check: impl Fn(&metadata::GroupMetadata) -> Result<bool> + Send + Sync + 'static,
    ) {
        let _ = self.device_check.set(Box::new(check));
    }

    /// Returns true if nothing is left incomplete, as far as is known: recovery has run, and no change since then ended
    /// with an unknown result.
    pub fn is_recovered(&self) -> bool {
        self.is_recovered.load(Ordering::Acquire)
    }

    /// Notes that recovery has run.
    pub fn set_recovered(&self) {
        self.is_recovered.store(true, Ordering::Release);
    }

    /// Notes that something may be left incomplete.
    pub fn needs_recovery(&self) {
        self.is_recovered.store(false, Ordering::Release);
    }

    /// Waits for running changes, and prevents others.
    pub async fn hold_changes(&self) -> ChangesHeld<'_> {
        let turn = self.turn().await;
        ChangesHeld {
            _begun: self.changes.begin(),
            _turn: turn,
        }
    }

    /// Waits for running changes, and prevents others, without counting as a change that takes long.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        trace::waited(Wait::Lock, self.turn.lock()).await
    }

    /// The name of a volume in the syntax of LVM's commands.
    pub fn path(&self, volume: &str) -> String {
        format!("{}/{volume}", self.name)
    }

    /// The kernel's device-mapper.
    pub fn mapper(&self) -> Result<&DeviceMapper> {
        if self.mapper.get().is_none() {
            let _ = self.mapper.set(DeviceMapper::open()?);
        }
        self.mapper
            .get()
            .ok_or_else(|| Error::new(Kind::Bug, "device-mapper was opened but is not available"))
    }

    /// Reads the current metadata from the disks. Runs a program only to find the disks: the first time, and when
    /// they changed.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when no such group exists, `Io` when its disks cannot be read, `Busy` when they do not
    /// answer.
    pub async fn now(self: &Arc<Self>) -> Result<Arc<metadata::GroupMetadata>> {
        // A busy udevd says nothing about the disks.
        preflight::check().await?;
        let this = Arc::clone(self);
        let look = async move {
            let known = Arc::clone(&this);
            // One read at a time; other calls must not wait for it.
            let look = blocking_at_once(move || Ok(known.read_known()));
            if let Some(group) = look.await? {
                return Ok(group);
            }
            // Disks that have left the group must be removable.
            this.close_disks();
            let disks = this.find_disks().await?;
            blocking_at_once(move || this.read_these(disks)).await
        };
        let group = self.look(look).await?;
        match &group.refusal {
            None => Ok(group),
            Some(why) => {
                // An exported group is about to be disconnected.
                self.close_disks();
                Err(Error::new(
                    Kind::Precondition,
                    format!("volume group {} {why}", group.name),
                ))
            }
        }
    }

    /// Reads the disks, or other state that the kernel reports only when they answer. One read at a time: disks that
    /// do not answer block one thread, and callers only briefly.
    ///
    /// # Errors
    /// [`Kind::Busy`] when they do not answer.
    pub async fn look<T: Send + 'static>(
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

    /// Refuses a call that would only wait.
    ///
    /// # Errors
    /// [`Kind::Busy`] when the disks do not answer, or a change takes very long.
    pub fn check_answers(&self) -> Result<()> {
        if let Some(silence) = self.known_silence() {
            return Err(silence);
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

    /// What is wrong if the disks are known not to answer.
    pub fn known_silence(&self) -> Option<Error> {
        self.looks.is_stuck().then(|| self.does_not_answer())
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

    /// Reads the known disks; none when they are no longer the group's, or the group is no longer this host's.
    pub fn read_known(&self) -> Option<Arc<metadata::GroupMetadata>> {
        let mut reader = lock(&self.reader);
        let found = reader.as_mut()?;
        let group = found.read().ok().flatten()?;
        let is_ours = group.name == self.name && self.is_uuid(&group.uuid);
        (is_ours && found.has_all_of(&group)).then_some(group)
    }

    /// Reads the metadata while LVM's lock is held, where a scan for disks would deadlock. Every readable disk has
    /// the newest text, so a missing disk, or one that was added later, can be left out.
    ///
    /// # Errors
    /// [`Kind::Busy`] when none of the known disks has metadata at least as new as `before`.
    pub fn read_locked(
        &self,
        before: &metadata::GroupMetadata,
    ) -> Result<Arc<metadata::GroupMetadata>> {
        let mut reader = lock(&self.reader);
        let now = reader
            .as_mut()
            .and_then(|known| known.read().ok().flatten());
        let is_same = |now: &Arc<metadata::GroupMetadata>| {
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

    /// The extent size, in bytes; it never changes.
    ///
    /// # Errors
    /// As those of [`VolumeGroup::now`].
    pub async fn extent_size(self: &Arc<Self>) -> Result<u64> {
        match self.extent_size.load(Ordering::Relaxed) {
            0 => {
                let size = self.now().await?.extent_size;
                self.extent_size.store(size, Ordering::Relaxed);
                Ok(size)
            }
            known => Ok(known),
        }
    }

    /// The path of the disk with this UUID, as it was last seen.
    pub fn disk(&self, uuid: &str) -> Option<PathBuf> {
        let disks = lock(&self.disks);
        let found = disks.iter().find(|(known, _)| known == uuid);
        found.map(|(_, path)| path.clone())
    }

    /// The group's disks, as they were last found.
    fn disks(&self) -> Vec<PathBuf> {
        let disks = lock(&self.disks);
        disks.iter().map(|(_, path)| path.clone()).collect()
    }

    /// Closes the disks: the next read searches for them again. Does not wait for a read in progress, which may block
    /// forever.
    fn close_disks(&self) {
        if let Ok(mut reader) = self.reader.try_lock() {
            *reader = None;
        }
    }

    fn read_these(&self, found: FoundDisks) -> Result<Arc<metadata::GroupMetadata>> {
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
        *lock(&self.disks) = reader.paths();
        *lock(&self.reader) = Some(reader);
        Ok(group)
    }

    /// Runs commands, one after the other until one fails. Concurrent requests share one program; a request that has
    /// begun is completed even if its caller goes away.
    ///
    /// # Errors
    /// The error of the command that failed; the commands before it are done.
    pub async fn change(self: &Arc<Self>, commands: Vec<Command>) -> Result<()> {
        let (answer, result) = oneshot::channel();
        lock(&self.waiting).push(Job {
            commands,
            answer,
            caller: Span::current(),
            wait: trace::wait(Wait::Queue),
        });
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let _held = this.hold_changes().await;
            let jobs = std::mem::take(&mut *lock(&this.waiting));
            // What all of them need is traced for the first one.
            let first = jobs
                .first()
                .map_or_else(Span::none, |job| job.caller.clone());
            this.carry_out(jobs).instrument(first).await;
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
        let mut running = trace::waited(Wait::Lock, self.running.lock()).await;
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
            caller,
            wait,
        } in jobs
        {
            drop(wait);
            let result = match &died {
                // Leftovers must be recovered before anything else is done.
                Some(error) => Err(Error::new(
                    Kind::Busy,
                    format!(
                        "an earlier change of the volume group failed; retry: {}",
                        error.chain()
                    ),
                )),
                None => {
                    self.one_by_one(&mut commands, &mut session, &mut died)
                        .instrument(caller)
                        .await
                }
            };
            let is_unclear = |error: &Error| matches!(error.kind(), Kind::HalfDone | Kind::Command);
            if result.as_ref().is_err_and(is_unclear) {
                // A program may have been killed. A repeated call runs recovery first.
                self.needs_recovery();
            }
            // The caller may be gone.
            let _ = answer.send(result);
        }
        if let (Some(session), None) = (session, died) {
            self.keep(&mut running, session);
        }
    }

    /// Runs commands until one fails: in the LVM shell, or each in a separate process.
    async fn one_by_one(
        self: &Arc<Self>,
        commands: &mut [Command],
        session: &mut Option<Session>,
        died: &mut Option<Error>,
    ) -> Result<()> {
        for command in &mut *commands {
            // What others wait for is a batch of as many changes as there were callers.
            self.changes.progress();
            if command.is_conditional() {
                command.prepare(&*self.now().await?)?;
            }
            command.hiding(unresponsive_disks::hiding(&self.disks()).await);
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
            // LVM also reports errors that do not concern the command: unknown settings, disks of other groups.
            match (error.kind(), command.is_done(&now)) {
                // The volume to be removed does not exist any more.
                (Kind::NotFound, Some(true)) => {}
                (Kind::Command, Some(true)) if self.is_sound(now).await? => {
                    tracing::debug!(group = %self.name, error = %error.chain(), "command reported errors, but the metadata shows that it succeeded");
                }
                // A separate process has an exit status.
                (Kind::Command, None) if session.is_some() => command.run().await?,
                _ => return Err(error),
            }
        }
        tracing::debug!(group = %self.name, commands = commands.len(), "commands carried out");
        Ok(())
    }

    /// Runs a command in a separate process that reads no unresponsive disk of other groups.
    pub async fn run(&self, mut command: Command) -> Result<()> {
        command.hiding(unresponsive_disks::hiding(&self.disks()).await);
        command.run().await
    }

    /// Returns true if nothing is incomplete in the kernel, or differs between it and the metadata.
    async fn is_sound(self: &Arc<Self>, now: Arc<metadata::GroupMetadata>) -> Result<bool> {
        let this = Arc::clone(self);
        blocking(move || {
            let check = this.device_check.get();
            check.map_or(Ok(false), |check| check(&now))
        })
        .await
    }

    /// Keeps an LVM shell for the next change.
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
