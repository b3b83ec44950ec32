//! What a service manager is told by `sd_notify(3)`, whose socket this test has in its place.

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    time::{Duration, Instant},
};

use drumlin_proto::csi::v1::CreateVolumeRequest;
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE, eventually, write},
    programs::{output, run},
    requests::{create, mounted},
    storage::{Kind, Scratch},
};
use nix::sys::signal::Signal;

use crate::{helpers::text, host::small};

/// Silence after which this manager would restart the agent.
const WATCHDOG: Duration = Duration::from_millis(400);

/// What has been told, message by message.
pub(crate) struct Manager(UnixDatagram);

impl Manager {
    /// Listens in a scratch directory; returns what an agent is to be told of it.
    pub(crate) fn new(scratch: &Scratch) -> (Self, Vec<(String, String)>) {
        let path = scratch.path().join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let environment = vec![
            ("NOTIFY_SOCKET".to_owned(), text(path)),
            ("WATCHDOG_USEC".to_owned(), WATCHDOG.as_micros().to_string()),
        ];
        (Self(socket), environment)
    }

    /// The next message, if one comes in time.
    fn next(&self, within: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut message = [0; 4096];
        let length = self.0.recv(&mut message).ok()?;
        Some(String::from_utf8(message[..length].to_vec()).unwrap())
    }

    /// Waits for a message that has all these words.
    pub(crate) fn until(&self, words: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let message = self.next(PATIENCE).unwrap();
            if words.iter().all(|word| message.contains(word)) {
                return message;
            }
        }
        panic!("{words:?} was never told");
    }

    /// Forgets what was told so far.
    fn forget(&self) {
        while self.next(Duration::from_millis(1)).is_some() {}
    }

    /// Checks that the agent is told to be alive, longer than a manager would wait.
    fn is_fed(&self) {
        self.forget();
        let begun = Instant::now();
        while begun.elapsed() < 3 * WATCHDOG {
            self.until(&["WATCHDOG=1"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_manager_is_told_of_readiness_reloads_and_the_stop() {
    let scratch = Scratch::new();
    let (manager, environment) = Manager::new(&scratch);
    let manifests = scratch.directory("manifests");
    write(&manifests.join("v.yaml"), &small("v"));
    let options = Options {
        config: Some("nodeLabels: {disk: nvme}\n".to_owned()),
        arguments: vec!["--manifests".to_owned(), text(manifests)],
        environment,
        ..Options::default()
    };
    let mut agent = Agent::with(scratch, options).await;
    let first = manager.next(PATIENCE).unwrap();
    assert!(
        first.starts_with("READY=1\nSTATUS=serving unix://"),
        "{first}"
    );
    // What waits for mounts after it waits for those of all manifests.
    let (table, _) = agent.status();
    assert!(table.contains("Volume"), "{table}");

    agent.signal(Signal::SIGHUP);
    let reloading = manager.until(&["RELOADING=1"]);
    let since = reloading
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(since.unwrap().parse::<u64>().unwrap() > 0, "{reloading}");
    manager.until(&["READY=1\n", "STATUS=configuration read again\n"]);

    let path = agent.path("config.yaml");
    std::fs::write(&path, "nodeLabels: {disk: nvme}\nnoed: x\n").unwrap();
    agent.signal(Signal::SIGHUP);
    let place = format!("config file {}: line 2", path.display());
    manager.until(&[
        "READY=1",
        "STATUS=configuration not applied",
        &place,
        "noed",
    ]);

    manager.forget();
    agent.signal(Signal::SIGTERM);
    manager.until(&["STOPPING=1"]);
    assert_eq!(agent.wait().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_is_told_at_once_while_the_changed_file_is_waited_for() {
    let scratch = Scratch::new();
    let (manager, environment) = Manager::new(&scratch);
    let options = Options {
        environment,
        ..Options::of_directory(&scratch.directory("images"))
    };
    let agent = Agent::with(scratch, options).await;
    manager.until(&["READY=1"]);
    let more = agent.scratch.directory("more");
    let class = |name: &str, path: &Path| {
        format!(
            "- {{name: {name}, directory: {{path: {}}}}}\n",
            path.display()
        )
    };
    let classes = [
        class("default", &agent.path("images")),
        class("more", &more),
    ];
    let config = format!(
        "classes:\n{}{}",
        classes[0].replace("default,", "default, default: true,"),
        classes[1]
    );
    write(&agent.path("config.yaml"), &config);
    // In the time that a change of the file may take to be complete.
    tokio::time::sleep(Duration::from_millis(50)).await;
    agent.signal(Signal::SIGHUP);
    // Who waits for the end of the reload has to know of it before anything else.
    let first = loop {
        let told = manager.next(PATIENCE).unwrap();
        // The changed file may have been applied by itself before.
        if told != "WATCHDOG=1\n" && !told.starts_with("STATUS=") {
            break told;
        }
    };
    assert!(first.starts_with("RELOADING=1"), "{first}");
    manager.until(&["READY=1\n", "STATUS=configuration read again\n"]);
    let request = CreateVolumeRequest {
        parameters: [("class".to_owned(), "more".to_owned())].into(),
        ..create("v", 4, &mounted("ext4"))
    };
    agent.controller().create_volume(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_is_fed_while_a_disk_hangs_and_not_while_the_agent_does() {
    let scratch = Scratch::new();
    let (manager, environment) = Manager::new(&scratch);
    let images = text(scratch.file_system("images", Kind::Ext4, 64));
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, directory: {{path: {images}}}}}]\n"
        )),
        environment,
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    manager.until(&["READY=1"]);
    manager.is_fed();

    run("fsfreeze", &["--freeze", &images]);
    let mut controller = agent.controller();
    let creating = tokio::spawn(async move {
        controller
            .create_volume(create("v", 20, &mounted("ext4")))
            .await
    });
    eventually(
        || drumlin_tests::programs::waiting(agent.pid()),
        |waiting| *waiting > 0,
    )
    .await;
    manager.is_fed();
    output("fsfreeze", &["--unfreeze", &images]);
    creating.await.unwrap().unwrap();

    agent.signal(Signal::SIGSTOP);
    manager.forget();
    assert_eq!(manager.next(2 * WATCHDOG), None);
    agent.signal(Signal::SIGCONT);
    manager.is_fed();
}
