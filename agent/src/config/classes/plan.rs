//! All classes of a configuration, for whichever nodes have them.

use std::path::Path;

use anyhow::anyhow;
use drumlin_core::{
    ops::{Class, Classes},
    types::ClassName,
};

use super::{
    super::key::{AtKey, refused},
    class::{FileClass, Storage},
    node_labels::Labels,
    values::Nodes,
};

/// The classes of a configuration, checked, the default ones first, and the labels of this node in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassPlan {
    nodes: Nodes,
    classes: Vec<FileClass>,
    labels: Labels,
    origin: Origin,
    /// The class that there is where the file names none.
    built_in: FileClass,
}

/// Where the classes are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    File,
    /// The file names none.
    BuiltIn,
}

impl ClassPlan {
    /// Checks the classes of the file. Without any there is one over a directory in the state directory.
    ///
    /// # Errors
    /// The error names the class and the field.
    pub(in crate::config) fn new(
        mut classes: Vec<FileClass>,
        nodes: Nodes,
        labels: Labels,
        state_dir: &Path,
    ) -> anyhow::Result<Self> {
        let mut built_in = FileClass::built_in(state_dir)?;
        built_in.create_in(state_dir);
        let origin = if classes.is_empty() {
            classes.push(built_in.clone());
            Origin::BuiltIn
        } else {
            Origin::File
        };
        for class in &mut classes {
            class.create_in(state_dir);
        }
        for (index, class) in classes.iter().enumerate() {
            let built = class.build(&nodes);
            let name = format!("classes[{index}] ({})", class.name());
            built.within(&format!("classes.{index}"), name)?;
        }
        let names: Vec<ClassName> = classes.iter().map(|class| class.name().clone()).collect();
        Classes::check_names(&nodes.here, &names).at_key("classes")?;
        check_directories(&classes)?;
        check_defaults(&classes)?;
        // Of the default classes of a node the one that selects it goes before the one that all nodes have.
        classes.sort_by_key(|class| (!class.is_default(), !class.has_selector()));
        Ok(Self {
            nodes,
            classes,
            labels,
            origin,
            built_in,
        })
    }

    /// Returns true if the file names the classes.
    pub(crate) fn is_of_file(&self) -> bool {
        self.origin == Origin::File
    }

    /// Returns true if a class has the storage of the one that there is without any.
    pub(crate) fn is_like_built_in(&self, class: &FileClass) -> bool {
        let built_in = &self.built_in;
        built_in.name() == class.name() && built_in.changes_of_storage(class).is_empty()
    }

    /// The classes over directories as the file would name them.
    pub(crate) fn in_words(&self) -> String {
        let words = self.classes.iter().filter_map(|class| {
            let path = class.directory()?.display();
            Some(format!(
                "{{name: {}, directory: {{path: {path}}}}}",
                class.name()
            ))
        });
        format!("`classes: [{}]`", words.collect::<Vec<_>>().join(", "))
    }

    /// The classes, the default ones first.
    pub(crate) fn classes(&self) -> &[FileClass] {
        &self.classes
    }

    /// The labels of this node that the configuration names.
    pub(crate) fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The default class of a node with these labels, or of other nodes if this one has none.
    pub(crate) fn default_class(&self, labels: &Labels) -> Option<&ClassName> {
        let is_default = |class: &&FileClass| class.is_default() || self.classes.len() == 1;
        let mut defaults = self.classes.iter().filter(is_default);
        let first = defaults.clone().next();
        let here = defaults.find(|class| class.selects(labels));
        here.or(first).map(FileClass::name)
    }

    /// A class with its back end.
    ///
    /// # Errors
    /// The error names the field that is not valid; the classes of this plan were checked.
    pub(crate) fn build(&self, class: &FileClass) -> anyhow::Result<Class> {
        class.build(&self.nodes)
    }

    /// Where a class has its images.
    ///
    /// # Errors
    /// The error names the field that is not valid; the classes of this plan were checked.
    pub(crate) fn storage(&self, class: &FileClass) -> anyhow::Result<Storage> {
        class.storage(&self.nodes)
    }
}

/// All nodes have at most one default class, and which one it is does not depend on the order of the file alone.
fn check_defaults(classes: &[FileClass]) -> anyhow::Result<()> {
    let defaults = classes.iter().filter(|class| class.is_default());
    if defaults.clone().next().is_none() && classes.len() > 1 {
        return refused(
            "classes",
            "no class is the default; set `default: true` on one",
        );
    }
    let everywhere = defaults.filter(|class| !class.has_selector());
    let everywhere: Vec<&str> = everywhere.map(|class| class.name().as_str()).collect();
    if everywhere.len() > 1 {
        return refused(
            "classes",
            format!(
                "more than one class is the default: {}; keep `default: true` on one, or give each but one a nodeSelector",
                everywhere.join(", ")
            ),
        );
    }
    Ok(())
}

/// Each class cleans up its directory and must not share it.
fn check_directories(classes: &[FileClass]) -> anyhow::Result<()> {
    let mut seen: Vec<(&FileClass, &Path)> = Vec::new();
    for (index, class) in classes.iter().enumerate() {
        let Some(directory) = class.directory() else {
            continue;
        };
        for (other, path) in &seen {
            if directory.starts_with(path) || path.starts_with(directory) {
                let why = anyhow!(
                    "the directories of {} and {} are the same, or one contains the other; give each class its own directory",
                    other.name(),
                    class.name()
                );
                let path = format!("classes.{index}.directory.path");
                return Err(why).within(&path, "classes".to_owned());
            }
        }
        seen.push((class, directory));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(classes: &str) -> anyhow::Result<ClassPlan> {
        let nodes = Nodes {
            here: "n".parse()?,
            former: Vec::new(),
        };
        let classes = drumlin_crd::yaml::from_str(classes)?;
        ClassPlan::new(classes, nodes, Labels::new(), Path::new("/state"))
    }

    #[test]
    fn the_default_class_of_a_node_is_the_one_that_selects_it() {
        let plan = plan(
            "
- {name: any, default: true, thick: {volumeGroup: a}}
- {name: fast, default: true, nodeSelector: {matchLabels: {disk: nvme}}, thick: {volumeGroup: b}}
- {name: other, thick: {volumeGroup: c}}
",
        );
        let plan = plan.unwrap();
        let default = |labels: &[(&str, &str)]| {
            let labels = labels.iter();
            let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            plan.default_class(&labels.collect()).unwrap().to_string()
        };
        assert_eq!(default(&[("disk", "nvme")]), "fast");
        assert_eq!(default(&[("disk", "hdd")]), "any");
        let order: Vec<&str> = plan
            .classes()
            .iter()
            .map(|one| one.name().as_str())
            .collect();
        assert_eq!(order, ["fast", "any", "other"]);
    }

    #[test]
    fn a_default_class_that_is_elsewhere_is_not_replaced_by_another_one() {
        let plan = plan(
            "
- {name: fast, default: true, nodeSelector: {matchLabels: {disk: nvme}}, thick: {volumeGroup: b}}
- {name: other, thick: {volumeGroup: c}}
",
        );
        let plan = plan.unwrap();
        let default = plan.default_class(&Labels::new());
        assert_eq!(default.unwrap().as_str(), "fast");
    }

    #[test]
    fn a_class_that_is_not_valid_is_named_also_where_it_is_not_selected() {
        let error = plan(
            "
- {name: a, default: true, thick: {volumeGroup: a}}
- {name: b, nodeSelector: {matchLabels: {disk: nvme}}, thick: {volumeGroup: /b}}
",
        );
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("classes[1] (b)"), "{error}");
        assert!(error.contains("thick.volumeGroup"), "{error}");
    }
}
