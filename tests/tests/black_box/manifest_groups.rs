//! Groups that manifests keep: who is in them, who is not, and why.

use std::fs;

use drumlin_proto::volumegroup::{ListVolumeGroupsRequest, VolumeGroup};
use drumlin_tests::{
    agent::{Options, eventually},
    requests::{create_group, delete_group, raw, set_members},
};

use serde_json::Value;

use crate::{
    helpers::{ok, volume as make_volume},
    host::{Host, absent, annotated, group, object, small, volume},
};

fn labelled(name: &str, labels: &str) -> String {
    small(name).replace(
        "metadata:\n",
        &format!("metadata:\n  labels: {{{labels}}}\n"),
    )
}

/// The manifest with a word that has its object looked at now.
fn looked_at(manifest: &str, word: &str) -> String {
    annotated(manifest, &format!("drumlin.dev/reconcile-at: {word}"))
}

impl Host {
    pub(crate) async fn groups(&self) -> Vec<VolumeGroup> {
        let mut client = self.agent.groups();
        let listed = client.list_volume_groups(ListVolumeGroupsRequest::default());
        let entries = ok(listed.await).entries.into_iter();
        entries.filter_map(|entry| entry.volume_group).collect()
    }

    /// What the agent says is in its only group, by the names of manifests or, of others, by ids.
    async fn inside(&self) -> Vec<String> {
        let [group] = self.groups().await.try_into().unwrap();
        let ids = group.volumes.into_iter().map(|volume| volume.volume_id);
        let mut inside: Vec<String> = ids.map(|id| self.name_of(&id)).collect();
        inside.sort();
        inside
    }

    fn name_of(&self, id: &str) -> String {
        let home = self.agent.path("state/reconciler/objects/Volume/default");
        for entry in fs::read_dir(home).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(name) = name.strip_suffix(".json") else {
                continue;
            };
            if self.object("Volume", name)["status"]["volumeHandle"] == id {
                return name.to_owned();
            }
        }
        id.to_owned()
    }

    pub(crate) fn handle(&self, name: &str) -> String {
        let handle = &self.object("Volume", name)["status"]["volumeHandle"];
        handle.as_str().unwrap().to_owned()
    }

    /// The members of a group by its record, as `name state` each.
    fn members(&self, group: &str) -> Vec<String> {
        let group = self.object("VolumeGroup", group);
        let members = group["status"]["members"].as_array();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let member =
            |member: &Value| format!("{} {}", text(&member["name"]), text(&member["state"]));
        members.into_iter().flatten().map(member).collect()
    }

    /// Makes these the members of the only group, as another client would.
    async fn modify(&self, ids: &[String]) {
        let [group] = self.groups().await.try_into().unwrap();
        let request = set_members(&group.volume_group_id, ids.to_vec());
        let mut client = self.agent.groups();
        ok(client.modify_volume_group_membership(request).await);
    }
}

#[tokio::test]
async fn members_by_name_join_when_they_are_made_and_the_group_says_for_whom_it_waits() {
    let host = Host::start().await;
    host.write("g.yaml", &[group("g", "a b")]);
    let pending = ["False", "MembersPending", "Volume a: no manifest"];
    host.until("g", &pending).await;
    let paused = annotated(&small("b"), "drumlin.dev/paused: \"true\"");
    host.write("v.yaml", &[small("a"), paused]);
    let pending = [
        "False",
        "MembersPending",
        "Volume b: volume is not created yet",
    ];
    host.until("g", &pending).await;
    eventually(
        || host.members("g"),
        |members| members[..] == ["a Joined", "b Pending"],
    )
    .await;
    assert_eq!(host.inside().await, ["a"], "who can join has joined");
    host.write("v.yaml", &[small("a"), small("b")]);
    host.until("g", &["True", "AllMembersJoined", "2 of 2"])
        .await;
    assert_eq!(host.inside().await, ["a", "b"]);
    assert_eq!(host.members("g"), ["a Joined", "b Joined"]);
    assert_eq!(host.object("Volume", "a")["status"]["groupName"], "g");
    let (table, code) = host.agent.status();
    assert_eq!(code, 0, "{table}");

    let needs = group("g", "a b").replace("}]}", "}], minMembers: 3}");
    host.write("g.yaml", &[needs]);
    let too_few = [
        "False",
        "MembersPending",
        "2 members joined, but spec.minMembers is 3",
    ];
    host.until("g", &too_few).await;
    assert_eq!(host.inside().await, ["a", "b"]);
    host.write("g.yaml", &[group("g", "b")]);
    host.until("g", &["True", "1 of 1"]).await;
    assert_eq!(host.inside().await, ["b"]);
    let alone = |volume: &Value| volume["status"]["groupName"].is_null();
    eventually(|| host.object("Volume", "a"), alone).await;
}

#[tokio::test]
async fn labels_say_who_is_in_a_group_and_a_change_of_them_is_followed() {
    let host = Host::start().await;
    let selecting = |spec: &str| object("VolumeGroup", "g", "", &format!("selector: {{{spec}}}"));
    host.write("g.yaml", &[selecting("matchLabels: {app: pg}")]);
    let none = ["False", "MembersPending", "0 members joined"];
    host.until("g", &none).await;
    let others = volume("d", "16Mi", "").replace(
        "metadata:\n",
        "metadata:\n  namespace: other\n  labels: {app: pg}\n",
    );
    let (a, b) = (
        labelled("a", "app: pg"),
        labelled("b", "app: pg, tier: log"),
    );
    let c = labelled("c", "app: web");
    host.write("v.yaml", &[a.clone(), b.clone(), c, others]);
    host.until("g", &["True", "2 of 2"]).await;
    assert_eq!(host.inside().await, ["a", "b"]);
    // A label comes, another goes.
    host.write("v.yaml", &[small("a"), b.clone(), labelled("c", "app: pg")]);
    eventually(
        || host.members("g"),
        |members| members[..] == ["b Joined", "c Joined"],
    )
    .await;
    host.until("g", &["True", "2 of 2"]).await;
    assert_eq!(host.inside().await, ["b", "c"]);
    // Another selector; one that shall go is not meant.
    let expression = "matchExpressions: [{key: tier, operator: DoesNotExist}, {key: app, operator: In, values: [pg, web]}]";
    host.write("g.yaml", &[selecting(expression)]);
    host.until("g", &["True", "1 of 1"]).await;
    assert_eq!(host.inside().await, ["c"]);
    host.write("v.yaml", &[a, b, absent(&labelled("c", "app: pg"))]);
    host.until("c", &["Deleted"]).await;
    host.until("g", &["True", "1 of 1"]).await;
    assert_eq!(host.inside().await, ["a"]);
}

#[tokio::test]
async fn what_others_put_into_a_group_stays_and_no_volume_goes_with_it() {
    for policy in ["unlink", "refuse", "cascade"] {
        let mut host = Host::with(Options {
            config: Some(format!("onGroupDelete: {policy}\n")),
            ..Options::default()
        })
        .await;
        host.write("v.yaml", &[small("a"), small("b")]);
        host.write("g.yaml", &[group("g", "a b")]);
        host.until("g", &["True", "2 of 2"]).await;
        let foreign = make_volume(&host.agent, "foreign", 16, &raw()).await;
        // One comes and one goes by another client's hand; a start looks what has become of all.
        host.modify(&[host.handle("a"), foreign.clone()]).await;
        host.restart(None).await;
        let message = [
            "True",
            "2 of 2 members joined, and 1 added by other callers",
        ];
        host.until("g", &message).await;
        let mut all = vec!["a".to_owned(), "b".to_owned(), foreign.clone()];
        all.sort();
        assert_eq!(host.inside().await, all);
        assert_eq!(host.members("g"), ["a Joined", "b Joined", " Foreign"]);
        host.write("g.yaml", &[group("g", "b")]);
        host.until(
            "g",
            &[
                "True",
                "1 of 1 members joined, and 1 added by other callers",
            ],
        )
        .await;
        all.retain(|name| name != "a");
        assert_eq!(host.inside().await, all);
        host.write("g.yaml", &[absent(&group("g", "b"))]);
        host.until("g", &["Deleted"]).await;
        assert_eq!(host.groups().await, []);
        assert_eq!(host.counts().await.0, 3, "{policy}");
        assert!(host.object("Volume", "b")["status"]["groupName"].is_null());
        assert_eq!(host.agent.status().1, 0);
    }
}

#[tokio::test]
async fn the_group_that_has_a_volume_keeps_it_whatever_another_one_is_called() {
    let labels = "selector: {matchLabels: {app: pg}}";
    for (first, second) in [
        (group("g1", "a b"), group("g2", "b c")),
        (object("VolumeGroup", "g1", "", labels), group("g2", "b c")),
        (group("g1", "a b"), object("VolumeGroup", "g2", "", labels)),
    ] {
        let mut host = Host::start().await;
        let b = labelled("b", "app: pg");
        host.write("v.yaml", &[small("a"), b, small("c")]);
        host.write("2.yaml", &[second.clone()]);
        host.until("g2", &["True"]).await;
        host.write("1.yaml", &[first.clone()]);
        let conflict = [
            "False",
            "MemberConflict",
            "VolumeGroup/default/g2 also selects it",
        ];
        host.until("g1", &conflict).await;
        host.restart(None).await;
        host.write("2.yaml", &[looked_at(&second, "now")]);
        host.until("g2", &["True", "AllMembersJoined"]).await;
        host.until("g1", &conflict).await;
        let holder = |host: &Host| host.object("Volume", "b")["status"]["groupName"].clone();
        assert_eq!(holder(&host), "g2");
        assert_eq!(host.agent.status().1, 3);
        host.write("2.yaml", &[absent(&second)]);
        host.until("g2", &["Deleted"]).await;
        host.until("g1", &["True", "AllMembersJoined"]).await;
        eventually(|| holder(&host), |holder| holder == "g1").await;
        assert_eq!(host.agent.status().1, 0);
    }
}

#[tokio::test]
async fn of_two_groups_that_wait_for_a_volume_the_older_one_gets_it() {
    let host = Host::start().await;
    for name in ["g2", "g1"] {
        host.write(&format!("{name}.yaml"), &[group(name, "b")]);
        host.until(name, &["False", "MembersPending"]).await;
        let made = host.object("VolumeGroup", name)["metadata"]["creationTimestamp"].clone();
        // A time of creation has whole seconds.
        let second = || {
            Value::from(
                k8s_openapi::jiff::Timestamp::now()
                    .strftime("%FT%TZ")
                    .to_string(),
            )
        };
        eventually(second, |now| *now != made).await;
    }
    host.write("v.yaml", &[small("b")]);
    host.until("g2", &["True", "AllMembersJoined"]).await;
    let conflict = [
        "False",
        "MemberConflict",
        "VolumeGroup/default/g2 also selects it",
    ];
    host.until("g1", &conflict).await;
}

#[tokio::test]
async fn a_volume_in_a_group_of_others_keeps_no_other_member_out() {
    let host = Host::start().await;
    let names = ["a", "b", "c", "d", "e"];
    host.write("v.yaml", &names.map(small));
    for name in names {
        host.until(name, &["True"]).await;
    }
    let request = create_group("theirs", vec![host.handle("b"), host.handle("d")]);
    let mut client = host.agent.groups();
    let theirs = ok(client.create_volume_group(request).await);
    let theirs = theirs.volume_group.unwrap().volume_group_id;
    host.write("g.yaml", &[group("g", "a b c d e")]);
    let line = host
        .until("g", &["False", "MemberConflict", "Volume b"])
        .await;
    assert!(line.contains(&theirs), "{line}");
    let members = [
        "a Joined",
        "b Conflict",
        "c Joined",
        "d Conflict",
        "e Joined",
    ];
    assert_eq!(host.members("g"), members);
    let request = delete_group(&theirs);
    ok(client.delete_volume_group(request).await);
    host.write("g.yaml", &[looked_at(&group("g", "a b c d e"), "now")]);
    host.until("g", &["True", "5 of 5"]).await;
    assert_eq!(host.inside().await, names);
}

#[tokio::test]
async fn a_volume_that_is_destroyed_leaves_its_group_first_whoever_has_put_it_there() {
    let host = Host::start().await;
    let v = ["a", "b", "c"].map(small);
    host.write("v.yaml", &v);
    host.write("g.yaml", &[group("g", "a b")]);
    host.until("g", &["True", "2 of 2"]).await;
    host.until("c", &["True"]).await;
    let all = ["a", "b", "c"].map(|name| host.handle(name));
    host.modify(&all).await;
    host.write("g.yaml", &[looked_at(&group("g", "a b"), "now")]);
    host.until("g", &["True", "and 1 added by other callers"])
        .await;
    assert_eq!(host.members("g").last().unwrap(), "c Foreign");
    host.write("v.yaml", &[v[0].clone(), absent(&v[1]), absent(&v[2])]);
    host.until("b", &["Deleted"]).await;
    host.until("c", &["Deleted"]).await;
    let pending = ["False", "MembersPending", "b: volume is being deleted"];
    host.until("g", &pending).await;
    assert_eq!(host.inside().await, ["a"]);
    host.write("g.yaml", &[group("g", "a")]);
    host.until("g", &["True", "1 of 1"]).await;
    assert_eq!(host.counts().await.0, 1);
}

#[tokio::test]
async fn groups_and_members_of_other_nodes_are_told_apart() {
    let host = Host::start().await;
    let there = |manifest: &str| manifest.replace("spec:\n", "spec:\n  nodeName: node-b\n");
    let theirs = group("theirs", "a").replace("spec: {", "spec: {nodeName: node-b, ");
    host.write("a.yaml", &[small("a"), there(&small("b")), theirs]);
    host.write("g.yaml", &[group("g", "a b")]);
    let elsewhere = ["False", "MembersOnOtherNode", "Volume b: is on node node-b"];
    host.until("g", &elsewhere).await;
    eventually(
        || host.members("g"),
        |members| members[..] == ["a Joined", "b OtherNode"],
    )
    .await;
    assert_eq!(host.inside().await, ["a"]);
    let (table, _) = host.agent.status();
    assert!(table.contains("2 objects belong to other nodes"), "{table}");
    assert!(!table.contains("theirs"), "{table}");
    // It moves here, as far as the manifests are concerned.
    host.write("a.yaml", &[small("a"), small("b")]);
    host.until("g", &["True", "2 of 2"]).await;
}

#[tokio::test]
async fn a_group_that_is_paused_or_in_no_manifest_any_more_is_left_alone() {
    let host = Host::start().await;
    host.write("v.yaml", &[small("a"), small("b")]);
    host.write("g.yaml", &[group("g", "a b")]);
    host.until("g", &["True", "2 of 2"]).await;
    let paused = annotated(&group("g", "a"), "drumlin.dev/paused: \"true\"");
    host.write("g.yaml", &[paused]);
    // It stays in the group, so it cannot go.
    host.write("v.yaml", &[small("a"), absent(&small("b"))]);
    host.until("b", &["DeletionBlocked", "is in group"]).await;
    fs::remove_file(host.manifests.join("g.yaml")).unwrap();
    host.until("g", &["Orphan"]).await;
    assert_eq!(host.inside().await, ["a", "b"]);
    host.write("g.yaml", &[group("g", "a")]);
    host.until("g", &["True", "1 of 1"]).await;
    host.until("b", &["Deleted"]).await;
}

#[tokio::test]
async fn a_group_with_a_mistake_is_named_with_file_line_and_field() {
    let host = Host::start().await;
    let good = [small("a"), group("g", "a")];
    host.write("g.yaml", &good);
    host.until("g", &["True", "1 of 1"]).await;
    let both = group("g", "a").replace("}]}", "}], selector: {}}");
    let neither = object("VolumeGroup", "g", "", "minMembers: 1");
    let unknown = object("VolumeGroup", "g", "", "selector: {matchLabel: {app: pg}}");
    for (wrong, part) in [
        (both, "spec: exactly one of members and selector"),
        (neither, "spec: exactly one of members and selector"),
        (group("g", "a a"), "spec.members.1: a is listed twice"),
        (unknown, "matchLabel"),
    ] {
        host.write("g.yaml", &[small("a"), wrong]);
        let found = |table: &String| table.contains("INVALID g.yaml:13:") && table.contains(part);
        eventually(|| host.agent.status().0, found).await;
        let checked = host
            .agent
            .command(&["validate", &host.manifests.to_string_lossy()]);
        let text = String::from_utf8(checked.stdout).unwrap();
        assert_eq!(checked.status.code(), Some(4));
        assert!(text.contains("g.yaml:13:") && text.contains(part), "{text}");
        host.until("g", &["True", "1 of 1"]).await;
    }
    let changed = group("g", "a").replace("}]}", "}], parameters: {class: other}}");
    host.write("g.yaml", &[small("a"), changed]);
    let refused = "INVALID g.yaml:13:";
    let found = |table: &String| {
        table.contains(refused) && table.contains("spec.parameters: cannot be changed")
    };
    eventually(|| host.agent.status().0, found).await;
    // What is right for a cluster, and never is on a bare host.
    let claim =
        group("g", "a").replace("}]}", "}, {kind: PersistentVolumeClaim, name: pgdata-0}]}");
    host.write("g.yaml", &[small("a"), claim]);
    let stalled = ["False", "Unsupported", "spec.members.1.kind", "(g.yaml:9)"];
    host.until("g", &stalled).await;
    host.write("g.yaml", &good);
    host.until("g", &["True", "1 of 1"]).await;
}

#[tokio::test]
async fn a_group_that_the_agent_refuses_can_be_mended_or_go() {
    let host = Host::start().await;
    let spec = "members: [{kind: Volume, name: a}], parameters: {class: missing}";
    let refused = object("VolumeGroup", "g", "", spec);
    host.write("g.yaml", &[small("a"), refused.clone()]);
    host.until("g", &["False", "class"]).await;
    host.write("h.yaml", &[object("VolumeGroup", "h", "", spec)]);
    host.until("h", &["False", "class"]).await;
    host.write("g.yaml", &[small("a"), group("g", "a")]);
    host.until("g", &["True", "1 of 1"]).await;
    host.write("h.yaml", &[absent(&object("VolumeGroup", "h", "", spec))]);
    host.until("h", &["Deleted"]).await;
    assert_eq!(host.groups().await.len(), 1);
}

#[tokio::test]
async fn nothing_is_called_when_nothing_changes() {
    let host = Host::with(Options {
        environment: vec![("DRUMLIN_LOG".to_owned(), "debug".to_owned())],
        ..Options::default()
    })
    .await;
    let v = [labelled("a", "app: pg"), labelled("b", "app: pg")];
    host.write("v.yaml", &v);
    let g = object(
        "VolumeGroup",
        "g",
        "",
        "selector: {matchLabels: {app: pg}}, minMembers: 2",
    );
    let s = object("GroupSnapshot", "s", "", "groupName: g");
    host.write("g.yaml", &[g.clone(), s.clone()]);
    host.until("s", &["True", "SnapshotReady"]).await;
    let (table, code) = host.agent.status();
    assert_eq!(code, 0, "{table}");
    let calls = || host.agent.log().matches("rpc.method=").count();
    let before = calls();
    assert!(before > 5, "calls are logged:\n{}", host.agent.log());
    // The same again, and something else that is only looked at.
    host.write("v.yaml", &v);
    host.write("g.yaml", &[g, s]);
    let paused = annotated(&small("p"), "drumlin.dev/paused: \"true\"");
    host.write(
        "p.yaml",
        &[paused.replace("metadata:\n", "metadata:\n  namespace: other\n")],
    );
    eventually(|| host.agent.status().0, |table| table.contains("other")).await;
    assert_eq!(calls(), before, "{}", host.agent.log());
    host.write(
        "v.yaml",
        &[v[0].clone(), v[1].clone(), labelled("c", "app: pg")],
    );
    host.until("g", &["True", "3 of 3"]).await;
    assert!(calls() > before);
}

#[tokio::test]
async fn a_selector_that_means_too_many_says_so_and_the_group_stays_as_it_is() {
    let host = Host::start().await;
    let by_labels = object("VolumeGroup", "g", "", "selector: {matchLabels: {app: pg}}");
    host.write("g.yaml", &[by_labels, labelled("a", "app: pg")]);
    host.until("g", &["True", "AllMembersJoined"]).await;
    let paused = |name: String, labels: &str| {
        annotated(&labelled(&name, labels), "drumlin.dev/paused: \"true\"")
    };
    let many = |labels: &str| {
        let all = (0..1024).map(|number| paused(format!("b{number:04}"), labels));
        all.collect::<Vec<_>>()
    };
    host.write("many.yaml", &many("app: pg"));
    let why = ["False", "TooManyMembers", "more than 1024", "spec.selector"];
    host.until("g", &why).await;
    assert_eq!(
        host.object("VolumeGroup", "g")["status"]["desiredCount"],
        1025
    );
    assert_eq!(host.inside().await, ["a"]);
    host.write("many.yaml", &many("app: web"));
    host.until("g", &["True", "AllMembersJoined", "1 of 1"])
        .await;
}

/// Found by a history.
#[tokio::test]
async fn a_group_that_a_kill_has_kept_from_hearing_of_its_volumes_hears_of_them_afterwards() {
    let mut host = Host::start().await;
    let by_labels = object("VolumeGroup", "g", "", "selector: {matchLabels: {app: pg}}");
    let (a, b) = (labelled("a", "app: pg"), labelled("b", "app: pg"));
    host.write("g.yaml", &[by_labels]);
    host.write("v.yaml", &[a.clone(), b.clone()]);
    host.until("g", &["True", "2 of 2"]).await;
    host.restart(Some("ingest.followed")).await;
    host.write("v.yaml", &[annotated(&a, "drumlin.dev/state: absent"), b]);
    host.agent.wait_until_killed().await;
    host.restart(None).await;
    host.until("a", &["Deleted"]).await;
    host.until("g", &["True", "1 of 1"]).await;
    assert_eq!(host.inside().await, ["b"]);
    host.restart(Some("ingest.followed")).await;
    host.write(
        "v.yaml",
        &[annotated(&a, "drumlin.dev/state: absent"), small("b")],
    );
    host.agent.wait_until_killed().await;
    host.restart(None).await;
    host.until("g", &["0 members joined"]).await;
    assert!(host.inside().await.is_empty());
}
