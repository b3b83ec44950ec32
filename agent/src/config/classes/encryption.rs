//! How a class encrypts its volumes.

use std::path::{Path, PathBuf};

use anyhow::bail;
use drumlin_core::backend::encrypted::{EncryptionSettings, KeySource};
use serde::{Deserialize, Serialize};

use super::super::key::{AtKey, refused};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {type: luks2, key: {file: /etc/drumlin/key}}"
)]
pub(super) struct FileEncryption {
    /// The format of the header. There is one so far, and it is named so that another one can be added.
    #[serde(rename = "type")]
    kind: FileType,
    key: FileKey,
    /// Former keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    previous_keys: Vec<FileKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileType {
    Luks2,
}

/// Where a key comes from: one of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a map with file, credential or command"
)]
struct FileKey {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
}

impl FileEncryption {
    /// The settings.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(super) fn settings(&self) -> anyhow::Result<EncryptionSettings> {
        let FileType::Luks2 = self.kind;
        let previous = self.previous_keys.iter().enumerate();
        let previous = previous.map(|(index, key)| {
            let source = key.source();
            source.at_key(&format!("encryption.previousKeys.{index}"))
        });
        let settings = EncryptionSettings {
            current: self.key.source().at_key("encryption.key")?,
            previous: previous.collect::<anyhow::Result<_>>()?,
        };
        if settings.previous.contains(&settings.current) {
            return refused(
                "encryption.previousKeys",
                "has the current key; a former key has another source",
            );
        }
        Ok(settings)
    }
}

impl FileKey {
    fn source(&self) -> anyhow::Result<KeySource> {
        match (&self.file, &self.credential, &self.command) {
            (Some(path), None, None) => {
                check_path(path).at_key("file")?;
                Ok(KeySource::File(path.clone()))
            }
            (None, Some(name), None) => {
                check_credential(name).at_key("credential")?;
                Ok(KeySource::Credential(name.clone()))
            }
            (None, None, Some(words)) => {
                let Some(program) = words.first() else {
                    return refused("command", "is empty; name a program by its absolute path");
                };
                check_path(Path::new(program)).at_key("command.0")?;
                Ok(KeySource::Command(words.clone()))
            }
            (None, None, None) => bail!(
                "has no source; add `file: /PATH`, `credential: NAME` or `command: [/PROGRAM, …]`"
            ),
            _ => bail!("has more than one source; keep one of file, credential and command"),
        }
    }
}

fn check_path(path: &Path) -> anyhow::Result<()> {
    if !path.is_absolute() {
        bail!("{:?} must be an absolute path", path.display().to_string());
    }
    Ok(())
}

/// Refuses a name that systemd does not give to a credential, and that would lead out of its directory
/// (`credential_name_valid`).
fn check_credential(name: &str) -> anyhow::Result<()> {
    let is_name = !name.is_empty()
        && name.len() <= 255
        && !name.contains('/')
        && ![".", ".."].contains(&name)
        && name.chars().all(|one| one.is_ascii_graphic());
    if !is_name {
        bail!("{name:?} is no name of a credential: a file name of printable characters");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> anyhow::Result<EncryptionSettings> {
        drumlin_crd::yaml::from_str::<FileEncryption>(text)?.settings()
    }

    #[test]
    fn a_key_comes_from_a_file_a_credential_or_a_program() {
        let given = "{type: luks2, key: {file: /k/a}, previousKeys: [{credential: old}, {command: [/bin/key, -n, a]}]}";
        let words = ["/bin/key", "-n", "a"].map(str::to_owned);
        let expected = EncryptionSettings {
            current: KeySource::File("/k/a".into()),
            previous: vec![
                KeySource::Credential("old".to_owned()),
                KeySource::Command(words.to_vec()),
            ],
        };
        assert_eq!(settings(given).unwrap(), expected);
        let file: FileEncryption = drumlin_crd::yaml::from_str(given).unwrap();
        let written = serde_json::to_string(&file).unwrap();
        assert_eq!(
            serde_json::from_str::<FileEncryption>(&written).unwrap(),
            file
        );
    }

    #[test]
    fn a_setting_that_is_not_valid_is_named() {
        for (wrong, field) in [
            ("{type: luks1, key: {file: /k}}", "luks2"),
            ("{key: {file: /k}}", "type"),
            ("{type: luks2}", "key"),
            ("{type: luks2, key: {}}", "encryption.key"),
            ("{type: luks2, key: {file: k}}", "encryption.key: file"),
            (
                "{type: luks2, key: {file: /k, credential: c}}",
                "encryption.key: has more than one",
            ),
            ("{type: luks2, key: {credential: ../c}}", "credential"),
            ("{type: luks2, key: {credential: ''}}", "credential"),
            ("{type: luks2, key: {command: []}}", "command"),
            ("{type: luks2, key: {command: [key]}}", "command.0"),
            ("{type: luks2, key: {vault: /k}}", "vault"),
            (
                "{type: luks2, key: {file: /k}, previousKeys: [{}]}",
                "encryption.previousKeys.0",
            ),
            (
                "{type: luks2, key: {file: /k}, previousKeys: [{file: /k}]}",
                "encryption.previousKeys",
            ),
        ] {
            let error = format!("{:#}", settings(wrong).unwrap_err());
            assert!(error.contains(field), "{wrong}: {error}");
        }
    }
}
