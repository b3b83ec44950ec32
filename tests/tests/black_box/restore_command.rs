//! `drumlin restore`: what it prints can be applied, and brings the bytes back.

use std::{fs, io::Write};

use drumlin_tests::{
    agent::{eventually, write},
    requests::{raw, set_members},
};

use crate::{
    helpers::{bytes_of, get, ok, put, text, volume as make_volume},
    host::{Host, absent, group, object, small, volume},
};

impl Host {
    /// What `drumlin restore` prints, or how it fails.
    fn restore(&self, arguments: &[&str]) -> Result<String, String> {
        let state = text(self.agent.path("state"));
        let all = [&["restore"], arguments, &["--state-dir", &state]].concat();
        let output = self.agent.command(&all);
        let shown = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            return Ok(shown(output.stdout));
        }
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        Err(shown(output.stderr))
    }

    /// Checks that what was printed is valid, and applies it.
    fn apply(&self, file: &str, manifest: &str) {
        let path = self.agent.path(file);
        write(&path, manifest);
        let checked = self.agent.command(&["validate", &path.to_string_lossy()]);
        assert!(checked.status.success(), "{checked:?}\n{manifest}");
        write(&self.manifests.join(file), manifest);
    }
}

#[tokio::test]
async fn all_members_of_a_group_snapshot_come_back_in_a_group_of_their_own() {
    let host = Host::start().await;
    let labelled =
        |manifest: String| manifest.replace("metadata:\n", "metadata:\n  labels: {app: pg}\n");
    let at = |name: &str| format!("mount: {{path: {}}}", host.path(name));
    let data = labelled(volume("data", "32Mi", &at("data")));
    let log = labelled(volume("log", "16Mi", "volumeMode: Block"));
    let g = object(
        "VolumeGroup",
        "pg",
        "",
        "selector: {matchLabels: {app: pg}}, minMembers: 2",
    );
    host.write("pg.yaml", &[data.clone(), log.clone(), g.clone()]);
    host.until("pg", &["True", "2 of 2"]).await;
    // A group has its members before they are mounted.
    host.until("data", &["True", "32Mi at"]).await;
    put(&host.path("data"), "file", b"then");
    let image = bytes_of(&host.agent, &host.handle("log"));
    let mut image = fs::File::options().write(true).open(image).unwrap();
    image.write_all(&[7; 4096]).unwrap();
    // Without reflinks the agent refuses to hold writers for a whole copy.
    let unmounted = labelled(volume("data", "32Mi", ""));
    host.write("pg.yaml", &[unmounted, log.clone(), g.clone()]);
    host.until("data", &["True", "not mounted"]).await;
    let taking = object("GroupSnapshot", "before", "", "groupName: pg");
    host.write("s.yaml", &[taking]);
    host.until("before", &["True"]).await;
    // The data has grown since, and is mounted and written again.
    let grown = data.replace("32Mi", "48Mi");
    host.write("pg.yaml", &[grown, log, g]);
    host.until("data", &["True", "48Mi at"]).await;
    put(&host.path("data"), "file", b"now");
    let (table, _) = host.agent.status();

    let printed = host
        .restore(&["GroupSnapshot", "before", "-n", "default", "--suffix", "-x"])
        .unwrap();
    assert_eq!(host.agent.status().0, table, "nothing is applied");
    for part in [
        "# Without the labels of data: with them it would join group pg.",
        &format!(
            "# Not mounted, because data is mounted at {}:",
            host.path("data")
        ),
        "capacity: 48Mi",
        "volumeMode: Block",
        "name: pg-x",
        "minMembers: 2",
    ] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    assert!(
        !printed.contains("app: pg") && !printed.contains("mount:"),
        "{printed}"
    );
    // As its reader would: where it is mounted is for a person to say.
    let mount = format!("spec:\n  mount: {{path: {}}}\n", host.path("restored"));
    host.apply("restored.yaml", &printed.replacen("spec:\n", &mount, 1));
    host.until("pg-x", &["True", "2 of 2"]).await;
    host.until("data-x", &["True", "48Mi at"]).await;
    assert_eq!(get(&host.path("restored"), "file"), b"then");
    assert_eq!(get(&host.path("data"), "file"), b"now");
    let copy = fs::read(bytes_of(&host.agent, &host.handle("log-x"))).unwrap();
    let (bytes, rest) = copy.split_at(4096);
    assert_eq!(bytes, [7; 4096]);
    assert_eq!(rest, vec![0; (16 << 20) - 4096]);
    host.until("pg", &["True", "2 of 2"]).await;
    assert_eq!(host.agent.status().1, 0);

    let again = host
        .restore(&["dgsnap", "default/before", "--suffix", "-x"])
        .unwrap_err();
    assert!(
        again.contains("data-x already exists; choose another --suffix"),
        "{again}"
    );
}

#[tokio::test]
async fn a_member_that_nobody_names_is_called_after_its_id() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("a"), small("b"), group("g", "a b")]);
    host.until("g", &["True", "2 of 2"]).await;
    let foreign = make_volume(&host.agent, "foreign", 16, &raw()).await;
    let [made] = host.groups().await.try_into().unwrap();
    let request = set_members(
        &made.volume_group_id,
        vec![host.handle("a"), host.handle("b"), foreign.clone()],
    );
    ok(host
        .agent
        .groups()
        .modify_volume_group_membership(request)
        .await);
    let word = "metadata:\n  annotations: {drumlin.dev/reconcile-at: now}\n";
    let looked_at = group("g", "a b").replace("metadata:\n", word);
    host.write("v.yaml", &[small("a"), small("b"), looked_at.clone()]);
    host.until("g", &["and 1 added by other callers"]).await;
    host.write(
        "s.yaml",
        &[object("GroupSnapshot", "s", "", "groupName: g")],
    );
    host.until("s", &["True", "3 members"]).await;
    // One is of no manifest any more, one never was.
    host.write(
        "v.yaml",
        &[small("a"), absent(&small("b")), group("g", "a")],
    );
    host.until("b", &["Deleted"]).await;
    host.write("v.yaml", &[small("a"), group("g", "a")]);
    eventually(|| host.agent.status().0, |table| !table.contains(" b ")).await;

    let printed = host.restore(&["dgsnap", "s"]).unwrap();
    let key = foreign.rsplit('/').next().unwrap();
    let name = format!("volume-{key}-restored");
    assert!(printed.contains(&format!("member: {foreign}")), "{printed}");
    assert_eq!(
        printed
            .matches("The volume has no manifest any more")
            .count(),
        2,
        "{printed}"
    );
    host.apply("r.yaml", &printed);
    host.until("g-restored", &["True", "3 of 3"]).await;
    for name in ["a-restored", "b-restored", &name] {
        host.until(name, &["True", "16Mi"]).await;
    }
}

#[tokio::test]
async fn a_snapshot_comes_back_as_one_volume() {
    let host = Host::start().await;
    let at = |name: &str| format!("mount: {{path: {}}}", host.path(name));
    let labels = "metadata:\n  labels: {tier: db}\n";
    let data = volume("data", "16Mi", &at("data")).replace("metadata:\n", labels);
    host.write("v.yaml", &[data]);
    host.until("data", &["True"]).await;
    put(&host.path("data"), "file", b"then");
    let taking = object("Snapshot", "s", "", "source: {volumeName: data}");
    host.write("s.yaml", &[taking]);
    host.until("s", &["True"]).await;
    put(&host.path("data"), "file", b"now");
    let printed = host.restore(&["dsnap", "s", "--suffix", "-old"]).unwrap();
    assert!(
        printed.contains("tier: db"),
        "labels that mean nothing to a group stay: {printed}"
    );
    let mount = format!("spec:\n  mount: {{path: {}}}\n", host.path("old"));
    host.apply("r.yaml", &printed.replacen("spec:\n", &mount, 1));
    host.until("data-old", &["True"]).await;
    assert_eq!(get(&host.path("old"), "file"), b"then");
}

#[tokio::test]
async fn what_cannot_be_restored_is_said() {
    let host = Host::start().await;
    let s = object("GroupSnapshot", "s", "", "groupName: g");
    host.write("s.yaml", &[s]);
    host.until("s", &["DependencyNotFound"]).await;
    let path = "state/reconciler/objects/GroupSnapshot/default/broken.json";
    fs::write(host.agent.path(path), "{").unwrap();
    for (arguments, part) in [
        (&["dgsnap", "db/s"][..], "GroupSnapshot/db/s: not found"),
        (&["dsnap", "s"], "Snapshot/default/s: not found"),
        (
            &["dgsnap", "s"],
            "GroupSnapshot/default/s: is not ready: DependencyNotFound: waiting for group g",
        ),
        (&["dgsnap", "broken"], "could not read its state file"),
        (&["dgsnap", "../s"], "is not a valid name for a state file"),
    ] {
        let error = host.restore(arguments).unwrap_err();
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    host.write("v.yaml", &[small("a"), group("g", "a")]);
    host.until("s", &["True"]).await;
    for suffix in ["", "_x", "-"] {
        let error = host
            .restore(&["dgsnap", "s", "--suffix", suffix])
            .unwrap_err();
        assert!(error.contains("--suffix"), "{suffix:?}: {error}");
    }
}
