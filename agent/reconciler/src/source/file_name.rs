//! Which entries of a directory are manifests, by their names.

use std::{
    ffi::OsStr,
    fs::{self, DirEntry},
};

/// The ends of the names of manifests.
const ENDS: [&str; 3] = [".yaml", ".yml", ".json"];
/// What some editors append to the name of a file that they do not know.
const APPENDED: &str = ".txt";

/// What an entry of a directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A manifest of this name.
    Manifest(String),
    /// It may be meant as a manifest, or have some, and is not read: its name, for people.
    Ignored(String),
    /// Something else, such as the backup of an editor.
    Other,
}

impl Entry {
    /// Why one that may be meant as a manifest is ignored, for people.
    pub fn why_ignored(name: &str) -> &'static str {
        if name.ends_with('/') {
            return "subdirectories are not read";
        }
        "not the name of a manifest, which ends with .yaml, .yml or .json, begins with a letter or digit, and has only those and '.', '_', '-'"
    }

    /// Decides by the name; of a directory, by the names in it.
    pub fn of(entry: &DirEntry) -> Self {
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| is_manifest(name)) {
            return Self::Manifest(name.to_owned());
        }
        let shown = name.to_string_lossy();
        // The type of the entry itself: a symbolic link may lead to a file system that does not answer.
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && !is_hidden(&shown) && has_manifests(entry) {
            return Self::Ignored(format!("{shown}/"));
        }
        if !is_directory && seems_manifest(&name) {
            return Self::Ignored(shown.into_owned());
        }
        Self::Other
    }
}

/// Returns true if a file of this name is a manifest: `^[A-Za-z0-9][A-Za-z0-9._-]*\.(ya?ml|json)$`, except kustomize's
/// own files: no backups, no temporary files of editors.
pub(crate) fn is_manifest(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let stem = ENDS.iter().find_map(|end| name.strip_suffix(end));
    stem.is_some_and(|stem| !stem.is_empty() && !is_kustomization(stem))
        && name.bytes().all(inner)
        && name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Returns true if a person may take a file of this name for a manifest.
fn seems_manifest(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(APPENDED).unwrap_or(&name);
    let stem = ENDS.iter().find_map(|end| name.strip_suffix(end));
    !is_hidden(name) && stem.is_some_and(|stem| !is_kustomization(stem))
}

fn has_manifests(directory: &DirEntry) -> bool {
    let entries = fs::read_dir(directory.path()).into_iter().flatten();
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.any(|name| seems_manifest(&name))
}

/// Kubelet keeps the files of a ConfigMap in such directories.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

fn is_kustomization(stem: &str) -> bool {
    stem == "kustomization"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &std::path::Path) -> Vec<Entry> {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(Result::unwrap).collect();
        entries.sort_by_key(DirEntry::file_name);
        entries.iter().map(Entry::of).collect()
    }

    #[test]
    fn what_seems_a_manifest_and_is_not_read_is_told_from_what_editors_leave() {
        let here = tempfile::tempdir().unwrap();
        let ignored = [
            "a.YAML",
            "a.Yml",
            "a b.yaml",
            "a.yml.txt",
            "größe.json",
            "_a.yaml",
        ];
        let others = [
            ".a.yaml",
            "a.yaml~",
            "#a.yaml#",
            ".a.yaml.swp",
            "a.yaml.bak",
            "README.md",
            "notes.txt",
            "kustomization.yaml",
            "kustomization.json",
        ];
        for name in ignored.iter().chain(&others).chain(&["a.yaml"]) {
            fs::write(here.path().join(name), "").unwrap();
        }
        for name in ["sub", "docs", "..2026_11_28"] {
            fs::create_dir(here.path().join(name)).unwrap();
        }
        fs::write(here.path().join("sub/b.yaml"), "").unwrap();
        fs::write(here.path().join("docs/b.md"), "").unwrap();
        fs::write(here.path().join("..2026_11_28/b.yaml"), "").unwrap();
        let found = of(here.path());
        let mut names: Vec<&str> = ignored.into();
        names.push("sub/");
        names.sort_unstable();
        let shown = found.iter().filter_map(|entry| match entry {
            Entry::Ignored(name) => Some(name.as_str()),
            _ => None,
        });
        assert_eq!(shown.collect::<Vec<_>>(), names);
        let manifests = found
            .iter()
            .filter(|entry| matches!(entry, Entry::Manifest(_)));
        assert_eq!(manifests.count(), 1);
    }
}
