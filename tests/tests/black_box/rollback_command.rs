//! `drumlin rollback`: the volumes of a manifest's group snapshot get its bytes back.

use drumlin_tests::{
    agent::eventually,
    programs::{drumlin, program},
    relay::{Fault, Relay},
};
use serde_json::Value;
use tonic::Code;

use crate::{
    foreign_helpers::done,
    helpers::{get, put, text},
    host::{Host, group, object, volume},
};

impl Host {
    /// What `drumlin rollback` prints, or how it fails.
    fn roll_back(&self, arguments: &[&str]) -> Result<String, String> {
        let state = text(self.agent.path("state"));
        let endpoint = text(self.agent.socket());
        let places = ["--state-dir", &state, "--endpoint", &endpoint];
        let output = self
            .agent
            .command(&[&["rollback"], arguments, &places].concat());
        let shown = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            return Ok(shown(output.stdout));
        }
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        Err(shown(output.stderr))
    }

    /// Has the two volumes mounted, or not.
    async fn pair(&self, is_mounted: bool) {
        let names = ["data", "log"];
        let volumes = names.map(|name| {
            let mount = format!("mount: {{path: {}}}", self.path(name));
            volume(name, "16Mi", if is_mounted { &mount } else { "" })
        });
        let [data, log] = volumes;
        self.write("pg.yaml", &[data, log, group("pg", "data log")]);
        for name in names {
            let state = if is_mounted { "16Mi at" } else { "not mounted" };
            self.until(name, &["True", state]).await;
        }
        self.until("pg", &["True", "2 of 2"]).await;
    }

    fn put_both(&self, word: &str) {
        for name in ["data", "log"] {
            put(&self.path(name), "word", word.as_bytes());
        }
    }

    fn get_both(&self) -> [String; 2] {
        ["data", "log"].map(|name| String::from_utf8(get(&self.path(name), "word")).unwrap())
    }
}

#[tokio::test]
async fn the_volumes_of_a_manifest_go_back_and_forth() {
    let host = Host::start().await;
    host.pair(true).await;
    host.put_both("one");
    host.pair(false).await;
    let taking = object("GroupSnapshot", "before", "", "groupName: pg");
    host.write("s.yaml", &[taking]);
    host.until("before", &["True"]).await;
    host.pair(true).await;
    host.put_both("two");

    // While they are used it says by whom, and what to do.
    let refused = host.roll_back(&["dgsnap", "before"]).unwrap_err();
    assert!(refused.contains(&host.path("")), "{refused}");
    assert!(refused.contains("nothing was changed"), "{refused}");
    assert_eq!(host.get_both(), ["two", "two"]);

    host.pair(false).await;
    let named = ["dgsnap", "default/before", "--name", "back"];
    let told = host.roll_back(&named).unwrap();
    assert!(
        told.starts_with("rolled back to default/before, 2 volumes\n"),
        "{told}"
    );
    // The same name again is the same rollback.
    assert_eq!(host.roll_back(&named).unwrap(), told);
    // What was before holds space, and is shown with what it is.
    let kept = done(&host.agent, "kept", &["-o", "json"]);
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let [one] = kept["objects"].as_array().unwrap().as_slice() else {
        panic!("{kept}");
    };
    assert_eq!(one["state"], "BeforeRollback");
    assert_eq!(one["owner"], "before the rollback to file default/before");
    assert_eq!(one["kind"], "GroupSnapshot");
    assert_eq!(one["size"], "32Mi");
    assert!(told.contains(one["handle"].as_str().unwrap()), "{told}");
    host.pair(true).await;
    assert_eq!(host.get_both(), ["one", "one"]);
    let table = eventually(|| host.agent.status(), |(_, code)| *code == 0).await;
    assert!(!table.0.contains("Lost"), "{}", table.0);

    host.pair(false).await;
    let id = told.split_whitespace().last().unwrap();
    let told = host.roll_back(&["dgsnap", id, "--discard"]).unwrap();
    assert!(told.contains("were discarded"), "{told}");
    host.pair(true).await;
    assert_eq!(host.get_both(), ["two", "two"]);
    done(&host.agent, "delete", &["--yes", id]);
    let kept = done(&host.agent, "kept", &[]);
    assert!(kept.starts_with("no "), "{kept}");
}

#[tokio::test]
async fn what_is_not_there_or_not_ready_is_named() {
    let mut host = Host::start().await;
    let taking = object("GroupSnapshot", "early", "", "groupName: none");
    host.write("s.yaml", &[taking]);
    host.until("early", &["DependencyNotFound"]).await;
    for (which, words) in [
        ("db/none", "GroupSnapshot/db/none does not exist"),
        (
            "early",
            "GroupSnapshot/default/early is not ready: DependencyNotFound",
        ),
        ("node-a/default/none", "does not exist"),
    ] {
        let refused = host.roll_back(&["dgsnap", which]).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
    host.agent.kill();
    let refused = host
        .roll_back(&["dgsnap", "a/b/c", "--name", "n"])
        .unwrap_err();
    assert!(refused.contains("cannot be reached"), "{refused}");
    assert!(refused.contains("--name n"), "{refused}");
}

#[tokio::test]
async fn a_rollback_that_makes_no_progress_is_given_up_and_says_how_it_goes_on() {
    const ROLLBACK: &str = "RollbackVolumeGroupSnapshot";
    let host = Host::start().await;
    let relay = Relay::start(host.agent.path("relay.sock"), &host.agent.socket());
    relay.on(ROLLBACK, "", Fault::Refuse(Code::Aborted));
    let mut command = program(drumlin());
    // Minutes last a second.
    command
        .env("DRUMLIN_TIME_LAPSE", "60")
        .args(["rollback", "dgsnap", "a/b/c", "--name", "n", "--endpoint"])
        .arg(relay.socket());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await;
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(relay.calls(ROLLBACK) > 2);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("refused on the way\n"), "{told}");
    assert!(told.contains("repeat it with --name n"), "{told}");
}
