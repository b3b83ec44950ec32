//! What commands that change something say to programs: one document of what was done, and what people read elsewhere.

use drumlin_tests::programs::{complaint, printed};
use serde_json::{Value, json};

use crate::{
    foreign_helpers::command,
    host::{Host, absent, group, object, small, volume},
    lost_state::snapshot,
};

/// What a command prints for programs, which is all that is on its standard output.
#[track_caller]
fn told(host: &Host, name: &str, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["-o", "json"]].concat();
    let output = command(&host.agent, name, &arguments);
    serde_json::from_str(&printed(&output, &arguments)).unwrap()
}

/// A host with the orphans of these manifests.
async fn with_orphans(names: &[&str], manifest: impl Fn(&str) -> String) -> Host {
    let host = Host::start().await;
    host.write("other.yaml", &[small("other")]);
    let manifests: Vec<String> = names.iter().map(|name| manifest(name)).collect();
    host.write("orphans.yaml", &manifests);
    for name in names {
        host.until(name, &["True"]).await;
    }
    std::fs::remove_file(host.manifests.join("orphans.yaml")).unwrap();
    for name in names {
        host.until(name, &["Orphan"]).await;
    }
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_told_with_what_became_of_it() {
    let host = with_orphans(&["one", "two"], small).await;
    let deleted = told(&host, "delete", &["dv", "one", "--yes"]);
    assert_eq!(deleted["kind"], "Volume", "{deleted:#}");
    assert_eq!(deleted["owner"], "file default/one", "{deleted:#}");
    assert_eq!(deleted["size"], "16Mi", "{deleted:#}");
    assert_eq!(deleted["outcome"], "Deleted", "{deleted:#}");
    // Without an answer nothing is told and nothing is done.
    let refused = command(&host.agent, "delete", &["dv", "two", "-o", "json"]);
    assert!(refused.stdout.is_empty(), "{refused:?}");
    assert!(complaint(&refused).contains("--yes"), "{refused:?}");
    assert_eq!(host.counts().await, (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_to_the_trash_comes_back_and_is_destroyed_is_told() {
    let to_trash = |name: &str| volume(name, "16Mi", "volumeMode: Block\ndeletionPolicy: Trash");
    let host = with_orphans(&["one"], to_trash).await;
    let handle = told(&host, "kept", &[])["objects"][0]["handle"].clone();
    let deleted = told(&host, "delete", &["dv", "one", "--yes"]);
    assert_eq!(deleted["outcome"], "Trashed", "{deleted:#}");
    assert_eq!(deleted["handle"], handle);
    let undeleted = told(&host, "undelete", &["one"]);
    assert_eq!(
        undeleted,
        json!({"handle": handle, "owner": "file default/one"})
    );
    let deleted = told(&host, "delete", &[handle.as_str().unwrap(), "--yes"]);
    assert_eq!(deleted["outcome"], "Deleted", "{deleted:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_destroyed_in_the_trash_is_told() {
    let host = Host::start().await;
    let manifest = volume("v", "16Mi", "volumeMode: Block\ndeletionPolicy: Trash");
    host.write("v.yaml", std::slice::from_ref(&manifest));
    host.until("v", &["True"]).await;
    host.write("v.yaml", &[absent(&manifest)]);
    host.until("v", &["Deleted"]).await;
    let endpoint = format!("unix://{}", host.agent.socket().display());
    let arguments = ["trash", "-o", "json", "--endpoint", &endpoint];
    let listed = host.agent.command(&arguments);
    let listed: Value = serde_json::from_str(&printed(&listed, arguments)).unwrap();
    let arguments = [&arguments[..], &["--destroy", "v", "--yes"]].concat();
    let destroyed = host.agent.command(&arguments);
    let destroyed: Value = serde_json::from_str(&printed(&destroyed, &arguments)).unwrap();
    assert_eq!(destroyed, json!({"volumes": listed["volumes"]}));
    assert_eq!(destroyed["volumes"][0]["owner"], "file default/v");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_assigned_or_handed_over_is_told() {
    let host = with_orphans(&["one", "two"], small).await;
    let kept = told(&host, "kept", &[]);
    let handle = |row: usize| kept["objects"][row]["handle"].clone();
    let [one, two] = [handle(0), handle(1)];
    let key = |name: &str| json!({"kind": "Volume", "namespace": "default", "name": name});
    assert_eq!(
        told(&host, "handover", &["dv", "one"]),
        json!({"handle": one, "object": key("one")})
    );
    assert_eq!(
        told(&host, "adopt", &[two.as_str().unwrap(), "three"]),
        json!({"handle": two, "object": key("three")})
    );
    let image = host.agent.path("state/one.img").display().to_string();
    let to_host = ["dv", "one", "--to-host", "--path", &image];
    let shown = told(&host, "handover", &to_host);
    let wanted =
        |changed| json!({"handle": one, "source": image, "mountPaths": [], "changed": changed});
    assert_eq!(shown, wanted(false));
    let handed = told(&host, "handover", &[&to_host[..], &["--yes"]].concat());
    assert_eq!(handed, wanted(true));
    assert!(std::path::Path::new(&image).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_a_rollback_and_a_wait_are_told() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("v"), group("g", "v"), snapshot("s", "v")]);
    host.until("g", &["True", "1 of 1"]).await;
    let taking = object("GroupSnapshot", "before", "", "groupName: g");
    host.write("s.yaml", &[taking]);
    let waited = on_record(&host, &["wait", "dgsnap/before", "dsnap/s", "--timeout=1m"]);
    assert_eq!(waited, (json!({"done": true, "waiting": []}), Some(0)));
    let never = ["wait", "dv/other", "--timeout=0s"];
    let (waited, code) = on_record(&host, &never);
    assert_eq!((&waited["done"], code), (&json!(false), Some(3)));
    let one = &waited["waiting"][0];
    assert_eq!(one["kind"], "Volume", "{waited:#}");
    assert_eq!(one["name"], "other", "{waited:#}");
    assert_ne!(one["message"], "", "{waited:#}");

    let (list, _) = on_record(&host, &["restore", "dgsnap", "before"]);
    assert_eq!(list["kind"], "List", "{list:#}");
    let kinds = [&list["items"][0]["kind"], &list["items"][1]["kind"]];
    assert_eq!(kinds, ["Volume", "VolumeGroup"], "{list:#}");

    let named = ["dgsnap", "before", "--name", "back"];
    let rolled = told(&host, "rollback", &named);
    let before = host.object("GroupSnapshot", "before");
    assert_eq!(rolled["handle"], before["status"]["groupSnapshotHandle"]);
    assert_eq!(rolled["name"], "back", "{rolled:#}");
    let kept = told(&host, "kept", &[]);
    assert_eq!(rolled["kept"], kept["objects"][0]["handle"], "{kept:#}");
    let discarded = told(&host, "rollback", &["dgsnap", "before", "--discard"]);
    assert_eq!(discarded.get("kept"), None, "{discarded:#}");
}

/// What a command prints of the state files for programs, and its exit code.
fn on_record(host: &Host, arguments: &[&str]) -> (Value, Option<i32>) {
    let state = host.agent.path("state").display().to_string();
    let places = ["-o", "json", "--state-dir", &state];
    let output = host.agent.command(&[arguments, &places].concat());
    let told = serde_json::from_slice(&output.stdout);
    let told = told.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (told, output.status.code())
}
