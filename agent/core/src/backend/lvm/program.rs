//! LVM's programs: what is said to them, and what their complaints mean.

use std::fmt;

use super::metadata::VolumeGroup;
use crate::{
    Error, Kind, Result,
    host::exec::{Output, Program},
};

/// Where its own backups go is nobody's business on this path: each change would write two more files.
const CONFIG: &str = "backup{backup=0 archive=0}";
/// The same for what is to be changed on the disks and not in the kernel.
const CONFIG_ON_DISK: &str = "global{activation=0} backup{backup=0 archive=0}";

/// The same for what frees extents that nobody may read any more.
const CONFIG_FORGETTING: &str = "devices{issue_discards=1} backup{backup=0 archive=0}";

/// A disk that somebody holds makes whoever looks for disks wait as long. LVM's hints are of no use to who looks for
/// what has changed, and what was seen by us alone must not become one for others.
const CONFIG_LOOKING: &str =
    "devices{ignore_suspended_devices=1 hints=\"none\"} backup{backup=0 archive=0}";

type IsDone = Box<dyn Fn(&VolumeGroup) -> bool + Send + Sync>;

/// One command of LVM's that changes something.
pub(super) struct Command {
    words: Vec<String>,
    is_done: Option<IsDone>,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.words).finish()
    }
}

impl Command {
    /// The command `name`, such as `lvcreate`.
    pub(super) fn new(name: &str) -> Self {
        Self::with_config(name, CONFIG)
    }

    /// The same, which leaves the kernel's devices as they are.
    pub(super) fn on_disk(name: &str) -> Self {
        Self::with_config(name, CONFIG_ON_DISK)
    }

    fn with_config(name: &str, config: &str) -> Self {
        let words = [name, "-q", "-y", "--config", config];
        Self {
            words: words.map(str::to_owned).into(),
            is_done: None,
        }
    }

    /// The same, which has the disks forget what it frees.
    pub(super) fn discarding(self) -> Self {
        self.words(["--config", CONFIG_FORGETTING])
    }

    /// With more words.
    pub(super) fn words<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// With tags to be set.
    pub(super) fn add_tags(self, tags: impl IntoIterator<Item = String>) -> Self {
        let words = tags
            .into_iter()
            .flat_map(|tag| ["--addtag".to_owned(), tag]);
        self.words(words)
    }

    /// How the metadata shows that it was carried out. Without it, it may be carried out twice.
    pub(super) fn done_when(
        mut self,
        is_done: impl Fn(&VolumeGroup) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_done = Some(Box::new(is_done));
        self
    }

    /// Whether the metadata shows that it was carried out; none where it cannot.
    pub(super) fn is_done(&self, group: &VolumeGroup) -> Option<bool> {
        self.is_done.as_ref().map(|is_done| is_done(group))
    }

    /// Runs it in a process of its own.
    ///
    /// # Errors
    /// By what LVM complains about.
    pub(super) async fn run(&self) -> Result<()> {
        let program = Program::changing("lvm").args(&self.words);
        program.run().await.map(drop).map_err(classify)
    }

    /// What a running `lvm` reads; no word of ours has a quote in it.
    fn line(&self) -> String {
        let quoted: Vec<String> = self.words.iter().map(|word| format!("'{word}'")).collect();
        quoted.join(" ")
    }
}

/// Runs several commands in one process. It ends well whatever became of them: look at the metadata.
pub(super) async fn run_together(commands: impl IntoIterator<Item = &Command>) -> Result<()> {
    let lines: Vec<String> = commands.into_iter().map(Command::line).collect();
    let program = Program::changing("lvm").stdin(format!("{}\n", lines.join("\n")));
    program.run().await.map(drop).map_err(classify)
}

/// Runs a command of LVM's that only reports, as JSON.
pub(super) async fn report(words: &[&str]) -> Result<Output> {
    let common = ["--config", CONFIG_LOOKING, "--reportformat", "json"];
    Program::reading("lvm")
        .args(words)
        .args(common)
        .run()
        .await
        .map_err(classify)
}

/// What should be done about an LVM program that failed, by its complaint (in the C locale).
fn classify(error: Error) -> Error {
    const KINDS: [(&str, Kind); 18] = [
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
        ("PVs are missing", Kind::Precondition),
        ("devices are missing", Kind::Precondition),
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
