//! The Debian package.

use crate::{
    packages::{VERSIONS, package},
    root::{ADDED, Root, data_is_there, is_installed, use_it},
};

/// By which systemd starts it with the host.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/drumlin.service";

fn install(root: &Root, version: &str) {
    let file = format!("/packages/{version}/drumlin.deb");
    root.run(&["dpkg", "--install", &file]);
    assert_eq!(root.run(&["dpkg", "--verify", "drumlin"]), "");
    let shown = root.run(&[
        "dpkg-query",
        "-W",
        "-f=${Version} ${db:Status-Abbrev}",
        "drumlin",
    ]);
    assert_eq!(shown.trim(), format!("{version} ii"));
    is_installed(root);
    assert!(root.exists(ENABLED));
}

#[test]
fn a_debian_package_is_installed_upgraded_and_removed_and_data_and_changes_stay() {
    let [old, new] = VERSIONS;
    let root = Root::with(&package(old, "deb"));
    install(&root, old);
    for path in [
        "/usr/share/man/man1/drumlin-agent.1.gz",
        "/usr/share/zsh/vendor-completions/_drumlin",
        "/usr/share/doc/drumlin/copyright",
    ] {
        assert_eq!(root.mode(path), "644 0:0", "{path}");
    }
    let shown = root.run(&["dpkg-query", "-W", "-f=${Depends}|${Recommends}", "drumlin"]);
    for wanted in ["libc6", "e2fsprogs", "util-linux", "|cryptsetup-bin, lvm2"] {
        assert!(shown.contains(wanted), "{shown}");
    }

    use_it(&root);
    // What is changed is told, and is no fault.
    let changed = root.run(&["dpkg", "--install", &format!("/packages/{new}/drumlin.deb")]);
    assert!(!changed.contains("error"), "{changed}");
    is_installed(&root);
    assert!(root.read("/etc/drumlin/config.yaml").ends_with(ADDED));
    let verified = root.run(&["dpkg", "--verify", "drumlin"]);
    assert_eq!(verified.lines().count(), 1, "{verified}");
    assert!(
        verified.ends_with("c /etc/drumlin/config.yaml\n"),
        "{verified}"
    );
    data_is_there(&root);

    root.run(&["dpkg", "--remove", "drumlin"]);
    assert!(!root.exists("/usr/bin/drumlin"));
    assert!(!root.exists("/usr/lib/systemd/system/drumlin.service"));
    assert!(root.read("/etc/drumlin/config.yaml").ends_with(ADDED));
    data_is_there(&root);

    let said = root.run(&["dpkg", "--purge", "drumlin"]);
    assert!(said.contains("/var/lib/drumlin is kept"), "{said}");
    assert!(!root.exists("/etc/drumlin/config.yaml"));
    assert!(!root.exists(ENABLED));
    data_is_there(&root);
}

#[test]
fn a_service_that_its_administrator_disabled_stays_so_when_it_is_upgraded() {
    let [old, new] = VERSIONS;
    let root = Root::with(&package(old, "deb"));
    install(&root, old);
    root.run(&["systemctl", "disable", "drumlin"]);
    assert!(!root.exists(ENABLED));
    root.run(&["dpkg", "--install", &format!("/packages/{new}/drumlin.deb")]);
    assert!(!root.exists(ENABLED));
}
