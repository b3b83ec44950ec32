//! A class of the configuration file.

use std::{path::Path, sync::Arc};

use anyhow::bail;
use drumlin_core::{
    backend::{
        Backend,
        directory::{Directory, DirectorySettings},
        encrypted::{ClassKeys, Encrypted, EncryptedSettings, EncryptionSettings},
        lvm::{Lvm, LvmSettings},
    },
    host::io_limits::IoLimits,
    ops::{Class, TrashPolicy, tenant},
    types::ClassName,
};
use drumlin_crd::Selector;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        file::Fixed,
        key::{AtKey, refused},
    },
    directory::FileDirectory,
    encryption::FileEncryption,
    limits::FileLimits,
    node_labels::{Labels, check_key, check_value},
    thick::FileThick,
    thin::FileThin,
    trash::FileTrash,
    values::Nodes,
};

/// Where a class has its images, with all settings.
#[derive(Debug, Clone)]
pub(crate) enum Storage {
    /// In a directory.
    Directory(DirectorySettings),
    /// In a volume group.
    Lvm(LvmSettings),
}

/// A class of the configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {name: fast, directory: {path: /srv/images}}"
)]
pub(crate) struct FileClass {
    name: ClassName,
    #[serde(default)]
    default: bool,
    /// The labels of the nodes that have the class; without it all nodes have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_selector: Option<Selector>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<FileDirectory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thin: Option<FileThin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thick: Option<FileThick>,
    /// How long deleted volumes are kept; without it they are destroyed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trash: Option<FileTrash>,
    /// The highest rates of each volume; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<FileLimits>,
    /// How its volumes are encrypted; without it they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<FileEncryption>,
}

impl FileClass {
    /// The class of an agent without configured classes: image files in its state directory.
    pub(super) fn built_in(state_dir: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            name: "default".parse()?,
            default: true,
            node_selector: None,
            directory: Some(FileDirectory::built_in(state_dir.join("images"))),
            thin: None,
            thick: None,
            trash: None,
            limits: None,
            encryption: None,
        })
    }

    /// Has its directory created when it is missing, if it lies directly in the state directory, and remembered there.
    pub(crate) fn create_in(&mut self, state_dir: &Path) {
        if let Some(directory) = &mut self.directory {
            directory.create_in(state_dir);
        }
    }

    /// The name of the class.
    pub(crate) fn name(&self) -> &ClassName {
        &self.name
    }

    /// Returns true for the default class of its nodes.
    pub(super) fn is_default(&self) -> bool {
        self.default
    }

    /// Returns true if only some nodes have the class.
    pub(crate) fn has_selector(&self) -> bool {
        self.node_selector.is_some()
    }

    /// Returns true if a node with these labels has the class.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        let selector = self.node_selector.as_ref();
        selector.is_none_or(|selector| selector.matches(Some(labels)))
    }

    /// Returns true if both are the same class over the same storage with the same settings.
    pub(crate) fn has_storage_of(&self, other: &Self) -> bool {
        self.name == other.name
            && self.directory == other.directory
            && self.thin == other.thin
            && self.thick == other.thick
    }

    /// The same over the storage of another one.
    pub(crate) fn with_storage_of(&self, other: &Self) -> Self {
        Self {
            directory: other.directory.clone(),
            thin: other.thin.clone(),
            thick: other.thick.clone(),
            ..self.clone()
        }
    }

    /// The keys of the storage that differ, such as `directory.path`.
    pub(crate) fn changes_of_storage(&self, other: &Self) -> Vec<String> {
        let storage = |class: &Self| {
            let values = serde_json::to_value(class).unwrap_or_default();
            let mut values = values.as_object().cloned().unwrap_or_default();
            values.retain(|key, _| ["directory", "thin", "thick"].contains(&key.as_str()));
            Fixed::of(values)
        };
        storage(self).differences(&storage(other))
    }

    /// The directory of its images, if it has one.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(|directory| &*directory.path)
    }

    /// The class with its back end.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(super) fn build(&self, nodes: &Nodes) -> anyhow::Result<Class> {
        // A class without a back end is none, so what is beside it comes first: all that is wrong is told.
        let (trash, limits, encryption) = (self.trash()?, self.limits()?, self.encryption()?);
        let backend: Arc<dyn Backend> = match self.storage(nodes)? {
            Storage::Directory(settings) => Arc::new(Directory::new(settings)),
            Storage::Lvm(settings) => Arc::new(Lvm::new(settings)),
        };
        let keys = Arc::new(ClassKeys::new(encryption));
        let settings = EncryptedSettings {
            node: nodes.here.clone(),
            class: self.name.clone(),
            tenant,
        };
        Ok(Class {
            name: self.name.clone(),
            // A class that does not encrypt may have done so.
            backend: Arc::new(Encrypted::new(backend, Arc::clone(&keys), settings)),
            trash,
            limits,
            keys,
        })
    }

    /// How long deleted volumes are kept.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(crate) fn trash(&self) -> anyhow::Result<Option<TrashPolicy>> {
        self.trash.as_ref().map(FileTrash::policy).transpose()
    }

    /// The highest rates of each of its volumes.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(crate) fn limits(&self) -> anyhow::Result<IoLimits> {
        let limits = self.limits.as_ref().map(FileLimits::limits).transpose()?;
        Ok(limits.unwrap_or_default())
    }

    /// How its volumes are encrypted.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(crate) fn encryption(&self) -> anyhow::Result<Option<EncryptionSettings>> {
        let encryption = self.encryption.as_ref();
        encryption.map(FileEncryption::settings).transpose()
    }

    /// Where the class has its images.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(super) fn storage(&self, nodes: &Nodes) -> anyhow::Result<Storage> {
        self.check_selector()?;
        let name = &self.name;
        Ok(match (&self.directory, &self.thin, &self.thick) {
            (Some(directory), None, None) => Storage::Directory(directory.settings(nodes)?),
            (None, Some(thin), None) => Storage::Lvm(thin.settings(name, nodes)?),
            (None, None, Some(thick)) => Storage::Lvm(thick.settings(name, nodes)?),
            (None, None, None) => {
                bail!(
                    "has no back end; add `directory: {{path: …}}`, `thin: {{volumeGroup: …, pool: …}}` or `thick: {{volumeGroup: …}}`"
                )
            }
            _ => bail!("has more than one back end; keep one of directory, thin and thick"),
        })
    }

    fn check_selector(&self) -> anyhow::Result<()> {
        let Some(selector) = &self.node_selector else {
            return Ok(());
        };
        if let Some((field, valid)) = selector.problems().first() {
            return refused(&format!("nodeSelector.{field}"), valid);
        }
        for (key, value) in &selector.match_labels {
            check_key(key).at_key("nodeSelector.matchLabels")?;
            check_value(value).at_key(&format!("nodeSelector.matchLabels.{key}"))?;
        }
        for (index, requirement) in selector.match_expressions.iter().enumerate() {
            let field = format!("nodeSelector.matchExpressions.{index}");
            check_key(&requirement.key).at_key(&format!("{field}.key"))?;
            for value in &requirement.values {
                check_value(value).at_key(&format!("{field}.values"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use drumlin_core::types::NodeName;

    fn here(node: &NodeName) -> Nodes {
        Nodes {
            here: node.clone(),
            former: Vec::new(),
        }
    }

    fn load(class: &str) -> anyhow::Result<Vec<Class>> {
        let text = format!("[{{name: a, {class}}}]");
        let file: Vec<FileClass> = drumlin_crd::yaml::from_str(&text)?;
        let node = "n".parse()?;
        file.iter().map(|class| class.build(&here(&node))).collect()
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

    fn selected(selector: &str, labels: &[(&str, &str)]) -> anyhow::Result<bool> {
        let text = format!("{{name: a, nodeSelector: {selector}, thick: {{volumeGroup: vg0}}}}");
        let class: FileClass = drumlin_crd::yaml::from_str(&text)?;
        class.build(&here(&"n".parse()?))?;
        let labels = labels.iter();
        let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Ok(class.selects(&labels.collect()))
    }

    #[test]
    fn a_class_is_on_the_nodes_that_its_selector_matches() {
        let nvme = [("disk", "nvme"), ("example.com/rack", "1")];
        for (selector, is_selected) in [
            ("{}", true),
            ("{matchLabels: {disk: nvme}}", true),
            ("{matchLabels: {disk: nvme, example.com/rack: '2'}}", false),
            (
                "{matchExpressions: [{key: disk, operator: In, values: [ssd, nvme]}]}",
                true,
            ),
            (
                "{matchExpressions: [{key: disk, operator: NotIn, values: [nvme]}]}",
                false,
            ),
            (
                "{matchExpressions: [{key: gpu, operator: DoesNotExist}]}",
                true,
            ),
            (
                "{matchLabels: {disk: nvme}, matchExpressions: [{key: gpu, operator: Exists}]}",
                false,
            ),
        ] {
            assert_eq!(
                selected(selector, &nvme).unwrap(),
                is_selected,
                "{selector}"
            );
        }
        assert!(!selected("{matchLabels: {disk: nvme}}", &[]).unwrap());
    }

    #[test]
    fn a_selector_that_is_not_valid_is_refused_with_its_field() {
        for (selector, field) in [
            ("{disk: nvme}", "disk"),
            ("{matchLabels: {'-a': b}}", "nodeSelector.matchLabels"),
            (
                "{matchLabels: {disk: 'a b'}}",
                "nodeSelector.matchLabels.disk",
            ),
            (
                "{matchExpressions: [{key: a, operator: In}]}",
                "matchExpressions.0.values",
            ),
            (
                "{matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
                "matchExpressions.0.values",
            ),
            (
                "{matchExpressions: [{key: '', operator: Exists}]}",
                "matchExpressions.0.key",
            ),
            (
                "{matchExpressions: [{key: a/, operator: Exists}]}",
                "matchExpressions.0.key",
            ),
            (
                "{matchExpressions: [{key: a, operator: Gt, values: ['1']}]}",
                "Gt",
            ),
        ] {
            let error = format!("{:#}", selected(selector, &[]).unwrap_err());
            assert!(error.contains(field), "{selector}: {error}");
        }
    }

    #[test]
    fn a_class_is_written_and_read_back_as_it_was() {
        for class in [
            "directory: {path: /a, adoptNode: [b], fsType: xfs, allocation: thick, longestFreeze: 5}, trash: {keep: 7d, maxFill: 80%}, encryption: {type: luks2, key: {file: /k}}",
            "thin: {volumeGroup: vg0, pool: p, create: {size: 80%VG}, overcommit: 1.5, warnAt: 70%}",
            "thick: {volumeGroup: vg0, adoptNode: b, layout: raid1, mirrors: 2, wipe: discard}",
        ] {
            let text = format!(
                "{{name: a, default: true, nodeSelector: {{matchLabels: {{disk: nvme}}}}, {class}}}"
            );
            let class: FileClass = drumlin_crd::yaml::from_str(&text).unwrap();
            let written = serde_json::to_string(&class).unwrap();
            let read: FileClass = serde_json::from_str(&written).unwrap();
            assert_eq!(read, class, "{written}");
            assert!(read.has_storage_of(&class));
        }
    }
}
