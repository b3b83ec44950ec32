//! The RPM, in the same root: its scripts need a shell, and nothing of the distribution.

use drumlin_tests::programs::run;

use crate::{
    packages::{VERSIONS, package},
    root::{ADDED, Root, data_is_there, is_installed, text, use_it},
};

fn rpm(root: &Root, words: &[&str]) -> String {
    let place = text(&root.path("/"));
    run("rpm", &[&["--root", &place], words].concat())
}

#[test]
fn an_rpm_is_installed_upgraded_and_removed_and_data_and_changes_stay() {
    let [old, new] = VERSIONS;
    let file = |version| text(&package(version, "rpm"));
    let root = Root::with(&package(old, "rpm"));
    // A Debian has no database of RPM that could have what it requires.
    rpm(&root, &["--install", "--nodeps", &file(old)]);
    is_installed(&root);
    for path in [
        "/usr/share/man/man1/drumlin-agent.1.gz",
        "/usr/share/zsh/site-functions/_drumlin",
        "/usr/share/licenses/drumlin/LICENSE",
    ] {
        assert_eq!(root.mode(path), "644 0:0", "{path}");
    }
    assert_eq!(rpm(&root, &["--verify", "--nodeps", "drumlin"]), "");
    let required = rpm(&root, &["--query", "--requires", "drumlin"]);
    for wanted in ["libc.so.6", "e2fsprogs", "util-linux"] {
        assert!(required.contains(wanted), "{required}");
    }
    let optional = rpm(&root, &["--query", "--recommends", "drumlin"]);
    assert!(optional.contains("lvm2"), "{optional}");

    use_it(&root);
    rpm(&root, &["--upgrade", "--nodeps", &file(new)]);
    let shown = rpm(
        &root,
        &["--query", "--queryformat", "%{version}", "drumlin"],
    );
    assert_eq!(shown, new);
    is_installed(&root);
    assert!(root.read("/etc/drumlin/config.yaml").ends_with(ADDED));
    data_is_there(&root);

    let said = rpm(&root, &["--erase", "drumlin"]);
    assert!(said.contains("/var/lib/drumlin is kept"), "{said}");
    assert!(!root.exists("/usr/bin/drumlin"));
    // What was changed is kept under another name.
    assert!(
        root.read("/etc/drumlin/config.yaml.rpmsave")
            .ends_with(ADDED)
    );
    data_is_there(&root);
}
