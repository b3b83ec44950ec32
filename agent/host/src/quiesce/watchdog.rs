//! The thaw watchdog: a process that resumes writers if the agent dies. Nothing else resumes what a dead process has
//! suspended, and processes that wait for it cannot even be killed.
//!
//! It is started before anything is quiesced, has everything that it needs in memory by then, and waits on a socket
//! for `go`, `done`, or the end of the connection when the agent has died. It keeps the agent's locks until it has
//! resumed everything.

use std::{
    fs::{self, File},
    io::{self, IoSlice, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        mman::{MlockAllFlags, mlockall},
        signal::Signal,
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    unistd::setsid,
};
use serde::{Deserialize, Serialize};

use super::{
    plan::GRACE,
    target::{QuiesceTarget, WireTarget},
};
use crate::{Error, Kind, Result, device_mapper::DeviceMapper, lock, system, trace};

/// Maximum number of files in one message (the kernel allows 253).
const FILES: usize = 200;
/// Maximum size of a plan, in bytes; real ones are far smaller.
const LARGEST_PLAN: usize = 4 << 20;
/// Timeout for getting ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// Stack size of a thread that resumes one image: it makes one system call.
const STACK: usize = 64 << 10;

/// The messages of the agent, and the replies.
const GO: u8 = b'g';
const DONE: u8 = b'd';
const READY: u8 = b'r';
const IN_TIME: u8 = b'k';
const LATE: u8 = b'l';

/// The plan that the watchdog gets.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    /// The quiesce targets of each image.
    members: Vec<Vec<WireTarget>>,
    /// Number of files sent with the plan, the locks last.
    files: usize,
}

/// The watchdog process, as seen by the agent. When this value is dropped, the watchdog resumes everything and ends.
#[derive(Debug)]
pub struct ThawWatchdog {
    stream: Option<UnixStream>,
    child: Child,
}

impl ThawWatchdog {
    /// Starts it: `program thaw-watchdog`, with a socket as its standard input.
    ///
    /// # Errors
    /// `Io` when it cannot be started.
    #[expect(
        clippy::disallowed_methods,
        reason = "it must outlive this process, and is spoken to while it runs"
    )]
    pub fn start(program: &Path) -> Result<Self> {
        let _span = trace::program("drumlin thaw-watchdog");
        let failed = |error| Error::io("could not start the thaw watchdog", error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        for limit in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            limit(&ours, Some(PATIENCE)).map_err(failed)?;
        }
        let child = Command::new(program)
            .arg("thaw-watchdog")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            stream: Some(ours),
            child,
        })
    }

    fn stream(&mut self) -> Result<&mut UnixStream> {
        self.stream
            .as_mut()
            .ok_or_else(|| Error::new(Kind::Bug, "the thaw watchdog has already ended"))
    }

    /// Sends it the targets that will be quiesced. From now on it resumes them if this process dies.
    ///
    /// # Errors
    /// `Busy` when it is gone: nothing may be quiesced without it.
    pub(super) fn arm(
        &mut self,
        members: &[Vec<&QuiesceTarget>],
        locks: &[Flock<File>],
    ) -> Result<()> {
        let mut files = Vec::new();
        let members = members
            .iter()
            .map(|held| held.iter().map(|held| held.tell(&mut files)).collect())
            .collect();
        files.extend(locks.iter().map(|lock| lock.as_fd()));
        let plan = Plan {
            members,
            files: files.len(),
        };
        let stream = self.stream()?;
        let armed = send_plan(stream, &plan, &files).and_then(|()| expect(stream, READY));
        armed.map_err(no_answer)
    }

    /// Sets the maximum duration. It counts from when this returns, and restarts with each call.
    ///
    /// # Errors
    /// `Busy` when it is gone.
    pub(super) fn watch(&mut self, limit: Duration) -> Result<()> {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let mut word = vec![GO];
        word.extend(limit.to_ne_bytes());
        let stream = self.stream()?;
        let watched = stream.write_all(&word).and_then(|()| expect(stream, GO));
        watched.map_err(no_answer)
    }

    /// Ends it, after everything is resumed; returns whether the watchdog had to resume it because of a timeout.
    ///
    /// # Errors
    /// `Busy` when it is gone, so that it is unknown whether it had resumed anything.
    pub(super) fn stand_down(mut self) -> Result<bool> {
        let stream = self.stream()?;
        let mut answer = [0];
        let told = stream.write_all(&[DONE]);
        let told = told.and_then(|()| stream.read_exact(&mut answer));
        told.map_err(|error| {
            Error::new(
                Kind::Busy,
                "the thaw watchdog died during the freeze barrier; retry",
            )
            .because(error)
        })?;
        Ok(answer != [IN_TIME])
    }
}

fn no_answer(error: io::Error) -> Error {
    Error::new(Kind::Busy, "the thaw watchdog does not answer; retry").because(error)
}

impl Drop for ThawWatchdog {
    fn drop(&mut self) {
        self.stream = None;
        let _ = self.child.wait();
    }
}

fn expect(stream: &mut UnixStream, wanted: u8) -> io::Result<()> {
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer == [wanted] {
        return Ok(());
    }
    Err(io::Error::other("unexpected reply from the peer process"))
}

fn send_plan(stream: &mut UnixStream, plan: &Plan, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(plan)?;
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    stream.write_all(&length.to_ne_bytes())?;
    stream.write_all(&text)?;
    for some in files.chunks(FILES) {
        let numbers: Vec<i32> = some.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let body = [IoSlice::new(&[0])];
        sendmsg::<()>(stream.as_raw_fd(), &body, &rights, MsgFlags::empty(), None)?;
    }
    Ok(())
}

fn receive_plan(stream: &mut UnixStream) -> io::Result<(Plan, Vec<Option<File>>)> {
    let mut length = [0; size_of::<u64>()];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_ne_bytes(length)).unwrap_or(usize::MAX);
    if length > LARGEST_PLAN {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    let plan: Plan = serde_json::from_slice(&text)?;
    let mut files = Vec::new();
    while files.len() < plan.files {
        let some = system::receive_files(&*stream, FILES)?;
        files.extend(
            some.ok_or(io::ErrorKind::UnexpectedEof)?
                .into_iter()
                .map(Some),
        );
    }
    Ok((plan, files))
}

/// The report of the watchdog process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchdogReport {
    /// The agent has resumed everything.
    Nothing,
    /// The agent died while this number of images were quiesced; they are resumed now.
    Death(usize),
}

/// The threads that resume the images, one for each, in every round that is started.
struct Releasers {
    state: Arc<(Mutex<Rounds>, Condvar)>,
    count: usize,
}

/// The progress of the releases.
#[derive(Default)]
struct Rounds {
    /// Number of rounds that were started.
    told: usize,
    /// Number of rounds that were completed, summed over all threads.
    ended: usize,
}

impl Releasers {
    /// Starts the threads in advance: later there may be no memory for them.
    fn start(members: Vec<Vec<QuiesceTarget>>, mapper: Option<DeviceMapper>) -> io::Result<Self> {
        let state = Arc::<(Mutex<Rounds>, Condvar)>::default();
        let mapper = Arc::new(mapper);
        let count = members.len();
        for member in members {
            let (state, mapper) = (Arc::clone(&state), Arc::clone(&mapper));
            thread::Builder::new().stack_size(STACK).spawn(move || {
                let (rounds, changed) = &*state;
                for round in 1.. {
                    let is_early = |rounds: &mut Rounds| rounds.told < round;
                    let guard = lock(rounds);
                    drop(changed.wait_while(guard, is_early));
                    for held in member.iter().rev() {
                        // A removed device has no waiting writers.
                        let _ = held.release((*mapper).as_ref());
                    }
                    let mut rounds = lock(rounds);
                    rounds.ended += 1;
                    changed.notify_all();
                }
            })?;
        }
        Ok(Self { state, count })
    }

    /// Resumes all images. An image whose device does not answer does not block others.
    fn tell(&self) {
        let (rounds, changed) = &*self.state;
        let mut rounds = lock(rounds);
        rounds.told += 1;
        changed.notify_all();
    }

    /// Waits for that until the timeout; returns whether all are done.
    fn wait_for(&self, patience: Duration) -> bool {
        let (rounds, changed) = &*self.state;
        let rounds = lock(rounds);
        let runs = |rounds: &mut Rounds| rounds.ended < rounds.told * self.count;
        let waited = changed.wait_timeout_while(rounds, patience, runs);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits for that without a timeout.
    fn wait(&self) {
        let (rounds, changed) = &*self.state;
        let rounds = lock(rounds);
        let runs = |rounds: &mut Rounds| rounds.ended < rounds.told * self.count;
        drop(changed.wait_while(rounds, runs));
    }
}

/// The main function of the watchdog process: watches the targets until `input`, the socket to the agent, ends the
/// watch.
///
/// # Errors
/// When it cannot get ready; then nothing has been quiesced.
pub fn serve(input: OwnedFd) -> io::Result<WatchdogReport> {
    let mut stream = UnixStream::from(input);
    survive();
    let (plan, mut files) = match receive_plan(&mut stream) {
        Ok(received) => received,
        // The agent found that it does not need the watchdog.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(WatchdogReport::Nothing);
        }
        Err(error) => return Err(error),
    };
    let members = targets(plan, &mut files)?;
    let has_device = members.iter().flatten().any(QuiesceTarget::is_device);
    let mapper = has_device.then(DeviceMapper::open).transpose();
    let mapper = mapper.map_err(|error| io::Error::other(error.chain()))?;
    let count = members.iter().filter(|held| !held.is_empty()).count();
    let releasers = Releasers::start(members, mapper)?;
    // Its own executable may be on a quiesced device. A container may not permit it; the agent resumes its targets,
    // too.
    let _ = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE);
    stream.write_all(&[READY])?;
    let mut word = [0; 1 + size_of::<u64>()];
    let asked = stream.read_exact(&mut word).map(|()| word);
    let Ok([GO, limit @ ..]) = asked else {
        // It can have died while it settled a target.
        releasers.tell();
        releasers.wait();
        return Ok(WatchdogReport::Nothing);
    };
    let limit = Duration::from_millis(u64::from_ne_bytes(limit));
    if is_ended_by_agent(&mut stream, limit, &releasers)? {
        return Ok(WatchdogReport::Nothing);
    }
    releasers.tell();
    if !releasers.wait_for(GRACE) {
        // A device that flushes into a full pool waits for an administrator, who needs the lock.
        unlock(&mut files);
    }
    releasers.wait();
    // The locks, which are among the files, are released with the process.
    drop(files);
    Ok(WatchdogReport::Death(count))
}

/// Keeps away what would end this process before the agent does.
fn survive() {
    // Signals to the agent's process group or session must not reach this process.
    let _ = setsid();
    for number in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGPIPE,
    ] {
        system::ignore(number);
    }
    // A container may not permit it.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
}

/// The targets of a plan; takes their files, and leaves the locks.
fn targets(plan: Plan, files: &mut [Option<File>]) -> io::Result<Vec<Vec<QuiesceTarget>>> {
    let mut members = Vec::new();
    for told in plan.members {
        let held = told.into_iter().map(|told| QuiesceTarget::of(told, files));
        let held: Option<Vec<QuiesceTarget>> = held.collect();
        members.push(held.ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok(members)
}

/// Resumes everything whenever the limit is exceeded, until the agent ends the watch (true) or is dead (false).
fn is_ended_by_agent(
    stream: &mut UnixStream,
    mut limit: Duration,
    releasers: &Releasers,
) -> io::Result<bool> {
    let mut deadline = Instant::now() + limit;
    stream.write_all(&[GO])?;
    let mut is_late = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match wait_for(stream, left)? {
            Said::Go(again) => {
                limit = again;
                deadline = Instant::now() + limit;
                stream.write_all(&[GO])?;
            }
            Said::Nothing => {
                is_late = true;
                // Repeatedly: a target that was being quiesced then may be quiesced only now.
                deadline = Instant::now() + limit;
                releasers.tell();
            }
            Said::Done => {
                let answer = if is_late { LATE } else { IN_TIME };
                stream.write_all(&[answer])?;
                return Ok(true);
            }
            Said::Goodbye => return Ok(false),
        }
    }
}

/// Releases the locks, which are the files that belong to no target. The dead agent may still have them open, in a
/// thread that is blocked in the kernel.
fn unlock(files: &mut [Option<File>]) {
    for file in files.iter_mut().filter_map(Option::take) {
        // The lock is that of the same open file; dropping it unlocks the file for every process that shares it.
        drop(Flock::lock(file, FlockArg::LockExclusiveNonblock));
    }
}

enum Said {
    Nothing,
    Go(Duration),
    Done,
    Goodbye,
}

/// Waits for a message of the agent, or for the timeout.
fn wait_for(mut stream: &UnixStream, left: Duration) -> io::Result<Said> {
    // Rounded up, so as not to wake before the timeout.
    let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
    let mut looked_at = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    match poll(&mut looked_at, timeout) {
        Ok(0) => return Ok(Said::Nothing),
        Err(Errno::EINTR) => return wait_for(stream, left),
        Err(error) => return Err(error.into()),
        Ok(_) => {}
    }
    let mut word = [0];
    match stream.read(&mut word) {
        Ok(1) if word == [DONE] => Ok(Said::Done),
        Ok(1) if word == [GO] => {
            let mut limit = [0; size_of::<u64>()];
            let read = stream.read_exact(&mut limit);
            let limit = Duration::from_millis(u64::from_ne_bytes(limit));
            Ok(read.map_or(Said::Goodbye, |()| Said::Go(limit)))
        }
        // The end of the connection, or a process that was killed with unread messages.
        _ => Ok(Said::Goodbye),
    }
}
