//! Scans of directories that people and programs change.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
};

use nix::mount::MsFlags;
use tempfile::TempDir;

use super::*;

fn volume(name: &str) -> String {
    format!(
        "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\nspec: {{capacity: 1Gi}}\n"
    )
}

fn fresh() -> (TempDir, Directory) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifests.d");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let source = Directory::new(path, Trust::new(&[]));
    (directory, source)
}

fn write(source: &Directory, file: &str, text: &str) {
    let path = source.path().join(file);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

fn content(source: &mut Directory) -> Content {
    match source.scan() {
        Scan::Read(content) => content,
        Scan::Unavailable(why) => panic!("{why}"),
    }
}

fn names(source: &mut Directory) -> Vec<String> {
    let content = content(source);
    let key = |document: &Document| document.object.key().name;
    content
        .documents
        .iter()
        .map(|(_, document)| key(document))
        .collect()
}

fn unavailable(source: &mut Directory) -> String {
    match source.scan() {
        Scan::Unavailable(why) => why,
        Scan::Read(content) => panic!("{content:?}"),
    }
}

#[test]
fn only_names_of_manifests_are_read() {
    let (_keep, mut source) = fresh();
    for (index, file) in ["a.yaml", "b.yml", "c.json", "0-d.e.yaml"]
        .iter()
        .enumerate()
    {
        write(&source, file, &volume(&format!("v{index}")));
    }
    for file in [
        ".a.yaml",
        "a.yaml~",
        "#a.yaml#",
        "a.yaml.bak",
        ".a.yaml.swp",
        "kustomization.yaml",
        "a b.yaml",
        "README.md",
    ] {
        write(&source, file, "not: [a manifest");
    }
    assert_eq!(names(&mut source).len(), 4);
    assert_eq!(content(&mut source).ignored, ["a b.yaml"]);
}

#[test]
fn a_link_that_leads_nowhere_is_invalid_and_one_that_is_gone_is_not() {
    let (_keep, mut source) = fresh();
    write(&source, "target", &volume("a"));
    let link = source.path().join("a.yaml");
    symlink(source.path().join("target"), &link).unwrap();
    assert_eq!(names(&mut source), ["a"]);
    fs::remove_file(source.path().join("target")).unwrap();
    let found = content(&mut source);
    assert_eq!(found.silent, ["a.yaml"]);
    let message = &found.problems["a.yaml"][0].message;
    assert!(
        message.contains("target, which does not exist"),
        "{message}"
    );
    fs::remove_file(link).unwrap();
    let found = content(&mut source);
    assert!(found.silent.is_empty() && found.files == 0);
}

#[test]
fn a_file_with_one_bad_document_says_nothing_at_all() {
    let (_keep, mut source) = fresh();
    write(
        &source,
        "a.yaml",
        &format!("{}---\n{}", volume("a"), volume("b").replace("1Gi", "1GB")),
    );
    write(&source, "c.yaml", &volume("c"));
    let content = content(&mut source);
    assert_eq!(content.documents.len(), 1);
    assert_eq!(content.silent, ["a.yaml"]);
    assert_eq!(content.problems["a.yaml"][0].line, 9);
}

#[test]
fn an_object_in_two_files_is_refused_in_both_and_both_are_named() {
    let (_keep, mut source) = fresh();
    write(&source, "a.yaml", &volume("same"));
    write(
        &source,
        "b.yaml",
        &format!("{}---\n{}", volume("other"), volume("same")),
    );
    let content = content(&mut source);
    assert!(content.documents.is_empty());
    assert_eq!(content.silent, ["a.yaml", "b.yaml"]);
    for file in ["a.yaml", "b.yaml"] {
        let message = &content.problems[file][0].message;
        assert!(
            message.contains("a.yaml:1") && message.contains("b.yaml:6"),
            "{message}"
        );
    }
}

#[test]
fn who_else_could_have_written_a_file_makes_it_untrusted() {
    let (_keep, mut source) = fresh();
    write(&source, "a.yaml", &volume("a"));
    write(&source, "b.yaml", &volume("b"));
    fs::set_permissions(
        source.path().join("a.yaml"),
        fs::Permissions::from_mode(0o666),
    )
    .unwrap();
    std::os::unix::fs::chown(source.path().join("b.yaml"), Some(4711), None).unwrap();
    let content = content(&mut source);
    assert_eq!(content.silent, ["a.yaml", "b.yaml"]);
    assert!(content.problems["a.yaml"][0].message.contains("chmod go-w"));
    assert!(content.problems["b.yaml"][0].message.contains("chown root"));
    fs::set_permissions(source.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(unavailable(&mut source).contains("InsecurePermissions"));
}

#[test]
fn users_that_are_named_are_trusted_as_root_is() {
    let (_keep, source) = fresh();
    write(&source, "a.yaml", &volume("a"));
    // The layout of git-sync.
    for path in [source.path().to_owned(), source.path().join("a.yaml")] {
        std::os::unix::fs::chown(path, Some(65533), None).unwrap();
    }
    let mut strict = Directory::new(source.path().to_owned(), Trust::new(&[4711]));
    let why = unavailable(&mut strict);
    assert!(why.contains("--manifest-owner 65533"), "{why}");
    let mut named = Directory::new(source.path().to_owned(), Trust::new(&[4711, 65533]));
    assert_eq!(names(&mut named), ["a"]);
}

/// Lays out files as kubelet's atomic writer does: `version` is the name of its directory.
fn lay_out(root: &Path, version: &str, files: &[(&str, String)]) {
    let data = root.join(version);
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, text) in files {
        fs::write(data.join(name), text).unwrap();
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        let _ = symlink(format!("..data/{name}"), root.join(name));
    }
    let before = fs::read_link(root.join("..data"));
    symlink(version, root.join("..data_tmp")).unwrap();
    fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    if let Ok(before) = before {
        fs::remove_dir_all(root.join(before)).unwrap();
    }
}

#[test]
fn what_kubelet_lays_out_is_read_though_everybody_may_write_there() {
    let (_keep, mut source) = fresh();
    let root = source.path().to_owned();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    let files = |name: &str| [("a.yaml", volume(name)), ("b.yaml", volume("b"))];
    lay_out(&root, "..2026_11_24_10_00_00.1", &files("first"));
    assert_eq!(names(&mut source), ["first", "b"]);
    lay_out(&root, "..2026_11_24_10_01_00.2", &files("second"));
    assert_eq!(names(&mut source), ["second", "b"]);
    // Files that another user adds beside it are ignored.
    fs::write(root.join("c.yaml"), volume("theirs")).unwrap();
    std::os::unix::fs::chown(root.join("c.yaml"), Some(4711), None).unwrap();
    assert_eq!(names(&mut source), ["second", "b"]);
    // So are symbolic links and directories of another user.
    fs::create_dir(root.join("..theirs")).unwrap();
    std::os::unix::fs::chown(root.join("..theirs"), Some(4711), None).unwrap();
    symlink("..theirs", root.join("..data_tmp")).unwrap();
    fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    assert!(unavailable(&mut source).contains("InsecurePermissions"));
    symlink("..2026_11_24_10_01_00.2", root.join("..data_tmp")).unwrap();
    std::os::unix::fs::lchown(root.join("..data_tmp"), Some(4711), None).unwrap();
    fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    assert!(unavailable(&mut source).contains("InsecurePermissions"));
}

#[test]
fn what_is_mounted_read_only_is_written_by_nobody() {
    let (keep, source) = fresh();
    fs::set_permissions(source.path(), fs::Permissions::from_mode(0o777)).unwrap();
    write(&source, "a.yaml", &volume("a"));
    let shown = keep.path().join("shown");
    fs::create_dir(&shown).unwrap();
    let mount = |from: Option<&Path>, flags| {
        nix::mount::mount(from, &shown, None::<&str>, flags, None::<&str>).unwrap();
    };
    mount(Some(source.path()), MsFlags::MS_BIND);
    mount(
        None,
        MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
    );
    let mut mounted = Directory::new(shown.clone(), Trust::new(&[]));
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| names(&mut mounted)));
    nix::mount::umount(&shown).unwrap();
    assert_eq!(found.unwrap(), ["a"]);
}

#[test]
fn a_file_that_is_being_written_is_left_for_later() {
    let (_keep, mut source) = fresh();
    write(&source, "a.yaml", &volume("a"));
    let path = source.path().join("a.yaml");
    let mut writer = OpenOptions::new().append(true).open(path).unwrap();
    writer.write_all(b"---\n").unwrap();
    let before = content(&mut source);
    assert!(before.unsettled && before.documents.is_empty());
    assert_eq!(before.silent, ["a.yaml"]);
    writer.write_all(volume("b").as_bytes()).unwrap();
    drop(writer);
    assert_eq!(names(&mut source), ["a", "b"]);
}

#[test]
fn a_directory_that_is_missing_or_no_directory_is_unavailable() {
    let (_keep, mut source) = fresh();
    write(&source, "a.yaml", &volume("a"));
    assert_eq!(names(&mut source), ["a"]);
    let away = source.path().with_extension("away");
    fs::rename(source.path(), &away).unwrap();
    assert!(unavailable(&mut source).contains("cannot be read"));
    fs::create_dir(source.path()).unwrap();
    assert_eq!(content(&mut source).files, 0);
    fs::remove_dir(source.path()).unwrap();
    fs::write(source.path(), "x").unwrap();
    assert!(unavailable(&mut source).contains("not a directory"));
    fs::remove_file(source.path()).unwrap();
    fs::rename(&away, source.path()).unwrap();
    assert_eq!(names(&mut source), ["a"]);
}

#[test]
fn links_are_followed_and_a_swapped_target_is_seen() {
    let (_keep, mut source) = fresh();
    let root = source.path().to_owned();
    for (version, name) in [("..v1", "old"), ("..v2", "new")] {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("a.yaml"), volume(name)).unwrap();
    }
    symlink("..v1", root.join("..data")).unwrap();
    symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
    assert_eq!(names(&mut source), ["old"]);
    symlink("..v2", root.join("..tmp")).unwrap();
    fs::rename(root.join("..tmp"), root.join("..data")).unwrap();
    assert_eq!(names(&mut source), ["new"]);
}

#[test]
fn an_unchanged_file_is_not_parsed_again_and_a_touched_one_is_the_same() {
    let (_keep, mut source) = fresh();
    write(&source, "a.yaml", &volume("a"));
    let first = content(&mut source);
    assert_eq!(content(&mut source), first);
    write(&source, "a.yaml", &volume("a"));
    assert_eq!(content(&mut source), first);
    write(&source, "a.yaml", &volume("b"));
    assert_ne!(content(&mut source), first);
}

#[test]
fn a_large_file_and_one_that_is_no_text_are_refused() {
    let (_keep, mut source) = fresh();
    write(&source, "a.yaml", &"#".repeat((1 << 20) + 1));
    fs::write(source.path().join("b.yaml"), b"\xff\xfe").unwrap();
    let content = content(&mut source);
    assert!(content.problems["a.yaml"][0].message.contains("1048576"));
    assert!(content.problems["b.yaml"][0].message.contains("UTF-8"));
}
