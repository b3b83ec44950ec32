//! The agents of this host: their processes, with their arguments and environment.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use clap::{CommandFactory, Parser};
use drumlin_core::host::file_locks;

use super::report::AgentProcess;
use crate::cli::{AgentArguments, Cli, Command};

/// A process that was started as one of our daemons.
#[derive(Debug, Clone)]
pub(super) struct Daemon {
    /// Its process id.
    pub(super) pid: u32,
    /// Its program and arguments.
    words: Vec<OsString>,
    /// Its environment, if it can be read.
    pub(super) environment: Option<BTreeMap<String, String>>,
    /// Its working directory, if it can be read.
    directory: Option<PathBuf>,
}

impl Daemon {
    /// The process with this id; none if it has ended or is in another container.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let words = split(&fs::read(process.join("cmdline")).ok()?);
        let environment = fs::read(process.join("environ")).ok().map(|bytes| {
            let pairs = split(&bytes).into_iter();
            let pairs = pairs.map(|pair| pair.to_string_lossy().into_owned());
            let pairs = pairs.filter_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                Some((name.to_owned(), value.to_owned()))
            });
            pairs.collect()
        });
        (!words.is_empty()).then_some(Self {
            pid,
            words,
            environment,
            directory: fs::read_link(process.join("cwd")).ok(),
        })
    }

    /// All agents of this host that can be seen.
    pub(super) fn agents() -> Vec<Self> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(Self::of).filter(Self::is_agent).collect()
    }

    fn is_agent(&self) -> bool {
        let mut words = self.words.iter().map(OsString::as_os_str);
        let program = words.next().map(Path::new).and_then(Path::file_name);
        // Packages may give it a longer name.
        let is_ours = program.is_some_and(|name| name.as_encoded_bytes().starts_with(b"drumlin"));
        is_ours && words.next() == Some(OsStr::new("agent"))
    }

    /// What it was started with, by its command line and, where that says nothing, by its environment. Relative paths
    /// are those from its own working directory.
    ///
    /// # Errors
    /// If this version has no such arguments.
    pub(super) fn arguments(&self) -> Result<AgentArguments, String> {
        if !self.is_agent() {
            return Err(format!("`{}` is no agent", self.command()));
        }
        let mut words = self.words.clone();
        words.extend(self.arguments_of_environment());
        let mut arguments = parse(words)?;
        let paths = [
            &mut arguments.config,
            &mut arguments.state_dir,
            &mut arguments.manifests,
        ];
        for path in paths.into_iter().flatten() {
            *path = self.absolute(path);
        }
        Ok(arguments)
    }

    /// A path that it was given.
    pub(super) fn absolute(&self, path: &Path) -> PathBuf {
        let directory = self.directory.as_deref();
        directory.map_or_else(|| path.to_owned(), |directory| directory.join(path))
    }

    /// Its environment as arguments, where its command line has no such ones.
    fn arguments_of_environment(&self) -> Vec<OsString> {
        let Some(environment) = &self.environment else {
            return Vec::new();
        };
        let given = |long: &str| {
            self.words.iter().any(|word| {
                let word = word.to_string_lossy();
                word.split('=').next() == Some(&format!("--{long}"))
            })
        };
        let command = Cli::command();
        let agent = command.find_subcommand("agent");
        let known = agent.into_iter().flat_map(clap::Command::get_arguments);
        let words = known.filter_map(|argument| {
            let value = environment.get(argument.get_env()?.to_str()?)?;
            let long = argument.get_long().filter(|long| !given(long))?;
            let is_flag = matches!(argument.get_action(), clap::ArgAction::SetTrue);
            match (is_flag, value.as_str()) {
                (true, "" | "false" | "0" | "no" | "off" | "n" | "f") => None,
                (true, _) => Some(format!("--{long}").into()),
                (false, _) => Some(format!("--{long}={value}").into()),
            }
        });
        words.collect()
    }

    /// Its command line, for people.
    pub(super) fn command(&self) -> String {
        let words = self.words.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    /// What a report says of it.
    pub(super) fn shown(&self) -> AgentProcess {
        AgentProcess {
            pid: self.pid,
            command: self.command(),
        }
    }
}

/// The arguments of an agent with this command line, and the environment of this process.
///
/// # Errors
/// As the command line says it, without its usage.
pub(super) fn parse(words: Vec<OsString>) -> Result<AgentArguments, String> {
    match Cli::try_parse_from(words) {
        Ok(Cli {
            command: Command::Agent(arguments),
        }) => Ok(*arguments),
        Ok(_) => Err("another command".to_owned()),
        Err(error) => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or(&text);
            Err(first.trim_start_matches("error: ").to_owned())
        }
    }
}

/// The process that holds the lock of the agent's state directory.
///
/// # Errors
/// If the kernel's list of locks cannot be read.
pub(super) fn holder(lock: &Path) -> Result<Option<AgentProcess>, String> {
    let found = file_locks::holder(lock).map_err(|error| error.chain())?;
    Ok(found.map(|pid| {
        let daemon = Daemon::of(pid);
        daemon.map_or_else(
            || AgentProcess {
                pid,
                command: "in another container".to_owned(),
            },
            |daemon| daemon.shown(),
        )
    }))
}

/// The parts of a text that end with a zero byte.
fn split(bytes: &[u8]) -> Vec<OsString> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let parts = bytes.split(|byte| *byte == 0);
    parts
        .map(|part| OsString::from_vec(part.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_an_agent_counts_where_its_command_line_says_nothing() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let daemon = Daemon {
            pid: 1,
            words: ["/usr/bin/drumlin", "agent", "--node=here"]
                .map(OsString::from)
                .into(),
            environment: Some(BTreeMap::from([
                pair("DRUMLIN_NODE", "there"),
                pair("DRUMLIN_STATE_DIR", "/state"),
                pair("DRUMLIN_KUBERNETES", "true"),
                pair("DRUMLIN_ALLOW_HOST_MOUNTS", "false"),
                pair("DRUMLIN_CONFIG", "here.yaml"),
            ])),
            directory: Some("/etc/drumlin".into()),
        };
        let arguments = daemon.arguments().unwrap();
        assert_eq!(arguments.node.as_deref(), Some("here"));
        assert_eq!(arguments.state_dir.as_deref(), Some(Path::new("/state")));
        assert_eq!(
            arguments.config.as_deref(),
            Some(Path::new("/etc/drumlin/here.yaml"))
        );
        assert!(arguments.cluster.kubernetes && !arguments.cluster.allow_host_mounts);
    }

    #[test]
    fn a_command_line_that_is_not_ours_is_no_agent() {
        let daemon = |words: &[&str]| Daemon {
            pid: 1,
            words: words.iter().map(OsString::from).collect(),
            environment: None,
            directory: None,
        };
        assert!(daemon(&["drumlin", "agent"]).is_agent());
        for words in [&["drumlin", "doctor"][..], &["sh", "agent"], &["drumlin"]] {
            assert!(daemon(words).arguments().is_err());
        }
    }
}
