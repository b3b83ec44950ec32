//! The list of classes.

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail};
use drumlin_core::{
    backend::{
        Backend,
        directory::{Allocation, Directory, DirectorySettings, Missing},
        lvm::Lvm,
    },
    host::FileSystem,
    ops::{Class, adoption},
    types::ClassName,
};
use serde::Deserialize;

use super::{directory::FileDirectory, thick::FileThick, thin::FileThin, values::Nodes};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::config) struct FileClass {
    name: String,
    #[serde(default)]
    default: bool,
    directory: Option<FileDirectory>,
    thin: Option<FileThin>,
    thick: Option<FileThick>,
}

/// The classes of the configuration file, the default first. Without any, one directory class in the state directory.
pub(in crate::config) fn classes(
    mut file: Vec<FileClass>,
    nodes: &Nodes<'_>,
    state_dir: &Path,
) -> anyhow::Result<Vec<Class>> {
    if file.is_empty() {
        let settings = DirectorySettings {
            path: state_dir.join("images"),
            allocation: Allocation::Thin,
            file_system: FileSystem::Ext4,
            missing: Missing::Create,
            longest_freeze: None,
            node: nodes.here.clone(),
            adoption: adoption(nodes.former.to_vec()),
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
        ([], _) => bail!("classes: no class is the default; set `default: true` on one"),
        (several, _) => bail!(
            "classes: more than one class is the default: {}; keep `default: true` on one",
            several.join(", ")
        ),
    }
    check_directories(&file)?;
    file.sort_by_key(|class| !class.default);
    file.into_iter()
        .enumerate()
        .map(|(index, class)| {
            one_class(&class, nodes).with_context(|| format!("classes[{index}] ({})", class.name))
        })
        .collect()
}

/// Each class cleans up its directory and must not share it.
fn check_directories(file: &[FileClass]) -> anyhow::Result<()> {
    let mut seen: Vec<(&str, &Path)> = Vec::new();
    for class in file {
        let Some(directory) = &class.directory else {
            continue;
        };
        for (name, path) in &seen {
            if directory.path.starts_with(path) || path.starts_with(&directory.path) {
                bail!(
                    "classes: the directories of {name} and {} are the same, or one contains the other; give each class its own directory",
                    class.name
                );
            }
        }
        seen.push((&class.name, &directory.path));
    }
    Ok(())
}

fn one_class(class: &FileClass, nodes: &Nodes<'_>) -> anyhow::Result<Class> {
    let name: ClassName = class.name.parse().context("name")?;
    let backend: Arc<dyn Backend> = match (&class.directory, &class.thin, &class.thick) {
        (Some(directory), None, None) => Arc::new(Directory::new(directory.settings(nodes)?)),
        (None, Some(thin), None) => Arc::new(Lvm::new(thin.settings(&name, nodes)?)),
        (None, None, Some(thick)) => Arc::new(Lvm::new(thick.settings(&name, nodes)?)),
        (None, None, None) => {
            bail!(
                "has no back end; add `directory: {{path: …}}`, `thin: {{volumeGroup: …, pool: …}}` or `thick: {{volumeGroup: …}}`"
            )
        }
        _ => bail!("has more than one back end; keep one of directory, thin and thick"),
    };
    Ok(Class { name, backend })
}

#[cfg(test)]
mod tests {
    use super::*;

    use drumlin_core::types::NodeName;

    fn here(node: &NodeName) -> Nodes<'_> {
        Nodes {
            here: node,
            former: &[],
        }
    }

    fn load(class: &str) -> anyhow::Result<Vec<Class>> {
        let text = format!("[{{name: a, {class}}}]");
        let file: Vec<FileClass> = drumlin_crd::yaml::from_str(&text)?;
        classes(file, &here(&"n".parse()?), Path::new("/state"))
    }

    #[test]
    fn a_class_has_one_back_end() {
        assert_eq!(load("thick: {volumeGroup: vg0}").unwrap().len(), 1);
        assert_eq!(load("thin: {volumeGroup: vg0, pool: p}").unwrap().len(), 1);
        for wrong in [
            "thick: {volumeGroup: vg0}, directory: {path: /a}",
            "thick: {volumeGroup: vg0}, thin: {volumeGroup: vg0, pool: p}",
            "thick: {volumeGroup: -vg0}",
            "thin: {volumeGroup: vg0, pool: a/b}",
            "thin: {volumeGroup: vg0, pool: p, overcommit: 0.5}",
        ] {
            assert!(load(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_time_that_writers_may_wait_has_bounds() {
        for (kind, class) in [
            ("thick", "volumeGroup: vg0"),
            ("thin", "volumeGroup: vg0, pool: p"),
            ("directory", "path: /a"),
        ] {
            let load =
                |seconds: &str| load(&format!("{kind}: {{{class}, longestFreeze: {seconds}}}"));
            for allowed in ["1", "60", "600"] {
                load(allowed).unwrap();
            }
            for wrong in ["0", "601", "5000000000"] {
                let error = format!("{:#}", load(wrong).unwrap_err());
                assert!(error.contains(&format!("{kind}.longestFreeze")), "{error}");
                assert!(error.contains("between 1 and 600"), "{error}");
            }
        }
    }
}
