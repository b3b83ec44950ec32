//! Short ways to do what every test does.

use std::{
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
};

use drumlin_proto::csi::v1::{
    ControllerUnpublishVolumeRequest, VolumeCapability, VolumeGroupSnapshot,
};
use drumlin_tests::{
    agent::{Agent, Options, snapshots_bind_their_volume},
    programs::{output, run},
    requests::{
        create, delete_group_snapshot, delete_snapshot, publish, stage, unpublish, unstage,
    },
    storage::Scratch,
};
use tonic::{Code, Response, Status};

/// The answer, or the failure of the test.
#[track_caller]
pub(crate) fn ok<T>(answer: Result<Response<T>, Status>) -> T {
    match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) => panic!("{:?}: {}", status.code(), status.message()),
    }
}

/// The message of a refusal with this code.
#[track_caller]
pub(crate) fn refused<T: Debug>(answer: Result<Response<T>, Status>, code: Code) -> String {
    let status = answer.expect_err("it must be refused");
    assert_eq!(status.code(), code, "{}", status.message());
    status.message().to_owned()
}

/// An agent with two classes of image files, `a` the default.
pub(crate) async fn two_classes() -> Agent {
    let scratch = Scratch::new();
    let (a, b) = (scratch.directory("a"), scratch.directory("b"));
    let config = format!(
        "classes:\n- {{name: a, default: true, directory: {{path: {}}}}}\n- {{name: b, directory: {{path: {}}}}}\n",
        a.display(),
        b.display()
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

/// Makes a volume and returns its id.
pub(crate) async fn volume(
    agent: &Agent,
    name: &str,
    mebibytes: i64,
    capability: &VolumeCapability,
) -> String {
    let answer = agent
        .controller()
        .create_volume(create(name, mebibytes, capability))
        .await;
    ok(answer).volume.unwrap().volume_id
}

/// Where a volume of this name is staged and published in tests; the first is there, the second is not.
pub(crate) fn paths(agent: &Agent, name: &str) -> (String, String) {
    let staging = agent.scratch.directory(&format!("staging/{name}"));
    let target = agent.scratch.directory("targets").join(name);
    (text(staging), text(target))
}

/// Stages and publishes a volume; returns where.
pub(crate) async fn mount(
    agent: &Agent,
    name: &str,
    id: &str,
    capability: &VolumeCapability,
) -> (String, String) {
    let (staging, target) = paths(agent, name);
    ok(agent
        .node()
        .node_stage_volume(stage(id, &staging, capability))
        .await);
    let request = publish(id, (&staging, &target), capability);
    ok(agent.node().node_publish_volume(request).await);
    (staging, target)
}

/// Unpublishes and unstages a volume.
pub(crate) async fn unmount(agent: &Agent, id: &str, (staging, target): &(String, String)) {
    ok(agent
        .node()
        .node_unpublish_volume(unpublish(id, target))
        .await);
    ok(agent.node().node_unstage_volume(unstage(id, staging)).await);
}

/// Deletes a snapshot where its volume can do nothing while it has one.
pub(crate) async fn unbind(agent: &Agent, snapshot: &str) {
    if snapshots_bind_their_volume() {
        let request = delete_snapshot(snapshot);
        ok(agent.controller().delete_snapshot(request).await);
    }
}

/// Deletes a group snapshot where its volumes can do nothing while they have one.
pub(crate) async fn unbind_all(agent: &Agent, taken: &VolumeGroupSnapshot) {
    if snapshots_bind_their_volume() {
        let request = delete_group_snapshot(taken);
        let mut groups = agent.group_controller();
        ok(groups.delete_volume_group_snapshot(request).await);
    }
}

/// Takes a publication of the controller back.
pub(crate) fn detach(id: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    }
}

/// Writes a file in a published volume, to the disk.
pub(crate) fn put(target: &(impl AsRef<Path> + ?Sized), name: &str, bytes: &[u8]) {
    use std::io::Write;
    let mut file = fs::File::create(target.as_ref().join(name)).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Has the kernel find an error in the ext4 that is mounted at a path.
pub(crate) fn trigger_ext4_error(mounted_at: &str) {
    let device = run(
        "findmnt",
        &["--noheadings", "--output", "SOURCE", mounted_at],
    );
    let device = fs::canonicalize(device.trim()).unwrap();
    let name = device.file_name().unwrap().to_string_lossy();
    let settings = PathBuf::from(format!("/sys/fs/ext4/{name}"));
    fs::write(settings.join("trigger_fs_error"), "1").unwrap();
    // It is counted by a thread of the kernel, which may come late on a busy machine.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fs::read_to_string(settings.join("errors_count"))
        .unwrap()
        .trim()
        == "0"
    {
        assert!(
            std::time::Instant::now() < deadline,
            "{name} counts no error"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Reads a file in a published volume.
pub(crate) fn get(target: &(impl AsRef<Path> + ?Sized), name: &str) -> Vec<u8> {
    fs::read(target.as_ref().join(name)).unwrap()
}

/// A path as the wire wants it.
pub(crate) fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().unwrap()
}

/// The directory of a volume's image in the built-in class.
pub(crate) fn home(agent: &Agent, id: &str) -> PathBuf {
    let key = id.rsplit('/').next().unwrap();
    agent.path("state/images/volumes").join(key)
}

/// Where the bytes of a volume or snapshot of the default class are.
pub(crate) fn bytes_of(agent: &Agent, id: &str) -> PathBuf {
    let key = id.rsplit('/').next().unwrap();
    for group in agent.scratch.groups() {
        let names = ["v", "s"].map(|kind| format!("{group}/dl-{kind}-{key}"));
        let mut names = names.into_iter();
        // One program where it is there.
        if let Some(name) = names.find(|name| {
            output("lvchange", &["-q", "-y", "-ay", "-K", name])
                .status
                .success()
        }) {
            return decrypted(agent, Path::new("/dev").join(name));
        }
    }
    let images = [
        "state/images/volumes",
        "state/images/snapshots",
        "images/volumes",
        "images/snapshots",
    ];
    let mut images = images
        .map(|images| agent.path(images).join(key).join("image"))
        .into_iter();
    images.find(|image| image.exists()).unwrap()
}

/// The device, or a copy of what is in it where the tests run over encrypted volumes (`DRUMLIN_ENCRYPTED`).
fn decrypted(agent: &Agent, device: PathBuf) -> PathBuf {
    if std::env::var_os("DRUMLIN_ENCRYPTED").is_none() {
        return device;
    }
    let name = device.file_name().unwrap().to_string_lossy().into_owned();
    let (key, copy) = (
        text(agent.path("key")),
        agent.path(&format!("decrypted-{name}")),
    );
    let device = text(device);
    let open = ["open", "--readonly", "--key-file", &key, &device, &name];
    run("cryptsetup", &open);
    let mut opened = fs::File::open(Path::new("/dev/mapper").join(&name)).unwrap();
    std::io::copy(&mut opened, &mut fs::File::create(&copy).unwrap()).unwrap();
    drop(opened);
    run("cryptsetup", &["close", &name]);
    copy
}
