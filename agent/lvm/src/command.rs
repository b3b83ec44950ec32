//! LVM commands: building, running, and classifying their errors.

use std::fmt;

use tracing::Instrument;

use crate::{
    Error, Kind, Result, blocking,
    dmeventd::Dmeventd,
    duplicates,
    host::{
        exec::{Output, Program},
        session::Session,
        trace, udev,
    },
    metadata::GroupMetadata,
    system_dir,
    unresponsive_disks::{self, DiskFilter},
};

/// LVM's own metadata backups are disabled: each change would write two more files.
const NO_BACKUP: &str = "backup{backup=0 archive=0}";
/// For commands that change the metadata but not the kernel's devices.
const ON_DISK: &str = "global{activation=0}";
/// For commands that free extents which must not be readable any more.
const FORGETTING: &str = "devices{issue_discards=1}";
/// Without udevd, LVM would wait for replies that never come; it creates the device nodes itself then.
const NO_UDEV: &str = "activation/udev_sync=0 activation/udev_rules=0";
/// Without dmeventd, as in the agent's image, each activation would report an error.
const NO_DMEVENTD: &str = "activation/monitoring=0";

/// Disks that the host's devices file excludes are excluded here, too.
const DEVICES_FILE: &str = "devices/use_devicesfile=1";

/// The settings that must not depend on the host's `lvm.conf`. LVM accepts the option only once.
fn settings(more: &[&str]) -> String {
    let udev = (!udev::is_running()).then_some(NO_UDEV);
    let dmeventd = (Dmeventd::now() == Dmeventd::Absent).then_some(NO_DMEVENTD);
    let devices = system_dir::needs_devices_file().then_some(DEVICES_FILE);
    let all = [NO_BACKUP].into_iter().chain(udev).chain(dmeventd);
    let all = all.chain(devices);
    let all: Vec<&str> = all.chain(more.iter().copied()).collect();
    all.join(" ")
}

/// A scan of all disks would wait for suspended ones. LVM's hints are useless for finding changes, and what only this
/// process saw must not become a hint for other processes.
const LOOKING: &str = "devices{ignore_suspended_devices=1 hints=\"none\"}";

type IsDone = Box<dyn Fn(&GroupMetadata) -> bool + Send + Sync>;
/// A precondition on the metadata; refuses the command when it is not met.
pub type Check = Box<dyn Fn(&GroupMetadata) -> Result<()> + Send + Sync>;
type Placement = Box<dyn Fn(&GroupMetadata) -> Result<Vec<String>> + Send + Sync>;

/// An LVM command that changes something.
pub struct Command {
    name: String,
    settings: Vec<&'static str>,
    hiding: Option<DiskFilter>,
    words: Vec<String>,
    is_done: Option<IsDone>,
    check: Option<Check>,
    placement: Option<Placement>,
    places: Vec<String>,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl Command {
    /// The command `name`, such as `lvcreate`.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: Vec::new(),
            hiding: None,
            words: Vec::new(),
            is_done: None,
            check: None,
            placement: None,
            places: Vec::new(),
        }
    }

    /// A command that changes the metadata and leaves the kernel's devices unchanged.
    pub fn on_disk(name: &str) -> Self {
        let mut command = Self::new(name);
        command.settings.push(ON_DISK);
        command
    }

    /// Makes the command discard the extents that it frees.
    #[must_use]
    pub fn discarding(mut self) -> Self {
        self.settings.push(FORGETTING);
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn words<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// Appends tags to be set.
    #[must_use]
    pub fn add_tags(self, tags: impl IntoIterator<Item = String>) -> Self {
        let words = tags
            .into_iter()
            .flat_map(|tag| ["--addtag".to_owned(), tag]);
        self.words(words)
    }

    /// Sets the test by which the metadata, or the devices, show that the command succeeded. Without it, the command
    /// may run twice.
    #[must_use]
    pub fn done_when(
        mut self,
        is_done: impl Fn(&GroupMetadata) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_done = Some(Box::new(is_done));
        self
    }

    /// Returns whether the metadata shows that the command succeeded; none where it cannot show that.
    pub fn is_done(&self, group: &GroupMetadata) -> Option<bool> {
        self.is_done.as_ref().map(|is_done| is_done(group))
    }

    /// Adds a precondition that is checked right before the command runs: another process may have changed the
    /// metadata since the command was built.
    #[must_use]
    pub fn allowed_by(
        mut self,
        check: impl Fn(&GroupMetadata) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// Sets the extents that the command allocates, chosen right before it runs and appended as its last arguments:
    /// earlier commands may allocate others.
    #[must_use]
    pub fn placed_by(
        mut self,
        placement: impl Fn(&GroupMetadata) -> Result<Vec<String>> + Send + Sync + 'static,
    ) -> Self {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Returns true if the command depends on the metadata at the time it runs.
    pub fn is_conditional(&self) -> bool {
        self.check.is_some() || self.placement.is_some()
    }

    /// Chooses the extents and checks the preconditions against the current metadata, unless the command was already
    /// carried out.
    pub fn prepare(&mut self, group: &GroupMetadata) -> Result<()> {
        if self.is_done(group) == Some(true) {
            return Ok(());
        }
        if let Some(check) = &self.check {
            check(group)?;
        }
        if let Some(placement) = &self.placement {
            self.places = placement(group)?;
        }
        Ok(())
    }

    /// Returns true if the LVM shell accepts the command: it limits commands to 64 words, and a very long line would
    /// fill the pipe before it is read. The shell would also keep using `--devices` for later commands.
    pub fn is_for_session(&self) -> bool {
        /// Arguments that are added to every command.
        const COMMON: usize = 5;
        const LONGEST: usize = 16 << 10;
        let words = || self.words.iter().chain(&self.places);
        let length: usize = words().map(String::len).sum();
        let is_short = words().count() + COMMON < 60 && length < LONGEST;
        is_short && !matches!(self.hiding, Some(DiskFilter::Only(_)))
    }

    /// Makes the command skip unresponsive disks ([`unresponsive_disks::hiding`]).
    pub(crate) fn hiding(&mut self, hiding: Option<DiskFilter>) {
        self.hiding = hiding;
    }

    /// Runs the command in a separate process.
    ///
    /// # Errors
    /// Classified by LVM's error message.
    pub async fn run(&self) -> Result<()> {
        let program = Program::changing("lvm").args(self.all());
        let program = program.run().instrument(trace::command(&self.name));
        program.await.map(drop).map_err(classify)
    }

    /// All arguments.
    fn all(&self) -> Vec<String> {
        let (setting, only) = match &self.hiding {
            Some(DiskFilter::Setting(setting)) => (Some(setting.as_str()), None),
            Some(DiskFilter::Only(disks)) => (None, Some(["--devices".to_owned(), disks.clone()])),
            None => (None, None),
        };
        let more: Vec<&str> = self.settings.iter().copied().chain(setting).collect();
        let (name, settings) = (self.name.clone(), settings(&more));
        let first = [name, "-q".to_owned(), "-y".to_owned()];
        let first = first.into_iter().chain(["--config".to_owned(), settings]);
        let first = first.chain(only.into_iter().flatten());
        let words = self.words.iter().chain(&self.places);
        first.chain(words.cloned()).collect()
    }

    /// The line for the LVM shell; no argument of ours contains a quote.
    fn line(&self) -> String {
        let words = self.all();
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        quoted.join(" ")
    }
}

/// Starts an LVM shell: an `lvm` process that reads commands from its input.
pub async fn start() -> Result<Session> {
    /// Each command needs as much memory as the one before. If the shell returned it in between, page faults would
    /// dominate the cost of a command. This is a setting of glibc; other C libraries ignore it.
    const KEEP_MEMORY: (&str, &str) = ("MALLOC_TRIM_THRESHOLD_", "268435456");
    const SETTINGS: &str = "LVM_SYSTEM_DIR";
    let directory = blocking(|| Ok(system_dir::directory())).await?;
    let directory = directory.map(|path| path.to_string_lossy().into_owned());
    let settings = directory.as_deref().map(|path| (SETTINGS, path));
    let environment: Vec<_> = [KEEP_MEMORY].into_iter().chain(settings).collect();
    Session::start("lvm", &environment, ("No such command '", "'")).await
}

/// Runs a command in an LVM shell.
///
/// # Errors
/// The outer error when the shell ended; the inner one is classified by LVM's error message.
pub async fn carry_out(session: &mut Session, command: &Command) -> Result<Result<()>> {
    let span = trace::command(&command.name);
    let said = session.carry_out(&command.line()).await?;
    drop(span);
    let complaints: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !is_noise(line))
        .collect();
    if complaints.is_empty() {
        return Ok(Ok(()));
    }
    let text = complaints
        .into_iter()
        .take(4)
        .collect::<Vec<_>>()
        .join("; ");
    let text = duplicates::named(&text, &said);
    let error = Error::new(
        Kind::Command,
        format!("`lvm {}` failed: {text}", command.name),
    );
    Ok(Err(classify(error)))
}

/// Returns true for output that does not mean failure: warnings, and disks of possibly other groups that cannot be
/// read or have shrunk.
fn is_noise(line: &str) -> bool {
    let others = [
        "WARNING:",
        "/dev/",
        "Error reading device /dev/",
        "Device read short ",
        "Device seek error ",
        // The host has both a devices file and filters.
        "Please remove the lvm.conf ",
    ];
    line.is_empty() || others.iter().any(|other| line.starts_with(other))
}

/// Runs an LVM reporting command with JSON output.
pub async fn report(words: &[&str]) -> Result<Output> {
    let (setting, only) = match unresponsive_disks::hiding(&[]).await {
        Some(DiskFilter::Setting(setting)) => (Some(setting), None),
        Some(DiskFilter::Only(disks)) => (None, Some(["--devices".to_owned(), disks])),
        None => (None, None),
    };
    let more: Vec<&str> = [LOOKING].into_iter().chain(setting.as_deref()).collect();
    let settings = settings(&more);
    let common = ["--config", &settings, "--reportformat", "json"];
    Program::reading("lvm")
        .args(words)
        .args(common)
        .args(only.into_iter().flatten())
        .run()
        .await
        .map_err(classify)
}

/// Runs the command that prints LVM's version.
pub async fn version() -> Result<Output> {
    let program = Program::reading("lvm").args(["version"]);
    program.run().await.map_err(classify)
}

/// How LVM identifies this host.
#[derive(Debug)]
pub struct SystemId {
    /// The system id of this host; empty when it has none.
    pub id: String,
    /// The source of the system id: `uname`, `machineid`, `lvmlocal`, `file` or `none`.
    pub source: String,
}

/// Runs the commands that print how LVM identifies this host.
pub async fn system_id() -> Result<SystemId> {
    let output = Program::reading("lvm").args(["systemid"]).run().await;
    let output = output.map_err(classify)?;
    // "  system ID: name" and "system_id_source=\"uname\"".
    let value = |text: &str| {
        let value = text.trim().split_once([':', '=']);
        value.map_or("", |(_, value)| value).trim().replace('"', "")
    };
    Ok(SystemId {
        id: value(&String::from_utf8_lossy(&output.stdout)),
        source: value(&setting("global/system_id_source").await?),
    })
}

/// An LVM setting of this host, or LVM's default where the host does not set it; a line `name=value`.
pub async fn setting(name: &str) -> Result<String> {
    let words = ["lvmconfig", "--type", "full", name];
    let output = Program::reading("lvm").args(words).run();
    let output = output.await.map_err(classify)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Classifies the failure of an LVM command by its error message (in the C locale).
fn classify(error: Error) -> Error {
    const KINDS: [(&str, Kind); 22] = [
        ("nexpected transaction id", Kind::HalfDone),
        ("already contain thin device", Kind::HalfDone),
        ("transaction_id is", Kind::HalfDone),
        ("nsufficient free space", Kind::NoSpace),
        ("exceeds maximum metadata size", Kind::NoSpace),
        ("is out of data space", Kind::NoSpace),
        ("reached threshold", Kind::NoSpace),
        ("nsufficient suitable", Kind::NoSpace),
        ("contains a filesystem in use", Kind::InUse),
        ("in use", Kind::InUse),
        ("is used by another device", Kind::HalfDone),
        ("already exists in volume group", Kind::Conflict),
        ("Failed to find logical volume", Kind::NotFound),
        ("not found", Kind::NotFound),
        ("flock failed: Resource temporarily", Kind::Busy),
        ("Can't get lock", Kind::Busy),
        // It is being moved to another disk.
        ("locked logical volume", Kind::Busy),
        ("PVs are missing", Kind::Precondition),
        ("devices are missing", Kind::Precondition),
        ("Multiple VGs found with the same name", Kind::Precondition),
        ("duplicate PV devices", Kind::Precondition),
        ("on duplicate devices", Kind::Precondition),
    ];
    if error.kind() != Kind::Command {
        return error;
    }
    let text = error.to_string();
    let known = KINDS.iter().find(|(words, _)| text.contains(words));
    match known {
        Some((_, kind)) => Error::new(*kind, text),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_are_in_one_option() {
        let command = Command::on_disk("lvremove").discarding().words(["vg/x"]);
        let words = command.all();
        assert_eq!(words.iter().filter(|word| *word == "--config").count(), 1);
        for setting in [NO_BACKUP, ON_DISK, FORGETTING] {
            assert!(command.line().contains(setting), "{command:?}");
        }
        assert_eq!(command.line().contains(NO_UDEV), !udev::is_running());
        assert_eq!(words.last().unwrap(), "vg/x");
    }
}
