//! What is looked at: the settings of the agent, whether it runs or not, and the storage of its classes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use drumlin_core::{
    backend::{directory::DirectorySettings, encrypted::EncryptionSettings, lvm::LvmSettings},
    host::io_limits::IoLimits,
    types::{ClassName, NodeName},
};
use drumlin_reconciler::status::{self, StatusTable};

use super::processes::{Daemon, parse};
use crate::{
    classes::ClassRecord,
    cli::{AgentArguments, DoctorArguments},
    config::{Config, ENDPOINT, PACKAGED, STATE_DIR, Storage, problems},
};

/// What is looked at.
#[derive(Debug)]
pub(super) struct Subject {
    /// The arguments of the agent.
    pub(super) arguments: AgentArguments,
    /// What the arguments and the file say, or what is wrong with them.
    pub(super) config: Result<Config, Vec<String>>,
    /// The agent that holds the state directory, if it can be seen.
    pub(super) agent: Option<Daemon>,
    /// Why the arguments of the running agent are not known, although it runs.
    pub(super) unknown_arguments: Option<String>,
    /// What the command line of this command says otherwise than the running agent.
    pub(super) differences: Vec<String>,
    /// The classes of this node, retired ones too.
    pub(super) classes: Vec<SubjectClass>,
    /// Why not all classes are known.
    pub(super) unknown_classes: Option<String>,
    /// The changes of the configuration that the running agent has not applied.
    pub(super) unapplied: Vec<String>,
    /// What the file has lost that the agent had.
    pub(super) lost: Option<String>,
    /// The objects, as they were before their classes were looked at: what is made meanwhile is not missing there.
    pub(super) table: Result<StatusTable, String>,
}

/// A class, and where it has its images.
#[derive(Debug)]
pub(super) struct SubjectClass {
    pub(super) name: ClassName,
    pub(super) storage: Storage,
    /// How it encrypts, if it does.
    pub(super) encryption: Option<EncryptionSettings>,
    /// The highest rates of its volumes.
    pub(super) limits: IoLimits,
    /// No configuration names it for this node any more.
    pub(super) is_retired: bool,
}

/// How often the running agent is looked for.
const LOOKS: u32 = 3;

impl Subject {
    /// Finds out what is to be looked at.
    pub(super) fn of(asked: &DoctorArguments) -> Self {
        let lock = state_dir_of(asked).join("LOCK");
        // The kernel's list of locks is no snapshot: a lock that is there can be missing in one look.
        let agent = (0..LOOKS).find_map(|_| {
            let holder = drumlin_core::host::file_locks::holder(&lock);
            holder.ok().flatten().and_then(Daemon::of)
        });
        let running = agent.as_ref().map(Daemon::arguments);
        let (running, unknown_arguments) = match running {
            Some(Ok(arguments)) => (Some(arguments), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        let (arguments, differences) = match running {
            Some(mut arguments) => {
                let differences = override_by(&mut arguments, asked, Compared::WithAgent);
                (Ok(arguments), differences)
            }
            None => (without_agent(asked), Vec::new()),
        };
        let mut config = match &arguments {
            Ok(arguments) => Config::load(arguments).map_err(|error| problems(&error)),
            Err(why) => Err(vec![why.clone()]),
        };
        // Unless this command was told another one, which is from here, the directory is as the agent sees it.
        if let (Ok(config), Some(agent), None) = (&mut config, &agent, &asked.manifests) {
            let manifests = config.manifests.take();
            config.manifests = manifests.map(|path| agent.absolute(&path));
        }
        let arguments = arguments.unwrap_or_default();
        let mut subject = Self {
            arguments,
            config,
            agent,
            unknown_arguments,
            differences,
            classes: Vec::new(),
            unknown_classes: None,
            unapplied: Vec::new(),
            lost: None,
            table: Ok(StatusTable::default()),
        };
        subject.table = status::load(&subject.state_dir()).map_err(|error| error.to_string());
        subject.find_classes();
        subject
    }

    /// The classes of this node, by its labels as far as they are known, and those that are retired.
    fn find_classes(&mut self) {
        let Ok(config) = &self.config else {
            return;
        };
        let record = ClassRecord::load(&config.state_dir);
        let record = record.unwrap_or_else(|error| {
            self.unknown_classes = Some(format!("{error:#}"));
            ClassRecord::default()
        });
        if self.agent.is_some() {
            self.unapplied.clone_from(&record.unapplied);
        }
        let checked = record.check(&config.classes, &self.arguments);
        self.lost = checked.err().map(|why| format!("{why:#}"));
        // The running agent has others than this file: nothing can be said of these.
        if self.lost.is_some() {
            return;
        }
        let mut labels = config.classes.labels().clone();
        if self.arguments.cluster.cluster().is_some() {
            labels.extend(record.node_labels.unwrap_or_default());
        }
        let here = config.classes.classes().iter();
        let here: Vec<_> = here.filter(|class| class.selects(&labels)).collect();
        let retired = record.retired.iter();
        let retired = retired.filter(|class| here.iter().all(|here| here.name() != class.name()));
        let classes = here.iter().map(|class| (*class, false));
        for (class, is_retired) in classes.chain(retired.map(|class| (class, true))) {
            let storage = config.classes.storage(class);
            match storage.and_then(|storage| Ok((storage, class.encryption()?, class.limits()?))) {
                Ok((storage, encryption, limits)) => self.classes.push(SubjectClass {
                    name: class.name().clone(),
                    storage,
                    encryption,
                    limits,
                    is_retired,
                }),
                Err(error) => self.unknown_classes = Some(format!("{error:#}")),
            }
        }
    }

    /// Returns true if neither an agent nor a file says which classes there are.
    pub(super) fn has_no_configuration(&self) -> bool {
        self.agent.is_none() && self.arguments.config.is_none()
    }

    /// The state directory.
    pub(super) fn state_dir(&self) -> PathBuf {
        if let Ok(config) = &self.config {
            return config.state_dir.clone();
        }
        let directory = self.arguments.state_dir.clone();
        directory.unwrap_or_else(|| PathBuf::from(STATE_DIR))
    }

    /// The path of the CSI socket.
    pub(super) fn socket(&self) -> PathBuf {
        if let Ok(config) = &self.config {
            return config.endpoint.path().to_owned();
        }
        let endpoint = self.arguments.endpoint.as_deref().unwrap_or(ENDPOINT);
        let endpoint = endpoint.parse::<drumlin_proto::Endpoint>();
        endpoint.map_or_else(|_| PathBuf::new(), |endpoint| endpoint.path().to_owned())
    }

    /// The directory of manifests, if there is one.
    pub(super) fn manifests(&self) -> Option<&Path> {
        match &self.config {
            Ok(config) => config.manifests.as_deref(),
            Err(_) => self.arguments.manifests.as_deref(),
        }
    }

    /// Users whose manifests are accepted besides root's.
    pub(super) fn manifest_owners(&self) -> &[u32] {
        match &self.config {
            Ok(config) => &config.manifest_owners,
            Err(_) => &self.arguments.owners.manifest_owners,
        }
    }

    /// The name of this node, if it is known.
    pub(super) fn node(&self) -> Option<&NodeName> {
        self.config
            .as_ref()
            .ok()
            .map(|config| &config.settings.node)
    }

    /// The classes over directories.
    pub(super) fn directories(&self) -> impl Iterator<Item = (&ClassName, &DirectorySettings)> {
        self.classes
            .iter()
            .filter_map(|class| match &class.storage {
                Storage::Directory(settings) => Some((&class.name, settings)),
                Storage::Lvm(_) => None,
            })
    }

    /// The classes over volume groups.
    pub(super) fn volume_groups(&self) -> impl Iterator<Item = (&ClassName, &LvmSettings)> {
        self.classes
            .iter()
            .filter_map(|class| match &class.storage {
                Storage::Lvm(settings) => Some((&class.name, settings)),
                Storage::Directory(_) => None,
            })
    }
}

/// The state directory that was asked for, as far as that is known without the arguments of the agent.
fn state_dir_of(asked: &DoctorArguments) -> PathBuf {
    if let Some(directory) = &asked.state_dir {
        return directory.clone();
    }
    let arguments = without_agent(asked).ok();
    let config = arguments.and_then(|arguments| Config::load(&arguments).ok());
    config.map_or_else(|| PathBuf::from(STATE_DIR), |config| config.state_dir)
}

/// The arguments of an agent of this host that does not run: what this command was told, else the configuration of the
/// packages. A state directory that is named may be of another host.
fn without_agent(asked: &DoctorArguments) -> Result<AgentArguments, String> {
    let mut arguments = parse(vec!["drumlin".into(), "agent".into()])?;
    override_by(&mut arguments, asked, Compared::WithNothing);
    let packaged = Path::new(PACKAGED);
    if arguments.config.is_none() && arguments.state_dir.is_none() && packaged.exists() {
        arguments.config = Some(packaged.to_owned());
    }
    Ok(arguments)
}

/// What the arguments of this command are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    /// With those of the running agent.
    WithAgent,
    /// With nothing: no agent runs, or its arguments are not known.
    WithNothing,
}

/// Puts what this command was told in place of what the agent was. Returns where both say something else, if the agent
/// runs.
fn override_by(
    arguments: &mut AgentArguments,
    asked: &DoctorArguments,
    compared: Compared,
) -> Vec<String> {
    let mut differences = Vec::new();
    let mut set = |name: &str, of_agent: &mut Option<String>, asked: Option<String>| {
        if let Some(asked) = asked {
            if let (Compared::WithAgent, Some(before)) = (compared, of_agent.as_ref())
                && *before != asked
            {
                differences.push(format!("--{name} is {before}, not {asked}"));
            }
            *of_agent = Some(asked);
        }
    };
    let shown = |path: &Option<PathBuf>| {
        let path = path.as_ref()?;
        // Two names of one file or directory are no difference.
        let real = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        let path = real.as_deref().unwrap_or(path);
        Some(path.display().to_string())
    };
    let mut paths = [
        ("config", &mut arguments.config, &asked.config),
        ("state-dir", &mut arguments.state_dir, &asked.state_dir),
        ("manifests", &mut arguments.manifests, &asked.manifests),
    ];
    for (name, of_agent, asked) in &mut paths {
        let mut text = shown(of_agent);
        set(name, &mut text, shown(asked));
        **of_agent = asked.clone().or_else(|| of_agent.clone());
    }
    set("node", &mut arguments.node, asked.node.clone());
    set("endpoint", &mut arguments.endpoint, asked.endpoint.clone());
    differences
}
