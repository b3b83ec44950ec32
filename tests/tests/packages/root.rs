//! A throw-away root file system: that of the lab's Debian host, with all changes in memory.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Output,
};

use drumlin_tests::programs::{output, run, workspace};

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// What is mounted in the scratch directory, in this order.
const MOUNTS: [&str; 5] = ["image", "changes", "root", "root/proc", "root/packages"];

/// A root, which is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Root(tempfile::TempDir);

impl Root {
    /// A fresh one that sees the directory of a package at `/packages`.
    pub(crate) fn with(package: &Path) -> Self {
        let setup = text(&workspace().join("tests/lab/host/setup"));
        let image = run(&setup, &["bookworm"]);
        let root = Self(tempfile::tempdir().unwrap());
        let place = |name: &str| text(&root.0.path().join(name));
        for name in ["image", "changes", "root"] {
            fs::create_dir(place(name)).unwrap();
        }
        let image = image.trim();
        run("mount", &["-o", "loop,ro,noload", image, &place("image")]);
        run("mount", &["-t", "tmpfs", "none", &place("changes")]);
        for name in ["changes/upper", "changes/work"] {
            fs::create_dir(place(name)).unwrap();
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            place("image"),
            place("changes/upper"),
            place("changes/work")
        );
        run(
            "mount",
            &["-t", "overlay", "none", "-o", &layers, &place("root")],
        );
        run("mount", &["-t", "proc", "none", &place("root/proc")]);
        fs::create_dir(place("root/packages")).unwrap();
        let packages = text(package.parent().unwrap().parent().unwrap());
        run("mount", &["--bind", &packages, &place("root/packages")]);
        root
    }

    /// A path in it, as this process sees it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0
            .path()
            .join("root")
            .join(path.trim_start_matches('/'))
    }

    /// Runs a program of the root in it.
    pub(crate) fn output(&self, words: &[&str]) -> Output {
        let root = text(&self.path("/"));
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        let words = [&[root.as_str(), "env", "-i", path, "LC_ALL=C"], words].concat();
        output("chroot", &words)
    }

    /// The same, which must succeed; returns all that it printed.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(output.status.success(), "{words:?}: {printed}");
        printed
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Writes a file, and the directories that it is in.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The mode and the owner of a file, as `755 0:0`.
    pub(crate) fn mode(&self, path: &str) -> String {
        let found = fs::metadata(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mode = found.mode() & 0o7777;
        format!("{mode:o} {}:{}", found.uid(), found.gid())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        for name in MOUNTS.iter().rev() {
            output("umount", &[&text(&self.0.path().join(name))]);
        }
    }
}

/// What both packages install: each file with its mode.
pub(crate) const FILES: [(&str, &str); 14] = [
    ("/usr/bin/drumlin", "755"),
    ("/usr/lib/systemd/system/drumlin.service", "644"),
    ("/usr/lib/systemd/system/drumlin-mounts.service", "644"),
    ("/usr/lib/systemd/system/drumlin-mounts.target", "644"),
    // No secret is in it.
    ("/etc/drumlin/config.yaml", "644"),
    ("/etc/drumlin", "755"),
    ("/etc/drumlin/manifests.d", "755"),
    ("/etc/drumlin/manifests.d/README", "644"),
    ("/usr/share/bash-completion/completions/drumlin", "644"),
    ("/usr/share/fish/vendor_completions.d/drumlin.fish", "644"),
    ("/usr/share/doc/drumlin/README.md", "644"),
    ("/usr/share/doc/drumlin/book/host.md", "644"),
    ("/usr/share/doc/drumlin/prometheus/rules.yaml", "644"),
    ("/usr/share/doc/drumlin/grafana/drumlin.json", "644"),
];

/// Data of volumes, and what an administrator has written.
pub(crate) const DATA: [&str; 2] = [
    "/var/lib/drumlin/images/volumes/v/image",
    "/etc/drumlin/manifests.d/database.yaml",
];

/// What an administrator has added to the configuration.
pub(crate) const ADDED: &str = "\nnode: db1\n";

/// Checks what is installed.
pub(crate) fn is_installed(root: &Root) {
    for (path, mode) in FILES {
        assert_eq!(root.mode(path), format!("{mode} 0:0"), "{path}");
    }
    // A host has no controller, whose absence is an alert of a cluster.
    let examples = workspace().join("examples/metrics");
    for (path, source) in [
        ("prometheus/rules.yaml", "rules.yaml"),
        ("grafana/drumlin.json", "drumlin.json"),
    ] {
        let installed = root.read(&format!("/usr/share/doc/drumlin/{path}"));
        let source = fs::read_to_string(examples.join(source)).unwrap();
        assert!(installed == source, "{path}");
    }
    assert!(root.run(&["drumlin", "--version"]).contains("drumlin "));
    root.run(&[
        "bash",
        "-n",
        "/usr/share/bash-completion/completions/drumlin",
    ]);
}

/// An administrator changes the configuration, and there is data.
pub(crate) fn use_it(root: &Root) {
    let config = root.read("/etc/drumlin/config.yaml");
    root.write("/etc/drumlin/config.yaml", &(config + ADDED));
    for path in DATA {
        root.write(path, "precious");
    }
}

/// Nothing of that is lost.
pub(crate) fn data_is_there(root: &Root) {
    for path in DATA {
        assert_eq!(root.read(path), "precious", "{path}");
    }
}
