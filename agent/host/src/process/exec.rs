//! The one place that starts programs.
//!
//! No shell, a program of a fixed list of directories, an empty environment, limits on what is read from it,
//! and a process group of its own, so that a signal meant for the agent does not end it.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the place that starts programs"
)]

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    process::{Child, Command},
};

use tracing::Span;
use zeroize::Zeroizing;

use crate::{Error, Kind, Result, blocking_at_once, trace};

const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Maximum size of the output; the rest is read, so that the program can end, and discarded.
const OUTPUT_LIMIT: usize = 16 << 20;
/// Number of lines of standard error that an error message includes.
const COMPLAINT_LINES: usize = 4;

static STARTED: AtomicU64 = AtomicU64::new(0);

/// Number of programs that this process has started.
pub fn started() -> u64 {
    STARTED.load(Ordering::Relaxed)
}

/// The path of the program, if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    DIRECTORIES
        .iter()
        .map(|directory| PathBuf::from(directory).join(program))
        .find(|path| {
            fs::metadata(path)
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
}

/// What happens to a program whose caller goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It is killed, with all its child processes.
    Reads,
    /// It runs to completion.
    Tasks,
}

/// What is said of a program's output, in logs and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// All of it, where that helps.
    Open,
    /// Nothing, not even of its standard error: it prints a secret.
    Hidden,
}

impl Telling {
    fn trace(self, stdout: &[u8], stderr: &[u8]) {
        if self == Self::Open {
            tracing::trace!(
                stdout = %stdout.escape_ascii(),
                stderr = %stderr.escape_ascii(),
                "output of program"
            );
        }
    }

    /// What a program that failed says of that.
    fn complaint(self, stderr: &[u8]) -> String {
        match self {
            Self::Open => complaint(stderr),
            Self::Hidden => "its output is not shown".to_owned(),
        }
    }
}

/// A program to be run.
#[derive(Debug)]
pub struct Program {
    /// A name that is searched, or the path of a program of the administrator.
    name: Cow<'static, str>,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    stdin: Option<Input>,
    effect: Effect,
    telling: Telling,
    worst_success: i32,
}

/// The standard input of a program; it may be a secret, so it is never printed.
struct Input(Zeroizing<Vec<u8>>);

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The output of a program that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit status.
    pub status: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Program {
    /// A program that changes nothing: it is killed when its caller goes away.
    pub fn reading(name: &'static str) -> Self {
        Self::new(name, Effect::Reads)
    }

    /// A program that changes something: it runs to completion even if its caller goes away.
    pub fn changing(name: &'static str) -> Self {
        Self::new(name, Effect::Tasks)
    }

    /// A program of the administrator, by its absolute path, that prints a secret: neither its output nor its arguments
    /// are logged. It is killed when its caller goes away.
    pub fn secretive(path: &Path) -> Self {
        Self {
            telling: Telling::Hidden,
            ..Self::new(path.to_string_lossy().into_owned(), Effect::Reads)
        }
    }

    fn new(name: impl Into<Cow<'static, str>>, effect: Effect) -> Self {
        Self {
            name: name.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            stdin: None,
            effect,
            telling: Telling::Open,
            worst_success: 0,
        }
    }

    /// Sets a variable of its environment, which is otherwise nearly empty. No secret: others can read it.
    #[must_use]
    pub fn environment(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Appends an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter();
        self.arguments
            .extend(arguments.map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets the standard input; the only way to pass a secret.
    #[must_use]
    pub fn stdin(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(Input(Zeroizing::new(input.into())));
        self
    }

    /// Treats all exit statuses up to `status` as success.
    #[must_use]
    pub fn success_up_to(mut self, status: i32) -> Self {
        self.worst_success = status;
        self
    }

    /// Runs the program to completion.
    ///
    /// # Errors
    /// `Precondition` when it is not installed, `Command` when it fails, with the first lines of its standard error.
    pub async fn run(self) -> Result<Output> {
        let span = trace::program(&self.line());
        match self.effect {
            Effect::Reads => self.run_here(span).await,
            // A separate task continues when the one that waits for it is dropped.
            Effect::Tasks => tokio::spawn(self.run_here(span))
                .await
                .map_err(|error| Error::new(Kind::Bug, "a task ended early").because(error))?,
        }
    }

    async fn run_here(mut self, span: Span) -> Result<Output> {
        let line = self.line();
        let started = Instant::now();
        let input = self.stdin.take();
        let failed = |error| Error::io(format!("could not start `{line}`"), error);
        let pipes = || match self.effect {
            Effect::Reads => plain_pipe(),
            Effect::Tasks => own_pipe(),
        };
        let (stdout, printed) = pipes().map_err(failed)?;
        let (stderr, complained) = pipes().map_err(failed)?;
        let stdin = if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let (name, effect, shown) = (self.name.clone(), self.effect, line.clone());
        let arguments = std::mem::take(&mut self.arguments);
        let environment = std::mem::take(&mut self.environment);
        // The program is read from its disk before this returns.
        let start = blocking_at_once(move || {
            let mut command = command(&name)?;
            command
                .args(&arguments)
                .envs(environment)
                .stdin(stdin)
                .stdout(printed)
                .stderr(complained);
            let child = spawn(command)
                .map_err(|error| Error::io(format!("could not start `{shown}`"), error))?;
            // Dropped if the caller goes away meanwhile.
            let group = Group::of(&child, effect);
            Ok((child, group))
        });
        let (mut child, mut group) = start.await?;
        let write = write_all(child.stdin.take(), input);
        let stdout = read_limited(stdout);
        let stderr = read_limited(stderr);
        let ((), stdout, stderr) = tokio::join!(write, stdout, stderr);
        let status = child
            .wait()
            .await
            .map_err(|error| Error::io(format!("could not wait for `{line}`"), error))?;
        group.let_go();
        drop(span);
        tracing::debug!(
            command = line,
            elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            status = status.code(),
            "program ended"
        );
        self.telling.trace(&stdout.bytes, &stderr.bytes);
        let is_success = status.code().is_some_and(|code| code <= self.worst_success);
        if !is_success {
            let complaint = self.telling.complaint(&stderr.bytes);
            return Err(Error::new(
                Kind::Command,
                format!("`{}` failed ({status}): {complaint}", shortened(&line)),
            ));
        }
        if stdout.is_cut && self.effect == Effect::Reads {
            return Err(Error::new(
                Kind::Command,
                format!("`{line}` printed more than {OUTPUT_LIMIT} bytes"),
            ));
        }
        Ok(Output {
            status: status.code().unwrap_or_default(),
            stdout: stdout.bytes,
            stderr: stderr.bytes,
        })
    }

    /// The command line, for messages.
    fn line(&self) -> String {
        let mut line = self.name.clone().into_owned();
        if self.telling == Telling::Hidden {
            return line;
        }
        for argument in &self.arguments {
            line.push(' ');
            line.push_str(&argument.to_string_lossy());
        }
        line
    }
}

/// The command for a program, prepared in the same way for all.
///
/// # Errors
/// [`Kind::Precondition`] when it is not installed.
pub(crate) fn command(name: &str) -> Result<Command> {
    let own = Path::new(name).is_absolute().then(|| PathBuf::from(name));
    let path = own.or_else(|| find(name)).ok_or_else(|| {
        Error::new(
            Kind::Precondition,
            format!("program {name} is missing; install it in one of {PATH}"),
        )
    })?;
    let mut command = Command::new(path);
    command
        .env_clear()
        .envs([
            ("LC_ALL", "C"),
            ("PATH", PATH),
            // LVM reports every descriptor that it did not open as leaked, even its own output.
            ("LVM_SUPPRESS_FD_WARNINGS", "1"),
        ])
        .current_dir("/")
        .process_group(0);
    Ok(command)
}

/// Starts a program. Consumes the command, because it keeps the output pipes open: they must close when the program
/// ends.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    let child = command.spawn()?;
    STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(child)
}

/// A pipe for a program's output. It breaks when its reader goes away, and the program with it.
fn plain_pipe() -> io::Result<(pipe::Receiver, fs::File)> {
    let (reader, writer) = io::pipe()?;
    let writer = fs::File::from(OwnedFd::from(writer));
    Ok((pipe::Receiver::from_owned_fd(reader.into())?, writer))
}

/// A pipe for a program's output, which the program itself also has open for reading: if this process were killed, a
/// pipe without a reader would kill the program at its next write, in the middle of a change.
pub(crate) fn own_pipe() -> io::Result<(pipe::Receiver, fs::File)> {
    let (reader, writer) = io::pipe()?;
    let both = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
    Ok((pipe::Receiver::from_owned_fd(reader.into())?, both))
}

/// The command line, shortened to leave room for the error message; the log has all of it at level debug.
fn shortened(line: &str) -> String {
    const CHARACTERS: usize = 120;
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

/// Kills the process group of a reading program that still runs when its caller goes away.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child, effect: Effect) -> Self {
        let pid = match effect {
            Effect::Reads => child.id().and_then(|pid| i32::try_from(pid).ok()),
            Effect::Tasks => None,
        };
        Self(pid.map(Pid::from_raw))
    }

    /// The program has ended, and its process id may be reused.
    fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // It may have ended by itself meanwhile.
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }
}

#[derive(Default)]
struct Captured {
    bytes: Vec<u8>,
    is_cut: bool,
}

async fn read_limited(mut from: impl AsyncRead + Unpin) -> Captured {
    let mut captured = Captured::default();
    let mut buffer = vec![0; 8 << 10];
    // An error ends the output like its end does: the exit status is what matters.
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
    {
        let room = OUTPUT_LIMIT - captured.bytes.len();
        captured.is_cut |= read > room;
        let kept = buffer.get(..read.min(room)).unwrap_or_default();
        captured.bytes.extend_from_slice(kept);
    }
    captured
}

async fn write_all(to: Option<tokio::process::ChildStdin>, input: Option<Input>) {
    if let (Some(mut to), Some(Input(bytes))) = (to, input) {
        // If a program does not read its input, its exit status shows why.
        let _ = to.write_all(&bytes).await;
    }
}

fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    // Any number of warnings may precede the reason for the failure.
    let (warnings, failures): (Vec<_>, Vec<_>) =
        lines.partition(|line| line.starts_with("WARNING:"));
    let lines = failures.into_iter().chain(warnings);
    let first = lines.take(COMPLAINT_LINES).collect::<Vec<_>>();
    if first.is_empty() {
        return "it printed no error message".to_owned();
    }
    first.join("; ").chars().take(1_000).collect()
}
