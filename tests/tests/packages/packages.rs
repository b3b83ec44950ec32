//! Both packages in two versions, made once.

use std::{path::PathBuf, sync::OnceLock};

use drumlin_tests::programs::{drumlin, run, workspace};

use crate::root::text;

/// The versions of the packages: what is installed first, and an upgrade of it.
pub(crate) const VERSIONS: [&str; 2] = ["0.0.9", "0.0.10"];

/// Where the package of this version and kind is, `deb` or `rpm`.
pub(crate) fn package(version: &str, kind: &str) -> PathBuf {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let stripped = text(&directory.path().join("drumlin"));
        run("strip", &["-s", "-o", &stripped, &text(&drumlin())]);
        let build = text(&workspace().join("packaging/build"));
        for version in VERSIONS {
            let to = text(&directory.path().join(version));
            run(&build, &["--fast", &stripped, &to, version]);
        }
        directory
    });
    made.path().join(version).join(format!("drumlin.{kind}"))
}
