//! The classes of the configuration file: each a name and a back end.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use drumlin_core::{
    backend::{
        Backend,
        directory::{Allocation, Directory, DirectorySettings, Missing},
        lvm::{Thin, ThinSettings},
    },
    host::FileSystem,
    ops::Class,
    types::{ClassName, NodeName},
};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FileClass {
    name: String,
    #[serde(default)]
    default: bool,
    directory: Option<FileDirectory>,
    thin: Option<FileThin>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileDirectory {
    path: PathBuf,
    #[serde(default)]
    fs_type: Option<String>,
    #[serde(default)]
    allocation: FileAllocation,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileThin {
    volume_group: String,
    pool: String,
    #[serde(default = "nothing_twice")]
    overcommit: f64,
    #[serde(default)]
    fs_type: Option<String>,
}

fn nothing_twice() -> f64 {
    1.0
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileAllocation {
    #[default]
    Thin,
    Thick,
}

/// The classes of the file, the default first; without any, one over images in the state directory.
pub(super) fn classes(
    mut file: Vec<FileClass>,
    node: &NodeName,
    state_dir: &Path,
) -> anyhow::Result<Vec<Class>> {
    if file.is_empty() {
        let settings = DirectorySettings {
            path: state_dir.join("images"),
            allocation: Allocation::Thin,
            file_system: FileSystem::Ext4,
            missing: Missing::Create,
        };
        return Ok(vec![Class {
            name: "default".parse()?,
            backend: Arc::new(Directory::new(settings)),
        }]);
    }
    let defaults: Vec<&str> = file
        .iter()
        .filter(|class| class.default)
        .map(|class| class.name.as_str())
        .collect();
    match (defaults.as_slice(), file.len()) {
        ([_], _) | ([], 1) => {}
        ([], _) => bail!("classes: none is the default; set `default: true` on one"),
        (several, _) => bail!("classes: several are the default: {}", several.join(", ")),
    }
    check_directories(&file)?;
    file.sort_by_key(|class| !class.default);
    file.into_iter()
        .enumerate()
        .map(|(index, class)| {
            one_class(&class, node).with_context(|| format!("classes[{index}] ({})", class.name))
        })
        .collect()
}

/// Each class cleans up in its directory as if it were alone there.
fn check_directories(file: &[FileClass]) -> anyhow::Result<()> {
    let mut seen: Vec<(&str, &Path)> = Vec::new();
    for class in file {
        let Some(directory) = &class.directory else {
            continue;
        };
        for (name, path) in &seen {
            if directory.path.starts_with(path) || path.starts_with(&directory.path) {
                bail!(
                    "classes: the directories of {name} and {} are one, or one is in the other; give each its own",
                    class.name
                );
            }
        }
        seen.push((&class.name, &directory.path));
    }
    Ok(())
}

fn one_class(class: &FileClass, node: &NodeName) -> anyhow::Result<Class> {
    let name: ClassName = class.name.parse().context("name")?;
    let backend: Arc<dyn Backend> = match (&class.directory, &class.thin) {
        (Some(directory), None) => Arc::new(Directory::new(directory.settings()?)),
        (None, Some(thin)) => Arc::new(Thin::new(thin.settings(&name, node)?)),
        (None, None) => {
            bail!(
                "has no back end; add `directory: {{path: …}}` or `thin: {{volumeGroup: …, pool: …}}`"
            )
        }
        _ => bail!("has more than one back end; keep one of directory and thin"),
    };
    Ok(Class { name, backend })
}

impl FileDirectory {
    fn settings(&self) -> anyhow::Result<DirectorySettings> {
        if !self.path.is_absolute() {
            bail!("directory.path {} is not absolute", self.path.display());
        }
        Ok(DirectorySettings {
            path: self.path.clone(),
            allocation: match self.allocation {
                FileAllocation::Thin => Allocation::Thin,
                FileAllocation::Thick => Allocation::Thick,
            },
            file_system: file_system(self.fs_type.as_deref()).context("directory.fsType")?,
            missing: Missing::Refuse,
        })
    }
}

impl FileThin {
    fn settings(&self, class: &ClassName, node: &NodeName) -> anyhow::Result<ThinSettings> {
        check_lvm_name(&self.volume_group).context("thin.volumeGroup")?;
        check_lvm_name(&self.pool).context("thin.pool")?;
        if !(1.0..=1000.0).contains(&self.overcommit) {
            bail!(
                "thin.overcommit {} is not between 1 (nothing is promised twice) and 1000",
                self.overcommit
            );
        }
        Ok(ThinSettings {
            volume_group: self.volume_group.clone(),
            pool: self.pool.clone(),
            overcommit: format!("{:.0}", self.overcommit * 100.0).parse()?,
            class: class.clone(),
            node: node.clone(),
            file_system: file_system(self.fs_type.as_deref()).context("thin.fsType")?,
        })
    }
}

fn file_system(name: Option<&str>) -> anyhow::Result<FileSystem> {
    Ok(name
        .map(str::parse)
        .transpose()?
        .unwrap_or(FileSystem::Ext4))
}

/// A name by LVM's own rules, so that it cannot be taken for an option or a path.
fn check_lvm_name(name: &str) -> anyhow::Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    let is_name = (1..=60).contains(&name.len()) && name.bytes().all(allowed);
    if !is_name || name.starts_with('-') || name == "." || name == ".." {
        bail!(
            "{name:?} is no name of LVM's: 1 to 60 letters, digits, '+', '_', '.' or '-', not beginning with '-'"
        );
    }
    Ok(())
}
