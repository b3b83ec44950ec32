//! The packages of the binary that is tested, as `packaging/build` makes them.

use std::path::{Path, PathBuf};

use crate::programs::{drumlin, run, workspace};

/// The versions of the packages: what is installed first, and an upgrade of it.
pub const VERSIONS: [&str; 2] = ["0.0.9", "0.0.10"];

/// Makes both kinds of package in both versions, in a directory.
pub fn make(directory: &Path) {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let stripped = text(directory.join("drumlin"));
    run("strip", &["-s", "-o", &stripped, &text(drumlin())]);
    let build = text(workspace().join("packaging/build"));
    for version in VERSIONS {
        let to = text(directory.join(version));
        run(&build, &["--fast", &stripped, &to, version]);
    }
}

/// Where the package of this version and kind is, `deb` or `rpm`.
pub fn path(directory: &Path, version: &str, kind: &str) -> PathBuf {
    directory.join(version).join(format!("drumlin.{kind}"))
}
