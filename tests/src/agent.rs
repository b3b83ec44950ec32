//! An agent in a scratch directory.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use drumlin_proto::{
    csi::v1::{
        ProbeRequest, controller_client::ControllerClient,
        group_controller_client::GroupControllerClient, identity_client::IdentityClient,
        node_client::NodeClient,
    },
    drumlin, volumegroup,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::transport::Channel;

use crate::{
    programs::{complaint, drumlin, process_state, program},
    storage::{Scratch, lvm},
};

/// How long anything may take that is waited for: among other lanes a disk was seen to need 20 s for what takes it one.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// How long a process that was killed may take until it is gone.
const ENDING: Duration = Duration::from_secs(5);

/// What an agent is started with.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// Its configuration file, if it has one.
    pub config: Option<String>,
    /// What it calls its node; `node-a` when nothing is said.
    pub node: Option<String>,
    /// More arguments.
    pub arguments: Vec<String>,
    /// More of the environment.
    pub environment: Vec<(String, String)>,
    /// What starts it, a program and its arguments; nothing does when this is empty.
    pub within: Vec<String>,
}

impl Options {
    /// With one class, `default`, over a directory of images.
    #[must_use]
    pub fn of_directory(images: &Path) -> Self {
        let config = format!(
            "classes: [{{name: default, directory: {{path: {}}}}}]\n",
            images.display()
        );
        Self {
            config: Some(config),
            ..Self::default()
        }
    }

    /// Has the agent killed at the first of these fail points that it comes to; commas part them.
    #[must_use]
    pub fn killed_at(self, points: &str) -> Self {
        self.failing_at(points, "kill")
    }

    /// Has it stopped there (SIGSTOP), so that others meet what it is about.
    #[must_use]
    pub fn stopped_at(self, points: &str) -> Self {
        self.failing_at(points, "stop")
    }

    /// Has what comes there pause for a second, each time.
    #[must_use]
    pub fn pausing_at(self, points: &str) -> Self {
        self.failing_at(points, "pause")
    }

    /// Has it do one of these there, by its name.
    #[must_use]
    pub fn failing_at(mut self, points: &str, how: &str) -> Self {
        let own = [("DRUMLIN_FAIL", points), ("DRUMLIN_FAIL_BY", how)];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.environment.extend(own);
        self
    }

    /// Has it killed at a fail point, if there is one.
    #[must_use]
    pub fn perhaps_killed_at(self, point: Option<&str>) -> Self {
        match point {
            Some(point) => self.killed_at(point),
            None => self,
        }
    }

    /// The same tests run over other back ends: in the lab a test that asks for no class gets a volume group.
    fn over(mut self, scratch: &Scratch) -> Self {
        let asked = self.config.as_deref().unwrap_or_default();
        if is_over_lvm() && !asked.contains("classes:") {
            self.config = Some(format!("{asked}{}", Volumes::asked().classes(scratch)));
        }
        self
    }
}

/// The kinds of logical volumes that the tests run over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Volumes {
    /// In a pool.
    Thin,
    /// Of extents of their own.
    Linear,
    /// The same, on two disks.
    Raid1,
}

impl Volumes {
    /// What `DRUMLIN_VOLUMES` asks for: `thin`, `linear` or `raid1`.
    ///
    /// # Panics
    /// When it asks for something else.
    pub fn asked() -> Self {
        match std::env::var("DRUMLIN_VOLUMES").as_deref() {
            Err(_) | Ok("thin") => Self::Thin,
            Ok("linear") => Self::Linear,
            Ok("raid1") => Self::Raid1,
            Ok(other) => panic!("DRUMLIN_VOLUMES={other} is not thin, linear or raid1"),
        }
    }

    /// The configuration of one class of them over a new volume group.
    pub fn classes(self, scratch: &Scratch) -> String {
        let class = match self {
            Self::Thin => {
                let group = scratch.volume_group(1 << 10);
                lvm("lvcreate", &["-L", "1900M", "-T", &format!("{group}/pool")]);
                format!("thin: {{volumeGroup: {group}, pool: pool, overcommit: 20}}")
            }
            Self::Linear => format!("thick: {{volumeGroup: {}}}", scratch.volume_group(16 << 10)),
            Self::Raid1 => format!(
                "thick: {{volumeGroup: {}, layout: raid1}}",
                scratch.volume_group(16 << 10)
            ),
        };
        let encryption = if std::env::var_os("DRUMLIN_ENCRYPTED").is_some() {
            let key = scratch.key("key");
            format!(
                ", encryption: {{type: luks2, key: {{file: {}}}}}",
                key.display()
            )
        } else {
            String::new()
        };
        format!("classes:\n- {{name: default, {class}{encryption}}}\n")
    }
}

/// Whether the tests that ask for no class run over a volume group.
pub fn is_over_lvm() -> bool {
    std::env::var_os("DRUMLIN_LAB").is_some()
}

/// Whether kills are tried one by one, at each point over each kind of volumes: before a release.
pub fn is_thorough() -> bool {
    std::env::var_os("DRUMLIN_EACH_ALONE").is_some()
}

/// Whether a volume that has snapshots cannot be deleted, and not grown while it is used: that of thick volumes.
pub fn snapshots_bind_their_volume() -> bool {
    is_over_lvm() && Volumes::asked() != Volumes::Thin
}

/// Every size of a volume is a multiple of this, in bytes.
pub fn unit() -> i64 {
    if is_over_lvm() { 1 << 20 } else { 4096 }
}

/// An agent that runs, or ran.
#[derive(Debug)]
pub struct Agent {
    /// Everything that it has to do with.
    pub scratch: Scratch,
    options: Options,
    child: Option<Child>,
}

impl Agent {
    /// Starts an agent with nothing but the defaults, and waits until it answers.
    pub async fn start() -> Self {
        Self::with(Scratch::new(), Options::default()).await
    }

    /// Starts an agent, and waits until it answers.
    pub async fn with(scratch: Scratch, options: Options) -> Self {
        let options = options.over(&scratch);
        let mut agent = Self {
            scratch,
            options,
            child: None,
        };
        agent.restart().await;
        agent
    }

    /// Starts it again, with the same directory, and waits until it answers.
    pub async fn restart(&mut self) {
        self.spawn();
        self.wait_until_it_answers().await;
    }

    /// Starts it with other options, but the same configuration where they have none, and waits until it answers.
    pub async fn restart_with(&mut self, options: Options) {
        self.set_options(options);
        self.restart().await;
    }

    /// The same where it may come to a fail point before it answers: whether it answers.
    pub async fn try_restart_with(&mut self, options: Options) -> bool {
        self.set_options(options);
        self.spawn();
        let Err(status) = self.answer_or_end().await else {
            return true;
        };
        assert_eq!(status.signal(), Some(9), "{status}\n{}", self.log());
        self.child = None;
        false
    }

    fn set_options(&mut self, options: Options) {
        let config = options.config.or(self.options.config.take());
        self.options = Options { config, ..options };
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it runs: another one ends at once, and the one that was there before would be taken for it.
    pub fn spawn(&mut self) {
        // Who breaks a call off by its end may still be ending.
        let deadline = Instant::now() + ENDING;
        while !self.has_ended() {
            assert!(Instant::now() < deadline, "the agent runs already");
            std::thread::sleep(Duration::from_millis(2));
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path());
        let log = log.expect("a log can be written");
        let mut words = self.options.within.iter().map(Into::into);
        let mut words = words.by_ref().chain([drumlin().into_os_string()]);
        let mut command = program(words.next().unwrap_or_default());
        command
            .args(words)
            .arg("agent")
            .args(["--state-dir", &self.path("state").to_string_lossy()])
            .args(["--endpoint", &self.socket().to_string_lossy()])
            .args(["--node", self.options.node.as_deref().unwrap_or("node-a")])
            .args(&self.options.arguments)
            .envs(self.options.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(config) = &self.options.config {
            let path = self.path("config.yaml");
            fs::write(&path, config).expect("a config can be written");
            command.arg("--config").arg(path);
        }
        self.child = Some(command.spawn().expect("the agent can be started"));
    }

    async fn wait_until_it_answers(&mut self) {
        if let Err(status) = self.answer_or_end().await {
            panic!("the agent ended: {status}\n{}", self.log());
        }
    }

    /// Waits until it answers, or until it ends and with which status.
    async fn answer_or_end(&mut self) -> Result<(), ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.identity().probe(ProbeRequest {}).await;
            match answer {
                Ok(_) => return Ok(()),
                // It answers, and has something to say.
                Err(status) if status.code() == tonic::Code::FailedPrecondition => return Ok(()),
                Err(_) => {}
            }
            if let Some(status) = self
                .child
                .as_mut()
                .and_then(|child| child.try_wait().ok().flatten())
            {
                return Err(status);
            }
            assert!(
                Instant::now() < deadline,
                "the agent does not answer\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// What it was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A path in its scratch directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.path("log")
    }

    /// What it has logged so far, in all its lives.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// A connection to it, for clients of any service.
    pub fn channel(&self) -> Channel {
        drumlin_proto::connect(&self.socket()).expect("the socket's path is short")
    }

    /// A client of its Identity service.
    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel())
    }

    /// A client of its Controller service.
    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }

    /// A client of its Node service.
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel())
    }

    /// A client of its `GroupController` service.
    pub fn group_controller(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel())
    }

    /// A client of its groups of volumes.
    pub fn groups(&self) -> volumegroup::controller_client::ControllerClient<Channel> {
        volumegroup::controller_client::ControllerClient::new(self.channel())
    }

    /// A client of what there is, and whose.
    pub fn inventory(&self) -> drumlin::v1::inventory_client::InventoryClient<Channel> {
        drumlin::v1::inventory_client::InventoryClient::new(self.channel())
    }

    /// The client of what is deleted.
    pub fn trash(&self) -> drumlin::v1::trash_client::TrashClient<Channel> {
        drumlin::v1::trash_client::TrashClient::new(self.channel())
    }

    /// A client of what CSI has no words for.
    pub fn own(&self) -> drumlin::v1::group_controller_client::GroupControllerClient<Channel> {
        drumlin::v1::group_controller_client::GroupControllerClient::new(self.channel())
    }

    /// A client of the state of its classes.
    pub fn classes(&self) -> drumlin::v1::classes_client::ClassesClient<Channel> {
        drumlin::v1::classes_client::ClassesClient::new(self.channel())
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        let id = self.child.as_ref().map_or(0, Child::id);
        i32::try_from(id).expect("process ids are small")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the agent can be signalled");
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let child = self.child.as_mut().expect("it was started");
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                self.child = None;
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "it does not end:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Whether it is stopped, as by its fail point.
    pub fn is_stopped(&self) -> bool {
        process_state(self.pid()) == Some('T')
    }

    /// Whether it has ended by itself, or was killed by another.
    pub fn has_ended(&mut self) -> bool {
        let ended = self
            .child
            .as_mut()
            .is_none_or(|child| matches!(child.try_wait(), Ok(Some(_))));
        if ended {
            self.child = None;
        }
        ended
    }

    /// Waits until a fail point has ended it.
    pub async fn wait_until_killed(&mut self) {
        let status = self.wait().await;
        assert_eq!(status.signal(), Some(9), "{status}\n{}", self.log());
    }

    /// Runs another command of the binary on its state directory.
    pub fn command(&self, arguments: &[&str]) -> std::process::Output {
        program(drumlin())
            .args(arguments)
            .output()
            .expect("the binary can be started")
    }

    /// What a command says that must fail, with exit code 1.
    #[track_caller]
    pub fn complaint(&self, arguments: &[&str]) -> String {
        complaint(&self.command(arguments))
    }

    /// `drumlin status`, with its exit code.
    pub fn status(&self) -> (String, i32) {
        let state = self.path("state");
        let output = self.command(&["status", "--state-dir", &state.to_string_lossy()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text, output.status.code().unwrap_or(-1))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until `holds`, and says what else was there in vain.
pub async fn eventually<T: std::fmt::Debug>(
    mut look: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = look();
        if holds(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "it never came: {now:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes a file as an editor does, with the mode that manifests must have.
pub fn write(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let passing = path.with_extension("tmp");
    fs::write(&passing, text).expect("a file can be written");
    fs::set_permissions(&passing, fs::Permissions::from_mode(0o644)).expect("a mode can be set");
    fs::rename(&passing, path).expect("a file can be renamed");
}
