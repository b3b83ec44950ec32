//! Tells the binary which commit it was built from, where that can be read; no program is started for it.

use std::{env, fs, path::Path};

/// How much of a commit's name is shown.
const SHOWN: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let package = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let git = Path::new("../.git");
    // This file grows with whatever moves HEAD. A missing one must not be named, or each build would run this again.
    let moves = git.join("logs/HEAD");
    if moves.exists() {
        println!("cargo::rerun-if-changed={}", moves.display());
    }
    let version = match commit(git) {
        Some(commit) => format!("{package}+{commit}"),
        None => package,
    };
    println!("cargo::rustc-env=DRUMLIN_VERSION={version}");
}

/// The name of the commit that HEAD is at; none outside a checkout.
fn commit(git: &Path) -> Option<String> {
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let name = match head.trim().strip_prefix("ref: ") {
        None => head,
        Some(branch) => fs::read_to_string(git.join(branch))
            .ok()
            .or_else(|| packed(git, branch))?,
    };
    let name = name.trim().get(..SHOWN)?;
    name.bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| name.to_owned())
}

fn packed(git: &Path, branch: &str) -> Option<String> {
    let packed = fs::read_to_string(git.join("packed-refs")).ok()?;
    packed.lines().find_map(|line| {
        let (name, found) = line.split_once(' ')?;
        (found == branch).then(|| name.to_owned())
    })
}
