//! The keys of a class: where they come from, and reading them. They are read each time, and never kept.

use std::{
    fmt,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::owner::KeyOwner;
use crate::{
    Error, Kind, Result, blocking,
    host::{exec::Program, lock, luks::LuksKey},
    types::{ClassName, NodeName},
};

/// The directory of a service's credentials (systemd.exec(5)).
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// How long a program may take to print a key; callers wait for it with the volume locked.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// The UUID namespace of the fingerprints of keys.
const FINGERPRINTS: uuid::Uuid = uuid::Uuid::from_u128(0x1f5c_3b1a_9d1e_5c53_8a52_6d0b_4b5f_7a20);

/// Where a key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// The bytes of a file.
    File(PathBuf),
    /// A credential that systemd hands to the agent, by its name.
    Credential(String),
    /// What a program prints: its absolute path, and its arguments.
    Command(Vec<String>),
}

/// How the volumes of a class are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptionSettings {
    /// The key that new volumes get, and to which others are re-keyed.
    pub current: KeySource,
    /// Former keys: they open what has not been re-keyed.
    pub previous: Vec<KeySource>,
}

/// The settings of a class at a time; a reload of the configuration replaces them while the class is used.
#[derive(Debug, Default)]
pub struct ClassKeys(Mutex<Option<Arc<EncryptionSettings>>>);

/// The class that asks for a key.
#[derive(Debug, Clone)]
pub(super) struct Asking {
    pub(super) node: NodeName,
    pub(super) class: ClassName,
}

impl ClassKeys {
    /// Those of a class with these settings; none if it does not encrypt.
    pub fn new(settings: Option<EncryptionSettings>) -> Self {
        Self(Mutex::new(settings.map(Arc::new)))
    }

    /// The settings now.
    pub fn now(&self) -> Option<Arc<EncryptionSettings>> {
        lock(&self.0).clone()
    }

    /// Replaces the settings; returns true if they are other ones.
    pub fn replace(&self, settings: Option<EncryptionSettings>) -> bool {
        let mut now = lock(&self.0);
        let is_other = now.as_deref() != settings.as_ref();
        *now = settings.map(Arc::new);
        is_other
    }
}

impl EncryptionSettings {
    /// All keys, the current one first.
    pub fn all(&self) -> impl Iterator<Item = &KeySource> {
        std::iter::once(&self.current).chain(&self.previous)
    }
}

impl KeySource {
    /// Returns true if it may have another key for another volume.
    pub(super) fn tells_owners_apart(&self) -> bool {
        matches!(self, Self::Command(_))
    }

    /// Checks what can be checked without a volume: that a file or credential can be read and is a key, and that a program
    /// exists.
    ///
    /// # Errors
    /// `Precondition`, naming what is wrong.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File(path) => self.read_file(path).map(drop),
            Self::Credential(name) => self.read_file(&credential(name)?).map(drop),
            Self::Command(words) => match words.first().map(Path::new) {
                Some(program) if program.is_file() => Ok(()),
                _ => Err(Error::new(Kind::Precondition, format!("{self} is missing"))),
            },
        }
    }

    /// Reads the key for a volume.
    ///
    /// # Errors
    /// `Precondition` when there is none; the message names the source, never the key.
    pub(super) async fn read(&self, asking: &Asking, owner: &KeyOwner) -> Result<LuksKey> {
        let this = self.clone();
        match self {
            Self::File(path) => {
                let path = path.clone();
                blocking(move || this.read_file(&path)).await
            }
            Self::Credential(name) => {
                let path = credential(name)?;
                blocking(move || this.read_file(&path)).await
            }
            Self::Command(words) => self.ask(words, asking, owner).await,
        }
    }

    fn read_file(&self, path: &Path) -> Result<LuksKey> {
        let mut bytes = Vec::with_capacity(LuksKey::LONGEST + 1);
        let limit = u64::try_from(LuksKey::LONGEST + 1).unwrap_or(u64::MAX);
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(|error| self.missing().because(error));
        // Also what was read of a file that is no key is erased.
        let key = LuksKey::new(bytes);
        read?;
        key.map_err(|error| self.explain(&error))
    }

    async fn ask(&self, words: &[String], asking: &Asking, owner: &KeyOwner) -> Result<LuksKey> {
        let Some((program, arguments)) = words.split_first() else {
            return Err(self.missing());
        };
        let Tenants { namespace, uid } = Tenants::of(owner);
        let Asking { node, class } = asking;
        let program = Program::secretive(Path::new(program))
            .args(arguments)
            .environment("DRUMLIN_CLASS", class.as_str())
            .environment("DRUMLIN_NODE", node.as_str())
            .environment("DRUMLIN_VOLUME_KEY", owner.volume.clone())
            .environment("DRUMLIN_NAMESPACE", namespace)
            .environment("DRUMLIN_NAMESPACE_UID", uid);
        let output = tokio::time::timeout(COMMAND_LIMIT, program.run()).await;
        let output = output.map_err(|_| {
            let limit = COMMAND_LIMIT.as_secs();
            Error::new(
                Kind::Precondition,
                format!("{self} has printed no key within {limit} s"),
            )
        })?;
        let output = output.map_err(|error| self.missing().because(error))?;
        LuksKey::new(output.stdout).map_err(|error| self.explain(&error))
    }

    fn missing(&self) -> Error {
        Error::new(
            Kind::Precondition,
            format!("could not get the key of {self}"),
        )
    }

    fn explain(&self, error: &Error) -> Error {
        Error::new(Kind::Precondition, format!("{self}: {error}"))
    }
}

/// What a program is told of a tenant; empty where it is not known.
struct Tenants {
    namespace: String,
    uid: String,
}

impl Tenants {
    fn of(owner: &KeyOwner) -> Self {
        Self {
            namespace: owner.tenant.namespace.clone().unwrap_or_default(),
            uid: owner.tenant.uid.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "key file {}", path.display()),
            Self::Credential(name) => write!(f, "credential {name}"),
            // Its arguments may be secrets of the administrator.
            Self::Command(words) => {
                let program = words.first().map_or("", String::as_str);
                write!(f, "key program {program}")
            }
        }
    }
}

/// The path of a credential.
///
/// # Errors
/// `Precondition` when the agent was started without credentials.
fn credential(name: &str) -> Result<PathBuf> {
    let directory = std::env::var_os(CREDENTIALS).ok_or_else(|| {
        Error::new(
            Kind::Precondition,
            format!(
                "could not get the key of credential {name}: the agent has no credentials ({CREDENTIALS} is not set); add LoadCredential= or LoadCredentialEncrypted= to its unit"
            ),
        )
    })?;
    Ok(Path::new(&directory).join(name))
}

/// What a record says of a key: enough to tell the keys of a class apart, too little to guess a random key by.
pub(super) fn fingerprint(key: &LuksKey) -> String {
    let digest = uuid::Uuid::new_v5(&FINGERPRINTS, key.bytes())
        .simple()
        .to_string();
    digest.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking() -> (Asking, KeyOwner) {
        let asking = Asking {
            node: "n".parse().unwrap(),
            class: "c".parse().unwrap(),
        };
        let owner = KeyOwner {
            volume: "11111111".to_owned(),
            ..KeyOwner::default()
        };
        (asking, owner)
    }

    async fn read(source: &KeySource) -> Result<LuksKey> {
        let (asking, owner) = asking();
        source.read(&asking, &owner).await
    }

    #[tokio::test]
    async fn a_key_is_the_bytes_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let source = KeySource::File(path.clone());
        let error = read(&source).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        assert!(error.to_string().contains(&path.display().to_string()));
        std::fs::write(&path, "secret").unwrap();
        let error = read(&source).await.unwrap_err().chain();
        assert!(
            error.contains("6 bytes") && !error.contains("secret"),
            "{error}"
        );
        std::fs::write(&path, [7; 40]).unwrap();
        let key = read(&source).await.unwrap();
        assert_eq!(key.bytes(), [7; 40]);
        assert_eq!(fingerprint(&key).len(), 8);
        source.check().unwrap();
    }

    #[tokio::test]
    async fn a_program_is_told_the_volume_and_prints_its_key() {
        let command = |script: &str| {
            let words = ["/bin/sh", "-c", script];
            KeySource::Command(words.into_iter().map(str::to_owned).collect())
        };
        let told =
            "printf '%s/%s/0123456789abcdef0123456789abcdef' $DRUMLIN_CLASS $DRUMLIN_VOLUME_KEY";
        let key = read(&command(told)).await.unwrap();
        assert_eq!(key.bytes(), b"c/11111111/0123456789abcdef0123456789abcdef");
        let failing = "printf secret; printf secret >&2; exit 3";
        let error = read(&command(failing)).await.unwrap_err().chain();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(!error.replace(failing, "").contains("secret"), "{error}");
        let missing = KeySource::Command(vec!["/nowhere/key".to_owned()]);
        assert!(missing.check().is_err() && read(&missing).await.is_err());
    }
}
