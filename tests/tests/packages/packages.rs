//! Both packages in two versions, made once.

use std::{path::PathBuf, sync::OnceLock};

use drumlin_tests::packages;

pub(crate) use drumlin_tests::packages::VERSIONS;

/// Where the package of this version and kind is, `deb` or `rpm`.
pub(crate) fn package(version: &str, kind: &str) -> PathBuf {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        packages::make(directory.path());
        directory
    });
    packages::path(made.path(), version, kind)
}
