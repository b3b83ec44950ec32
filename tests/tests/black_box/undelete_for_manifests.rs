//! A volume of a manifest comes back from the trash: who gets it, and when.

use serde_json::Value;

use crate::{
    foreign_helpers::{done, fails},
    helpers::get,
    host::{Host, absent, small},
    trash_of_manifests::{manifest, with_thrown_away},
};

/// What `drumlin undelete` says, for programs.
fn undeleted(host: &Host, arguments: &[&str]) -> Value {
    let arguments = [&["-o", "json"], arguments].concat();
    serde_json::from_str(&done(&host.agent, "undelete", &arguments)).unwrap()
}

/// What a command without a state directory prints for programs.
fn command_json(host: &Host, arguments: &[&str]) -> Value {
    let endpoint = format!("unix://{}", host.agent.socket().display());
    let arguments = [arguments, &["--endpoint", &endpoint]].concat();
    let output = host.agent.command(&arguments);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_has_a_new_volume_keeps_it_and_another_one_can_get_the_old_one() {
    let host = with_thrown_away().await;
    host.write("v.yaml", &[manifest(&host, "Trash")]);
    host.until("v", &["True"]).await;
    let new = host.object("Volume", "v")["status"]["volumeHandle"].clone();
    let new = new.as_str().unwrap();
    let told = done(&host.agent, "undelete", &["v", "--name", "old"]);
    assert!(!told.contains("when it is declared again"), "{told}");
    assert!(
        told.contains(new) && told.contains("keeps it") && told.contains("drumlin adopt"),
        "{told}"
    );
    let old = told.split_whitespace().next().unwrap();
    done(&host.agent, "adopt", &[old, "second"]);
    let second = manifest(&host, "Retain")
        .replace("name: v\n", "name: second\n")
        .replace(&host.path("v"), &host.path("second"));
    host.write("second.yaml", &[second]);
    host.until("second", &["True"]).await;
    assert_eq!(get(&host.path("second"), "file"), b"needed after all");
    let line = host.until("v", &["True"]).await;
    assert!(!line.contains("Ambiguous"), "{line}");
    assert_eq!(host.object("Volume", "v")["status"]["volumeHandle"], new);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_under_another_name_is_found_by_its_object_at_once() {
    let host = with_thrown_away().await;
    // The reconciler has a list of the volumes that is older than what comes.
    host.write("other.yaml", &[small("other")]);
    host.until("other", &["True"]).await;
    let told = undeleted(&host, &["v", "--name", "another"]);
    assert_eq!(told["owner"], "file default/v", "{told:#}");
    assert_eq!(told.get("other"), None, "{told:#}");
    host.write("v.yaml", &[manifest(&host, "Retain")]);
    host.until("v", &["True"]).await;
    assert_eq!(get(&host.path("v"), "file"), b"needed after all");
    let has = &host.object("Volume", "v")["status"]["volumeHandle"];
    assert_eq!(*has, told["handle"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_with_the_id_in_the_trash_finds_what_was_undeleted() {
    let host = with_thrown_away().await;
    let listed = command_json(&host, &["trash", "-o", "json"]);
    let id = listed["volumes"][0]["id"].as_str().unwrap();
    let told = undeleted(&host, &[id]);
    assert_eq!(undeleted(&host, &[id]), told);
    let never = id.rsplit_once('/').unwrap().0.to_owned() + "/23991047-9807-5c24-96ac-7d5b95cbccb7";
    for wrong in [&*never, "v", "default/v"] {
        let refused = fails(&host.agent, "undelete", &[wrong]);
        assert!(refused.contains("not in the trash"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_two_steps_an_undelete_leaves_nothing_that_the_manifest_deletes_again() {
    let mut host = with_thrown_away().await;
    host.restart(Some("trash.undeleted")).await;
    fails(&host.agent, "undelete", &["v", "--name", "another"]);
    host.agent.wait_until_killed().await;
    host.lose_state().await;
    host.until("v", &["Deleted"]).await;
    assert_eq!(host.counts().await, (1, 0));
    host.write("v.yaml", &[manifest(&host, "Retain")]);
    host.until("v", &["True"]).await;
    assert_eq!(get(&host.path("v"), "file"), b"needed after all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_asked_for_the_deletion_does_not_delete_again_what_was_undeleted() {
    let mut host = with_thrown_away().await;
    let told = undeleted(&host, &["v"]);
    assert_eq!(host.counts().await, (1, 0));
    host.lose_state().await;
    host.until("v", &["Deleted"]).await;
    assert_eq!(host.counts().await, (1, 0));
    let listed: Value = serde_json::from_str(&done(&host.agent, "kept", &["-o", "json"])).unwrap();
    assert_eq!(listed["objects"][0]["state"], "Released", "{listed:#}");
    assert_eq!(listed["objects"][0]["handle"], told["handle"], "{listed:#}");
    host.write("v.yaml", &[manifest(&host, "Retain")]);
    host.until("v", &["True"]).await;
    assert_eq!(get(&host.path("v"), "file"), b"needed after all");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_adopted_for_a_deleted_object_waits_until_its_manifest_declares_it() {
    let host = with_thrown_away().await;
    let told = undeleted(&host, &["v", "--name", "another"]);
    let second = manifest(&host, "Retain")
        .replace("name: v\n", "name: second\n")
        .replace(&host.path("v"), &host.path("second"));
    host.write("second.yaml", &[absent(&second)]);
    host.until("second", &["Released"]).await;
    done(
        &host.agent,
        "adopt",
        &[told["handle"].as_str().unwrap(), "second"],
    );
    // The requests of administrators are read every three seconds.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    host.until("second", &["Released"]).await;
    host.write("second.yaml", &[second]);
    host.until("second", &["True"]).await;
    assert_eq!(get(&host.path("second"), "file"), b"needed after all");
}
