//! What becomes of objects whose manifests are gone, and whose manifests are accepted.

use std::{fmt, time::Duration};

use clap::ValueEnum;
use drumlin_crd::yaml::nearest;
use drumlin_reconciler::Prune;
use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

use crate::{
    cli::{ObjectKind, OwnerArguments, PruneArguments, PruneWhen, user},
    duration::duration,
};

/// How long a manifest is missing before its object is pruned, by default.
const GRACE: Duration = Duration::from_mins(15);
/// The kinds that are pruned by default. Volumes have data of which there may be no copy.
const KINDS: [ObjectKind; 3] = [
    ObjectKind::VolumeGroup,
    ObjectKind::Snapshot,
    ObjectKind::GroupSnapshot,
];

/// The key `prune` of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    default,
    expecting = "a map such as {mode: auto, grace: 1h}"
)]
pub(super) struct FilePrune {
    mode: Option<PruneWhen>,
    #[serde(deserialize_with = "time")]
    grace: Option<Duration>,
    #[serde(deserialize_with = "kinds")]
    kinds: Option<Vec<ObjectKind>>,
}

/// The key `manifestOwner` of the configuration file: a user, or several.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileOwners(Vec<u32>);

/// What a process without a configuration file prunes, if anything.
pub(crate) fn pruning(arguments: &PruneArguments) -> Option<Prune> {
    prune(arguments, FilePrune::default())
}

/// What is pruned, if anything.
pub(super) fn prune(arguments: &PruneArguments, file: FilePrune) -> Option<Prune> {
    let mode = arguments.prune.or(file.mode);
    let grace = arguments.prune_grace.or(file.grace).unwrap_or(GRACE);
    let kinds = if arguments.prune_kinds.is_empty() {
        file.kinds.unwrap_or_else(|| KINDS.to_vec())
    } else {
        arguments.prune_kinds.clone()
    };
    (mode == Some(PruneWhen::Auto)).then(|| Prune {
        grace_seconds: grace.as_secs(),
        kinds: kinds.iter().map(|kind| kind.as_str().to_owned()).collect(),
    })
}

/// Users whose manifests are accepted besides those of root and of the user who runs the agent.
pub(super) fn owners(arguments: &OwnerArguments, file: FileOwners) -> Vec<u32> {
    if arguments.manifest_owners.is_empty() {
        file.0
    } else {
        arguments.manifest_owners.clone()
    }
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let time = text.map(|text| duration(&text)).transpose();
    time.map_err(D::Error::custom)
}

fn kinds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<ObjectKind>>, D::Error> {
    let kinds = Option::<Vec<FileKind>>::deserialize(deserializer)?;
    match kinds {
        Some(kinds) if kinds.is_empty() => Err(D::Error::custom(
            "no kind is named; leave it out, or set mode: never",
        )),
        Some(kinds) => Ok(Some(kinds.into_iter().map(|FileKind(kind)| kind).collect())),
        None => Ok(None),
    }
}

/// A kind, by the names that the flag takes.
struct FileKind(ObjectKind);

impl<'de> Deserialize<'de> for FileKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let kind = ObjectKind::from_str(&text, false);
        kind.map(Self).map_err(|_| {
            let kinds = ObjectKind::value_variants().iter();
            let kinds: Vec<&str> = kinds.map(|kind| kind.as_str()).collect();
            let near = nearest(&text, kinds.iter().copied());
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            D::Error::custom(format!(
                "{text:?} must be one of {}{hint}",
                kinds.join(", ")
            ))
        })
    }
}

/// A user, by name or number.
struct FileUser(u32);

impl<'de> Deserialize<'de> for FileUser {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UserVisitor).map(Self)
    }
}

struct UserVisitor;

impl Visitor<'_> for UserVisitor {
    type Value = u32;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name or number of a user")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u32, E> {
        user(text).map_err(|why| E::custom(format!("{text:?}: {why}")))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        u32::try_from(number).map_err(|_| E::custom(format!("{number} is no number of a user")))
    }
}

impl<'de> Deserialize<'de> for FileOwners {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OwnersVisitor).map(Self)
    }
}

struct OwnersVisitor;

impl<'de> Visitor<'de> for OwnersVisitor {
    type Value = Vec<u32>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name or number of a user, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u32>, E> {
        Ok(vec![UserVisitor.visit_str(text)?])
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Vec<u32>, E> {
        Ok(vec![UserVisitor.visit_u64(number)?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u32>, A::Error> {
        let mut users = Vec::new();
        while let Some(FileUser(user)) = list.next_element()? {
            users.push(user);
        }
        Ok(users)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> FilePrune {
        drumlin_crd::yaml::from_str(text).unwrap()
    }

    fn kinds_of(prune: &Prune) -> Vec<&str> {
        prune.kinds.iter().map(String::as_str).collect()
    }

    #[test]
    fn nothing_is_pruned_unless_the_mode_says_so() {
        let none = PruneArguments::default();
        for text in ["{}", "{mode: never}", "{grace: 1h, kinds: [Volume]}"] {
            assert_eq!(prune(&none, read(text)), None, "{text}");
        }
        let all = prune(&none, read("{mode: auto}")).unwrap();
        assert_eq!(all.grace_seconds, 900);
        assert_eq!(kinds_of(&all), ["GroupSnapshot", "Snapshot", "VolumeGroup"]);
    }

    #[test]
    fn a_kind_that_is_not_known_is_told_with_the_nearest_one() {
        let read = |text: &str| drumlin_crd::yaml::from_str::<FilePrune>(text);
        let error = read("{kinds: [Volum]}").unwrap_err().to_string();
        assert!(error.ends_with("; did you mean Volume?"), "{error}");
        let error = read("{kinds: [disk]}").unwrap_err().to_string();
        assert!(error.ends_with("SnapshotSchedule"), "{error}");
    }

    #[test]
    fn each_flag_wins_over_its_key_alone() {
        let file = || read("{mode: auto, grace: 1d, kinds: [Volume, dsnap]}");
        let of_file = prune(&PruneArguments::default(), file()).unwrap();
        assert_eq!(of_file.grace_seconds, 86_400);
        assert_eq!(kinds_of(&of_file), ["Snapshot", "Volume"]);
        let flags = PruneArguments {
            prune_kinds: vec![ObjectKind::VolumeGroup],
            ..PruneArguments::default()
        };
        let mixed = prune(&flags, file()).unwrap();
        assert_eq!(mixed.grace_seconds, 86_400);
        assert_eq!(kinds_of(&mixed), ["VolumeGroup"]);
        let never = PruneArguments {
            prune: Some(PruneWhen::Never),
            ..PruneArguments::default()
        };
        assert_eq!(prune(&never, file()), None);
    }

    #[test]
    fn owners_are_one_user_or_several_by_name_or_number() {
        let read = |text: &str| drumlin_crd::yaml::from_str::<FileOwners>(text);
        for (text, users) in [
            ("root", vec![0]),
            ("65533", vec![65533]),
            ("'65533'", vec![65533]),
            ("[root, 65533]", vec![0, 65533]),
            ("[]", vec![]),
        ] {
            assert_eq!(read(text).unwrap(), FileOwners(users), "{text}");
        }
        for (wrong, why) in [
            ("no-such-user", "does not exist"),
            ("[root, no-such-user]", "does not exist"),
            ("-1", "the name or number of a user"),
            ("4294967296", "no number of a user"),
            ("{name: root}", "the name or number of a user"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
