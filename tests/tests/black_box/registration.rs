//! Registration with kubelet, beside one that fails, forgets and restarts.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use drumlin_proto::{
    csi::v1::NodeGetInfoRequest,
    pluginregistration::{
        InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    kubelet::{Event, Fault, Kubelet, Retry},
    programs::run,
    storage::Scratch,
};
use nix::sys::signal::Signal;

use crate::helpers::{ok, text};

/// The name of the registration socket.
const NAME: &str = "csi.drumlin.dev-reg.sock";

/// Where kubelet looks.
fn registry(scratch: &Scratch) -> PathBuf {
    scratch.path().join("registry")
}

/// An agent that registers itself in the registry; its pauses of minutes are seconds.
fn registering(scratch: &Scratch) -> Options {
    Options {
        arguments: vec![
            "--kubelet-register".to_owned(),
            format!("--kubelet-registration-dir={}", text(registry(scratch))),
        ],
        environment: vec![("DRUMLIN_TIME_LAPSE".to_owned(), "60".to_owned())],
        ..Options::default()
    }
}

/// An agent that registers itself, and a kubelet.
async fn registered(retry: Retry) -> (Agent, Kubelet) {
    let scratch = Scratch::new();
    let kubelet = Kubelet::start(scratch.directory("registry").join(NAME), retry);
    let options = registering(&scratch);
    let agent = Agent::with(scratch, options).await;
    kubelet.until_registered(1).await;
    (agent, kubelet)
}

/// How often the agent has logged this.
fn logged(agent: &Agent, words: &str) -> usize {
    agent.log().matches(words).count()
}

async fn until_logged(agent: &Agent, words: &str) {
    eventually(|| agent.log(), |log| log.contains(words)).await;
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    names
        .map(|name| name.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[tokio::test]
async fn an_agent_registers_its_driver_and_is_not_seen_before_it_serves() {
    let (agent, kubelet) = registered(Retry::NewSocketOnly).await;
    let info = kubelet.registered().unwrap();
    assert_eq!(info.r#type, "CSIPlugin");
    assert_eq!(info.name, "csi.drumlin.dev");
    assert_eq!(info.endpoint, text(agent.socket()));
    assert_eq!(info.supported_versions, ["1.0.0"]);
    until_logged(&agent, "INFO registered with kubelet").await;
    let events = kubelet.events();
    assert_eq!(events, [Event::NewSocket, Event::Registered(info)]);
    let registry = registry(&agent.scratch);
    assert_eq!(names(&registry), [NAME]);
    let socket = fs::metadata(registry.join(NAME)).unwrap();
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.mode() & 0o777, 0o600);
}

#[tokio::test]
async fn kubelet_gets_the_path_of_the_csi_socket_that_it_sees() {
    let scratch = Scratch::new();
    let kubelet = Kubelet::start(scratch.directory("registry").join(NAME), Retry::SameSocket);
    // As a container's mount: another path, the same socket.
    let seen = scratch.path().join("seen");
    symlink(scratch.path(), &seen).unwrap();
    let endpoint = text(seen.join("csi.sock"));
    let options = Options {
        arguments: Vec::new(),
        config: Some(format!(
            "kubelet: {{register: true, registrationDir: {}, endpoint: {endpoint}}}\n",
            text(registry(&scratch))
        )),
        ..registering(&scratch)
    };
    let _agent = Agent::with(scratch, options).await;
    assert_eq!(kubelet.until_registered(1).await.endpoint, endpoint);
}

#[tokio::test]
async fn a_failed_registration_is_repeated_with_a_new_socket() {
    let scratch = Scratch::new();
    let kubelet = Kubelet::start(
        scratch.directory("registry").join(NAME),
        Retry::NewSocketOnly,
    );
    kubelet.fail(&[Fault::NodeGetInfo; 3]);
    let options = registering(&scratch);
    let agent = Agent::with(scratch, options).await;
    kubelet.until_registered(1).await;
    assert_eq!(kubelet.count(&Event::Failed), 3);
    assert_eq!(kubelet.count(&Event::NewSocket), 4);
    // Never away in between.
    assert_eq!(kubelet.count(&Event::NoSocket), 0);
    assert_eq!(kubelet.count(&Event::NotServed), 0);
    assert_eq!(logged(&agent, "NodeGetInfo failed"), 1, "{}", agent.log());
}

#[tokio::test]
async fn a_kubelet_that_repeats_a_registration_by_itself_keeps_its_socket() {
    let scratch = Scratch::new();
    let kubelet = Kubelet::start(scratch.directory("registry").join(NAME), Retry::SameSocket);
    kubelet.fail(&[Fault::NodeGetInfo; 3]);
    let options = Options {
        // Kubelet is faster, as it is without a lapse of time.
        environment: Vec::new(),
        ..registering(&scratch)
    };
    let agent = Agent::with(scratch, options).await;
    kubelet.until_registered(1).await;
    until_logged(&agent, "INFO registered with kubelet").await;
    let failed = [Event::Failed, Event::Failed, Event::Failed];
    let registered = Event::Registered(kubelet.registered().unwrap());
    let wanted = [&[Event::NewSocket], &failed[..], &[registered]].concat();
    assert_eq!(kubelet.events(), wanted);
}

#[tokio::test]
async fn a_notice_that_does_not_come_leads_to_a_new_socket() {
    let scratch = Scratch::new();
    let kubelet = Kubelet::start(
        scratch.directory("registry").join(NAME),
        Retry::NewSocketOnly,
    );
    kubelet.fail(&[Fault::NodeGetInfo, Fault::LosesNotice, Fault::LosesNotice]);
    let options = registering(&scratch);
    let agent = Agent::with(scratch, options).await;
    kubelet.until_registered(3).await;
    until_logged(&agent, "did not say what came of the registration").await;
    until_logged(&agent, "INFO registered with kubelet").await;
    assert_eq!(kubelet.count(&Event::NewSocket), 4);
    assert_eq!(kubelet.count(&Event::Unregistered), 2);
}

#[tokio::test]
async fn a_kubelet_that_restarts_finds_the_socket_that_is_there() {
    let (agent, mut kubelet) = registered(Retry::NewSocketOnly).await;
    let path = registry(&agent.scratch).join(NAME);
    let inode = || fs::metadata(&path).unwrap().ino();
    let before = inode();
    for times in 2..5 {
        kubelet.restart();
        kubelet.until_registered(times).await;
    }
    assert_eq!(inode(), before);
    assert_eq!(kubelet.count(&Event::NotServed), 0);
    assert_eq!(kubelet.count(&Event::Unregistered), 0);
}

#[tokio::test]
async fn get_info_is_answered_any_number_of_times_and_the_last_notice_counts() {
    let (agent, kubelet) = registered(Retry::NewSocketOnly).await;
    let path = registry(&agent.scratch).join(NAME);
    let plugin = || RegistrationClient::new(drumlin_proto::connect(&path).unwrap());
    let info = kubelet.registered().unwrap();
    for _ in 0..20 {
        assert_eq!(ok(plugin().get_info(InfoRequest {}).await), info);
    }
    let notice = |plugin_registered| RegistrationStatus {
        plugin_registered,
        error: "some\nreason".to_owned(),
    };
    ok(plugin().notify_registration_status(notice(true)).await);
    assert_eq!(kubelet.count(&Event::NewSocket), 1);
    ok(plugin().notify_registration_status(notice(false)).await);
    kubelet.until_registered(2).await;
    until_logged(&agent, "some\\nreason").await;
}

#[tokio::test]
async fn the_socket_outlives_its_agent_and_the_next_one_replaces_it_in_one_step() {
    let (mut agent, kubelet) = registered(Retry::NewSocketOnly).await;
    let path = registry(&agent.scratch).join(NAME);
    for (times, signal) in [(2, Signal::SIGTERM), (3, Signal::SIGKILL)] {
        agent.signal(signal);
        agent.wait().await;
        assert!(path.exists());
        assert_eq!(kubelet.count(&Event::Unregistered), times - 2);
        agent.restart().await;
        kubelet.until_registered(times).await;
    }
    assert_eq!(kubelet.count(&Event::NoSocket), 0);
    assert_eq!(kubelet.count(&Event::NotServed), 0);
    assert_eq!(names(&registry(&agent.scratch)), [NAME]);
}

#[tokio::test]
async fn a_registration_that_is_switched_off_is_withdrawn_and_one_that_is_not_configured_is_left_alone()
 {
    let (mut agent, kubelet) = registered(Retry::NewSocketOnly).await;
    let directory = registry(&agent.scratch);
    let path = directory.join(NAME);
    let with = |register: Option<&str>| Options {
        arguments: register
            .map(|register| format!("--kubelet-register={register}"))
            .into_iter()
            .chain([format!(
                "--kubelet-registration-dir={}",
                text(directory.clone())
            )])
            .collect(),
        ..Options::default()
    };
    agent.signal(Signal::SIGTERM);
    agent.wait().await;
    agent.restart_with(with(None)).await;
    assert!(path.exists(), "it may be that of a sidecar that restarts");
    agent.signal(Signal::SIGTERM);
    agent.wait().await;
    agent.restart_with(with(Some("false"))).await;
    eventually(|| kubelet.registered(), Option::is_none).await;
    assert_eq!(names(&directory), <[&str; 0]>::default());
    // One that is served is a sidecar's.
    agent.signal(Signal::SIGTERM);
    agent.wait().await;
    let _sidecar = UnixListener::bind(&path).unwrap();
    agent.restart_with(with(Some("false"))).await;
    ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
    agent.signal(Signal::SIGTERM);
    agent.wait().await;
    assert!(path.exists());
}

#[tokio::test]
async fn a_socket_that_is_removed_or_replaced_comes_back() {
    let (agent, kubelet) = registered(Retry::NewSocketOnly).await;
    let directory = registry(&agent.scratch);
    let path = directory.join(NAME);
    fs::remove_file(&path).unwrap();
    kubelet.until_registered(2).await;
    // By somebody who ended at once.
    fs::remove_file(&path).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    eventually(
        || RegistrationIsServed::at(&path),
        |served| *served == RegistrationIsServed::Yes,
    )
    .await;
    // With all the directory, which is made anew.
    fs::rename(&directory, agent.path("away")).unwrap();
    eventually(|| kubelet.registered(), Option::is_none).await;
    fs::create_dir(&directory).unwrap();
    let before = kubelet.events().len();
    eventually(
        || kubelet.events().split_off(before),
        |events| matches!(events.last(), Some(Event::Registered(_))),
    )
    .await;
    // What else happens there is no reason.
    let inode = fs::metadata(&path).unwrap().ino();
    fs::write(directory.join("other"), "x").unwrap();
    fs::remove_file(directory.join("other")).unwrap();
    ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
}

/// Whether somebody accepts connections at a path.
#[derive(Debug, PartialEq, Eq)]
enum RegistrationIsServed {
    Yes,
    No,
}

impl RegistrationIsServed {
    fn at(path: &Path) -> Self {
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => Self::Yes,
            Err(_) => Self::No,
        }
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_named_and_used_once_it_can_be() {
    let scratch = Scratch::new();
    let directory = registry(&scratch);
    let kubelet = Kubelet::start(directory.join(NAME), Retry::NewSocketOnly);
    let options = registering(&scratch);
    let agent = Agent::with(scratch, options).await;
    until_logged(&agent, "not registered with kubelet").await;
    until_logged(&agent, &text(directory.clone())).await;
    fs::write(&directory, "x").unwrap();
    until_logged(&agent, "Not a directory").await;
    // Meanwhile it serves.
    ok(agent.node().node_get_info(NodeGetInfoRequest {}).await);
    // In its place in one step, so that it is read-only from the beginning.
    let at = text(agent.scratch.directory("read-only"));
    run("mount", &["--bind", &at, &at]);
    run("mount", &["-o", "remount,bind,ro", &at]);
    let passing = agent.path("passing");
    symlink(&at, &passing).unwrap();
    fs::rename(&passing, &directory).unwrap();
    until_logged(&agent, "Read-only file system").await;
    run("mount", &["-o", "remount,bind,rw", &at]);
    kubelet.until_registered(1).await;
    assert_eq!(names(&directory), [NAME]);
}

#[tokio::test]
async fn a_socket_that_another_process_serves_is_left_to_it_until_it_ends() {
    let scratch = Scratch::new();
    let path = scratch.directory("registry").join(NAME);
    let sidecar = UnixListener::bind(&path).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    let options = registering(&scratch);
    let agent = Agent::with(scratch, options).await;
    let pid = format!("pid {}", std::process::id());
    until_logged(&agent, &pid).await;
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    drop(sidecar);
    let kubelet = Kubelet::start(path, Retry::SameSocket);
    kubelet.until_registered(1).await;
    assert_eq!(logged(&agent, &pid), 1, "{}", agent.log());
}

#[tokio::test]
async fn a_kubelet_that_never_calls_is_logged_once() {
    let scratch = Scratch::new();
    scratch.directory("registry");
    let options = registering(&scratch);
    let agent = Agent::with(scratch, options).await;
    until_logged(&agent, "kubelet has not called the registration socket").await;
    let path = registry(&agent.scratch).join(NAME);
    let inode = fs::metadata(&path).unwrap().ino();
    let kubelet = Kubelet::start(path.clone(), Retry::NewSocketOnly);
    kubelet.until_registered(1).await;
    until_logged(&agent, "INFO registered with kubelet").await;
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
}
