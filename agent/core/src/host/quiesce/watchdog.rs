//! A process that lets writers go on when the agent does not: nobody else resumes what a process has suspended that is
//! gone, and who waits for it cannot even be killed.
//!
//! It is started before anybody is held, has all that it needs in memory by then, and looks at a socket: what comes there
//! is `go` and `done`, or its end when the agent has died. It keeps the agent's locks until it has let everybody go on.

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
    GRACE,
    target::{QuiesceTarget, WireTarget},
};
use crate::{
    Error, Kind, Result,
    host::{device_mapper::DeviceMapper, system},
};

/// So many files go in one message (the kernel takes 253).
const FILES: usize = 200;
/// A plan is far smaller.
const LARGEST_PLAN: usize = 4 << 20;
/// So long it may take to get ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// The stack of a thread that lets one image go: it does one system call.
const STACK: usize = 64 << 10;

/// What the agent says, and what it is answered.
const GO: u8 = b'g';
const DONE: u8 = b'd';
const READY: u8 = b'r';
const IN_TIME: u8 = b'k';
const LATE: u8 = b'l';

/// What the process must know.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    /// What is held of each image.
    members: Vec<Vec<WireTarget>>,
    /// So many files come beside it, the locks last.
    files: usize,
}

/// The process, as the agent sees it. When this value is dropped it lets everybody go on, and ends.
#[derive(Debug)]
pub struct ThawWatchdog {
    stream: Option<UnixStream>,
    child: Child,
}

impl ThawWatchdog {
    /// Starts it: `program guard`, with a socket for its input.
    ///
    /// # Errors
    /// `Io` when it cannot be started.
    #[expect(
        clippy::disallowed_methods,
        reason = "it must outlive this process, and is spoken to while it runs"
    )]
    pub fn start(program: &Path) -> Result<Self> {
        let failed = |error| Error::io("could not start the thaw watchdog", error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        for limit in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
            limit(&ours, Some(PATIENCE)).map_err(failed)?;
        }
        let child = Command::new(program)
            .arg("guard")
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

    /// Tells it what is about to be held. It lets go of that from now on should this process die.
    ///
    /// # Errors
    /// `Busy` when it is gone: nobody may be held without it.
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

    /// Tells it the longest that anybody may wait. The time runs when this returns, and anew when it is told again.
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

    /// Ends it, after everybody goes on; says whether it had to see to that itself, because the time was over.
    ///
    /// # Errors
    /// `Busy` when it is gone, so that nobody knows whether it had done something.
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

/// What the process has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchdogReport {
    /// The agent has let everybody go on.
    Nothing,
    /// The agent has died while so many images were held; they are not any more.
    Death(usize),
}

/// The threads that let the images go on, each with its own, as often as they are told to.
struct Releasers {
    state: Arc<(Mutex<Rounds>, Condvar)>,
    count: usize,
}

/// So often were they told, and so many have ended all of that.
#[derive(Default)]
struct Rounds {
    told: usize,
    ended: usize,
}

impl Releasers {
    /// Makes the threads: later there may be no memory for them.
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
                    let guard = rounds.lock().unwrap_or_else(PoisonError::into_inner);
                    drop(changed.wait_while(guard, is_early));
                    for held in member.iter().rev() {
                        // A device that is gone waits for nobody.
                        let _ = held.release((*mapper).as_ref());
                    }
                    let mut rounds = rounds.lock().unwrap_or_else(PoisonError::into_inner);
                    rounds.ended += 1;
                    changed.notify_all();
                }
            })?;
        }
        Ok(Self { state, count })
    }

    /// Has all images go on. One whose device does not answer holds up no other.
    fn tell(&self) {
        let (rounds, changed) = &*self.state;
        let mut rounds = rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.told += 1;
        changed.notify_all();
    }

    /// Waits a while until they do: whether they do.
    fn wait_for(&self, patience: Duration) -> bool {
        let (rounds, changed) = &*self.state;
        let rounds = rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = |rounds: &mut Rounds| rounds.ended < rounds.told * self.count;
        let waited = changed.wait_timeout_while(rounds, patience, runs);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits until they do.
    fn wait(&self) {
        let (rounds, changed) = &*self.state;
        let rounds = rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = |rounds: &mut Rounds| rounds.ended < rounds.told * self.count;
        drop(changed.wait_while(rounds, runs));
    }
}

/// The process itself: watches over what is held until `input`, the socket to the agent, says that it is over.
///
/// # Errors
/// When it cannot get ready; then nobody has been held.
pub fn serve(input: OwnedFd) -> io::Result<WatchdogReport> {
    let mut stream = UnixStream::from(input);
    // What ends the agent with all that it has started must leave this one.
    let _ = setsid();
    for number in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGPIPE,
    ] {
        system::ignore(number);
    }
    // A container may not allow it.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let (plan, mut files) = match receive_plan(&mut stream) {
        Ok(received) => received,
        // The agent found that it needs none.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(WatchdogReport::Nothing);
        }
        Err(error) => return Err(error),
    };
    let mut members = Vec::new();
    for told in plan.members {
        let held = told
            .into_iter()
            .map(|told| QuiesceTarget::of(told, &mut files));
        let held: Option<Vec<QuiesceTarget>> = held.collect();
        members.push(held.ok_or(io::ErrorKind::InvalidData)?);
    }
    let has_device = members.iter().flatten().any(QuiesceTarget::is_device);
    let mapper = has_device.then(DeviceMapper::open).transpose();
    let mapper = mapper.map_err(|error| io::Error::other(error.chain()))?;
    let count = members.iter().filter(|held| !held.is_empty()).count();
    let releasers = Releasers::start(members, mapper)?;
    // Its own program, and what it is called through, may be on a device that is held. A container may not allow it; the
    // agent lets go of what it holds, too.
    let _ = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE);
    stream.write_all(&[READY])?;
    let mut word = [0; 1 + size_of::<u64>()];
    let asked = stream.read_exact(&mut word).map(|()| word);
    let Ok([GO, limit @ ..]) = asked else {
        // It can have died while it settled something.
        releasers.tell();
        releasers.wait();
        return Ok(WatchdogReport::Nothing);
    };
    let mut limit = Duration::from_millis(u64::from_ne_bytes(limit));
    let mut deadline = Instant::now() + limit;
    stream.write_all(&[GO])?;
    let mut is_late = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match wait_for(&stream, left)? {
            Said::Go(again) => {
                limit = again;
                deadline = Instant::now() + limit;
                stream.write_all(&[GO])?;
            }
            Said::Nothing => {
                is_late = true;
                // Again and again: what was being held just then may be held only now.
                deadline = Instant::now() + limit;
                releasers.tell();
            }
            Said::Done => {
                let answer = if is_late { LATE } else { IN_TIME };
                stream.write_all(&[answer])?;
                return Ok(WatchdogReport::Nothing);
            }
            Said::Goodbye => {
                releasers.tell();
                if !releasers.wait_for(GRACE) {
                    // A device that flushes into a full pool waits for somebody who wants a lock.
                    unlock(&mut files);
                }
                releasers.wait();
                // The locks, which are among the files, go with the process.
                drop(files);
                return Ok(WatchdogReport::Death(count));
            }
        }
    }
}

/// Gives up the locks, which are the files that are not of anything held. The agent that died may have them open still, in
/// a thread that the kernel does not let go.
fn unlock(files: &mut [Option<File>]) {
    for file in files.iter_mut().filter_map(Option::take) {
        // It is locked through the same open file already; to drop this unlocks it for all who have that.
        drop(Flock::lock(file, FlockArg::LockExclusiveNonblock));
    }
}

enum Said {
    Nothing,
    Go(Duration),
    Done,
    Goodbye,
}

/// Waits for a word of the agent's, or until the time is over.
fn wait_for(mut stream: &UnixStream, left: Duration) -> io::Result<Said> {
    // Rounded up: not to wake before it is over.
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
        // Its end, or that of a process that was killed with words unread.
        _ => Ok(Said::Goodbye),
    }
}
