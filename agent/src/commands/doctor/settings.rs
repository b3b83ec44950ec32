//! Settings that are wrong, or have no effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
};

use clap::CommandFactory;
use serde_json::{Map, Value};

use super::{check::Check, finding::Finding, processes::Daemon, subject::Subject};
use crate::cli::Cli;

/// Variables that no option has: those of test builds. In a release they have no effect.
const OF_TESTS: &[&str] = if cfg!(debug_assertions) {
    &[
        "DRUMLIN_CLOCK",
        "DRUMLIN_FAIL",
        "DRUMLIN_FAIL_BY",
        "DRUMLIN_MUTATE",
        "DRUMLIN_TIME_LAPSE",
    ]
} else {
    &[]
};

/// Options that do nothing unless the agent follows an API server, with their variables.
const OF_CLUSTERS: [(&str, &str); 4] = [
    ("--allow-host-mounts", "DRUMLIN_ALLOW_HOST_MOUNTS"),
    ("--claim", "DRUMLIN_CLAIM"),
    ("--namespace", "DRUMLIN_NAMESPACE"),
    ("--start-jitter", "DRUMLIN_START_JITTER"),
];

/// Keys of the file whose option has precedence: key, option and variable.
const KEYS: [(&str, &str, &str); 21] = [
    ("node", "--node", "DRUMLIN_NODE"),
    ("endpoint", "--endpoint", "CSI_ENDPOINT"),
    (
        "addonsEndpoint",
        "--addons-endpoint",
        "DRUMLIN_ADDONS_ENDPOINT",
    ),
    ("stateDir", "--state-dir", "DRUMLIN_STATE_DIR"),
    ("manifests", "--manifests", "DRUMLIN_MANIFESTS"),
    ("prune.mode", "--prune", "DRUMLIN_PRUNE"),
    ("prune.grace", "--prune-grace", "DRUMLIN_PRUNE_GRACE"),
    ("prune.kinds", "--prune-kinds", "DRUMLIN_PRUNE_KINDS"),
    (
        "manifestOwner",
        "--manifest-owner",
        "DRUMLIN_MANIFEST_OWNER",
    ),
    ("attach", "--attach", "DRUMLIN_ATTACH"),
    (
        "volumeMountGroup",
        "--volume-mount-group",
        "DRUMLIN_VOLUME_MOUNT_GROUP",
    ),
    (
        "maxVolumesPerNode",
        "--max-volumes-per-node",
        "DRUMLIN_MAX_VOLUMES_PER_NODE",
    ),
    (
        "onGroupDelete",
        "--on-group-delete",
        "DRUMLIN_ON_GROUP_DELETE",
    ),
    ("driverName", "--driver-name", "DRUMLIN_DRIVER_NAME"),
    ("cgroups", "--cgroups", "DRUMLIN_CGROUPS"),
    ("nodeLabels", "--node-labels", "DRUMLIN_NODE_LABELS"),
    ("log.level", "--log-level", "DRUMLIN_LOG"),
    ("log.format", "--log-format", "DRUMLIN_LOG_FORMAT"),
    (
        "tracing.otlpEndpoint",
        "--otlp-endpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    (
        "metrics.listen",
        "--metrics-listen",
        "DRUMLIN_METRICS_LISTEN",
    ),
    (
        "metrics.textfile",
        "--metrics-textfile",
        "DRUMLIN_METRICS_TEXTFILE",
    ),
];

/// The command line and the environment of the agent, or of this process if no agent runs.
struct Given {
    words: String,
    environment: BTreeMap<String, String>,
}

impl Given {
    fn of(subject: &Subject) -> Self {
        let agent = subject.agent.as_ref();
        let environment = match agent {
            Some(agent) => agent.environment.clone().unwrap_or_default(),
            None => std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        };
        Self {
            words: agent.map_or_else(String::new, Daemon::command),
            environment,
        }
    }

    /// Where an option is given: its name, or that of its variable.
    fn place<'a>(&self, option: &'a str, variable: &'a str) -> Option<&'a str> {
        let mut words = self.words.split(' ');
        if words.any(|word| word.split('=').next() == Some(option)) {
            return Some(option);
        }
        self.environment.contains_key(variable).then_some(variable)
    }
}

/// Looks at the configuration, the flags and the environment.
pub(super) fn check(subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    let file = subject.arguments.config.as_deref();
    let object = file.map_or_else(
        || "command line and environment".to_owned(),
        |file| file.display().to_string(),
    );
    if let Err(problems) = &subject.config {
        found.extend(problems.iter().map(|why| {
            Finding::new(Check::InvalidConfiguration, &object, why).advice(
                "correct it; the classes are not known until then, and the agent does not start",
            )
        }));
        found.push(Finding::not_checked(
            "classes",
            "the configuration is not valid",
        ));
    }
    found.extend(changes(subject, &object));
    let unknown = [&subject.unknown_classes, &subject.unknown_arguments];
    found.extend(
        unknown
            .into_iter()
            .flatten()
            .map(|why| Finding::not_checked(&object, why)),
    );
    found.extend(subject.differences.iter().map(|difference| {
        Finding::new(
            Check::OtherConfiguration,
            &object,
            format!("the running agent has other settings than this command: {difference}"),
        )
        .advice("leave the option of this command out, or restart the agent with it")
    }));
    let given = Given::of(subject);
    found.extend(unknown_variables(&given));
    found.extend(without_effect(subject, &given));
    let keys = file.and_then(|file| {
        let text = fs::read_to_string(file).ok()?;
        drumlin_crd::yaml::from_str::<Option<Map<String, Value>>>(&text).ok()?
    });
    found.extend(overridden(&keys.unwrap_or_default(), &given, &object));
    found
}

/// What the file says otherwise than the agent has it.
fn changes(subject: &Subject, object: &str) -> Vec<Finding> {
    let lost = subject.lost.iter().map(|why| {
        Finding::new(Check::InvalidConfiguration, object, why)
            .advice("do as the message says; the agent does not apply such a file, and does not start with it")
    });
    let unapplied = subject.unapplied.iter().map(|change| {
        Finding::new(
            Check::ChangeNotApplied,
            object,
            format!("it was changed, and the running agent has the former value: {change}"),
        )
        .advice("restart the agent to apply it, or take the change back; a retired class keeps its storage until it is empty")
    });
    lost.chain(unapplied).collect()
}

fn unknown_variables(given: &Given) -> Vec<Finding> {
    let mut known: BTreeSet<String> = OF_TESTS.iter().map(|name| (*name).to_owned()).collect();
    for command in Cli::command().get_subcommands() {
        let names = command.get_arguments().filter_map(clap::Arg::get_env);
        known.extend(names.filter_map(OsStr::to_str).map(str::to_owned));
    }
    let ours = given.environment.keys();
    // Kubernetes has such variables for each Service.
    let ours = ours.filter(|name| !name.contains("_SERVICE_") && !name.contains("_PORT"));
    let ours = ours.filter(|name| name.starts_with("DRUMLIN_") && !known.contains(*name));
    ours.map(|name| {
        Finding::new(
            Check::UnknownVariable,
            name,
            "it is in the environment, and no option of this version has that name; it has no effect",
        )
        .advice("correct its name, or remove it; `drumlin agent --help` has the names")
    })
    .collect()
}

fn without_effect(subject: &Subject, given: &Given) -> Vec<Finding> {
    let no_effect = |setting: &str, why: &str| {
        Finding::new(
            Check::SettingWithoutEffect,
            setting,
            format!("it has no effect: {why}"),
        )
        .advice("remove it, or set what it needs")
    };
    let mut found = Vec::new();
    if subject.arguments.cluster.cluster().is_none() {
        let places = OF_CLUSTERS
            .iter()
            .filter_map(|(option, variable)| given.place(option, variable));
        found.extend(places.map(|place| {
            no_effect(
                place,
                "the agent follows no API server (--kubernetes, --kubeconfig)",
            )
        }));
    }
    let without_manifests = "there is no directory of manifests (--manifests)";
    if subject.manifests().is_none() && !subject.manifest_owners().is_empty() {
        found.push(no_effect("--manifest-owner", without_manifests));
    }
    let Ok(config) = &subject.config else {
        return found;
    };
    if subject.manifests().is_none() && config.prune.is_some() {
        found.push(no_effect("--prune", without_manifests));
    }
    if config.settings.max_volumes.is_some() && !config.settings.attach {
        found.push(no_effect(
            "maxVolumesPerNode",
            "it is enforced only with `attach: true` (--attach)",
        ));
    }
    let kubelet = &subject.arguments.kubelet;
    let is_registered = matches!(config.kubelet, crate::config::Kubelet::Registered(_));
    if !is_registered {
        let options = [
            ("--kubelet-endpoint", kubelet.kubelet_endpoint.is_some()),
            (
                "--kubelet-registration-dir",
                kubelet.kubelet_registration_dir.is_some() && kubelet.kubelet_register.is_none(),
            ),
        ];
        let set = options.into_iter().filter(|(_, is_set)| *is_set);
        found.extend(set.map(|(option, _)| {
            no_effect(
                option,
                "the agent does not register with kubelet (--kubelet-register)",
            )
        }));
    }
    found
}

fn overridden(file: &Map<String, Value>, given: &Given, object: &str) -> Vec<Finding> {
    let has = |key: &str| {
        let mut parts = key.split('.');
        let mut value = file.get(parts.next()?)?;
        for part in parts {
            value = value.get(part)?;
        }
        (!value.is_null()).then_some(())
    };
    let keys = KEYS.iter().filter(|(key, ..)| has(key).is_some());
    keys.filter_map(|(key, option, variable)| {
        let place = given.place(option, variable)?;
        Some(
            Finding::new(
                Check::OverriddenSetting,
                format!("{object}: {key}"),
                format!("the value in the file has no effect: {place} is given"),
            )
            .advice("keep one of the two"),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_and_their_options_are_those_of_the_command_line() {
        let cli = Cli::command();
        let agent = cli.find_subcommand("agent").unwrap();
        for (key, option, variable) in KEYS {
            let mut arguments = agent.get_arguments();
            let argument = arguments.find(|one| one.get_long() == option.strip_prefix("--"));
            let argument = argument.unwrap_or_else(|| panic!("{key}: {option}"));
            assert_eq!(argument.get_env(), Some(OsStr::new(variable)));
        }
        for (option, variable) in OF_CLUSTERS {
            let mut arguments = agent.get_arguments();
            let argument = arguments.find(|one| one.get_long() == option.strip_prefix("--"));
            assert_eq!(argument.unwrap().get_env(), Some(OsStr::new(variable)));
        }
    }
}
