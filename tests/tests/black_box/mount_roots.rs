//! Volumes that are published beneath a root: whatever links somebody swaps in there, nothing outside of it is mounted on,
//! made, removed or changed.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drumlin_proto::{
    MOUNT_ROOT, MOUNT_ROOT_METADATA,
    csi::v1::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability},
};
use drumlin_tests::{
    agent::{Agent, Options, PATIENCE},
    programs::run,
    requests::{mounted, publish, raw, stage, unpublish},
    sources,
    storage::mounts_below,
};
use nix::sys::signal::Signal;
use tonic::{Code, Request, Status, metadata::MetadataValue};

use crate::helpers::{ok, refused, text, volume};

const NOTHING: [&str; 0] = [];

/// What there is at a path: its inode, mode and size.
type File = (PathBuf, u64, u32, u64);

/// The points between the steps of a publication beneath a root, or of its end.
fn points_of(steps: &str) -> Vec<String> {
    let found = sources::agent_points().into_iter();
    let is_meant = |point: &String| {
        (point.starts_with("mount-root.") || point.starts_with(steps))
            && !point.ends_with("read-only-device")
    };
    found.filter(is_meant).collect()
}

/// An agent, a volume that is staged, and where it is to be published.
struct Scene {
    agent: Agent,
    id: String,
    capability: VolumeCapability,
    staging: String,
}

impl Scene {
    async fn new(capability: VolumeCapability) -> Self {
        let agent = Agent::start().await;
        let id = volume(&agent, "v", 32, &capability).await;
        let staging = text(agent.scratch.directory("staging"));
        // What the links lead to is as what they stand for, so that nothing but the root tells it from that.
        for directory in ["srv", "outside/deep/data"] {
            agent.scratch.directory(directory);
        }
        fs::write(agent.path("outside/deep/file"), "kept").unwrap();
        fs::write(agent.path("outside/deep/device"), "").unwrap();
        let scene = Self {
            agent,
            id,
            capability,
            staging,
        };
        scene.stage().await;
        scene
    }

    async fn stage(&self) {
        let request = stage(&self.id, &self.staging, &self.capability);
        ok(self.agent.node().node_stage_volume(request).await);
    }

    fn root(&self) -> PathBuf {
        self.agent.path("srv")
    }

    /// The last part of a file is another one, for what stands there outside must be of its kind.
    fn target(&self) -> PathBuf {
        let is_raw = self.capability == raw();
        self.root()
            .join("team/deep")
            .join(if is_raw { "device" } else { "data" })
    }

    fn publish(&self, root: &Path, target: &Path) -> NodePublishVolumeRequest {
        let mut request = publish(
            &self.id,
            (&self.staging, &target.to_string_lossy()),
            &self.capability,
        );
        let root = root.to_string_lossy().into_owned();
        request.volume_context.insert(MOUNT_ROOT.to_owned(), root);
        request
    }

    async fn try_publish(&self) -> Result<(), Status> {
        let request = self.publish(&self.root(), &self.target());
        let answer = self.agent.node().node_publish_volume(request).await;
        answer.map(drop)
    }

    async fn try_unpublish(&self) -> Result<(), Status> {
        let request = self.unpublish();
        let answer = self.agent.node().node_unpublish_volume(request).await;
        answer.map(drop)
    }

    fn unpublish(&self) -> Request<NodeUnpublishVolumeRequest> {
        let target = self.target();
        let mut request = Request::new(unpublish(&self.id, &target.to_string_lossy()));
        let root = self.root();
        let root = MetadataValue::from_bytes(root.to_string_lossy().as_bytes());
        request.metadata_mut().insert_bin(MOUNT_ROOT_METADATA, root);
        request
    }

    /// Everything outside, and all mounts there.
    fn outside(&self) -> (Vec<File>, Vec<String>) {
        fn collect(at: &Path, found: &mut Vec<File>) {
            let metadata = fs::symlink_metadata(at).unwrap();
            let entry = (metadata.ino(), metadata.mode(), metadata.size());
            found.push((at.to_owned(), entry.0, entry.1, entry.2));
            if metadata.is_dir() {
                let mut entries: Vec<_> = fs::read_dir(at).unwrap().flatten().collect();
                entries.sort_by_key(fs::DirEntry::file_name);
                for entry in entries {
                    collect(&entry.path(), found);
                }
            }
        }
        let outside = self.agent.path("outside");
        let mut found = Vec::new();
        collect(&outside, &mut found);
        (found, mounts_below(&outside.to_string_lossy()))
    }

    fn mounted(&self) -> Vec<String> {
        mounts_below(&self.root().to_string_lossy())
    }

    async fn restart(&mut self) {
        self.agent.kill();
        self.agent.restart_with(Options::default()).await;
    }

    async fn restart_until(&mut self, point: &str, how: &str) {
        let options = Options::default().failing_at(point, how);
        self.agent.kill();
        self.agent.restart_with(options).await;
    }

    /// Waits until the agent has come to its point, or has answered without.
    async fn stops(&self, call: &tokio::task::JoinHandle<Result<(), Status>>) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.agent.pid())).unwrap();
            if stat.rsplit(") ").next().unwrap().starts_with('T') {
                return true;
            }
            if call.is_finished() {
                return false;
            }
            assert!(Instant::now() < deadline, "it neither stops nor answers");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A link to what is outside takes the place of a part of the target path, whatever is there.
    fn swap(&self, part: &str) -> Swap {
        let at = self.root().join(part);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        let aside = at.with_extension("aside");
        let below = Path::new(part).strip_prefix("team").unwrap();
        let link = self.agent.path("outside").join(below);
        let is_moved = match fs::rename(&at, &aside) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            // The kernel lets nobody move what is mounted on.
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                return Swap {
                    at: None,
                    aside,
                    is_moved: false,
                };
            }
            Err(error) => panic!("{error}"),
        };
        symlink(link, &at).unwrap();
        Swap {
            at: Some(at),
            aside,
            is_moved,
        }
    }
}

/// A link that stands where something else should.
struct Swap {
    at: Option<PathBuf>,
    aside: PathBuf,
    is_moved: bool,
}

impl Swap {
    fn back(self) {
        if let Some(at) = self.at {
            fs::remove_file(&at).unwrap();
            if self.is_moved && self.aside.exists() {
                fs::rename(self.aside, at).unwrap();
            }
        }
    }
}

/// The parts of the target path that somebody may swap.
const PARTS: [&str; 3] = ["team", "team/deep", "team/deep/LAST"];

fn part_of(scene: &Scene, part: &str) -> String {
    let target = scene.target();
    let last = target.file_name().unwrap();
    part.replace("LAST", &last.to_string_lossy())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_comes_in_between_any_two_steps_of_a_publication_leads_nowhere() {
    for capability in [mounted("ext4"), raw()] {
        let mut scene = Scene::new(capability).await;
        let before = scene.outside();
        // How it is shown in the end makes no difference to the directories above it.
        let parts = if scene.capability == raw() {
            &PARTS[2..]
        } else {
            &PARTS[..]
        };
        let mut met = 0;
        for point in points_of("publish.") {
            // Some come once for each directory.
            for hit in 1..12 {
                let mut was_met = false;
                // Missing directories are made, and others are gone through.
                for (part, are_there) in parts.iter().flat_map(|part| [(part, true), (part, false)])
                {
                    let part = part_of(&scene, part);
                    let _ = fs::remove_dir_all(scene.root().join("team"));
                    if are_there {
                        fs::create_dir_all(scene.target().parent().unwrap()).unwrap();
                    }
                    let what = format!("{point}:{hit} {part} {are_there}");
                    scene.restart_until(&format!("{point}:{hit}"), "stop").await;
                    let request = scene.publish(&scene.root(), &scene.target());
                    let mut node = scene.agent.node();
                    let call =
                        tokio::spawn(
                            async move { node.node_publish_volume(request).await.map(drop) },
                        );
                    if scene.stops(&call).await {
                        was_met = true;
                        let swap = scene.swap(&part);
                        scene.agent.signal(Signal::SIGCONT);
                        let answer = call.await.unwrap();
                        assert_eq!(scene.outside(), before, "{what} {answer:?}");
                        if let Err(status) = answer {
                            assert_eq!(scene.mounted(), NOTHING, "{what} {status:?}");
                        }
                        swap.back();
                    } else {
                        call.await.unwrap().unwrap();
                        scene.restart().await;
                    }
                    // The repeat ends as one that nobody has disturbed.
                    for _ in 0..2 {
                        scene.try_publish().await.unwrap();
                        assert_eq!(scene.mounted(), [text(scene.target())], "{what}");
                    }
                    scene.try_unpublish().await.unwrap();
                    assert_eq!(scene.mounted(), NOTHING, "{what}");
                    assert!(!scene.target().exists(), "{what}");
                    assert_eq!(scene.outside(), before, "{what}");
                }
                if !was_met {
                    break;
                }
                met += 1;
            }
        }
        assert!(met > 10, "{met}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_comes_in_between_any_two_steps_of_the_end_leads_nowhere() {
    for capability in [mounted("ext4"), raw()] {
        let mut scene = Scene::new(capability).await;
        let before = scene.outside();
        let mut met = 0;
        // Also one that is there before all of them.
        for point in ["no.such.point".to_owned()]
            .into_iter()
            .chain(points_of("unpublish."))
        {
            for hit in 1..12 {
                let mut was_met = false;
                for part in PARTS {
                    let part = part_of(&scene, part);
                    let what = format!("{point}:{hit} {part}");
                    scene.restart().await;
                    scene.try_publish().await.unwrap();
                    scene.restart_until(&format!("{point}:{hit}"), "stop").await;
                    let (mut node, request) = (scene.agent.node(), scene.unpublish());
                    let early = (point == "no.such.point").then(|| scene.swap(&part));
                    let call =
                        tokio::spawn(
                            async move { node.node_unpublish_volume(request).await.map(drop) },
                        );
                    let swap = if scene.stops(&call).await {
                        was_met = true;
                        let swap = scene.swap(&part);
                        scene.agent.signal(Signal::SIGCONT);
                        Some(swap)
                    } else {
                        early
                    };
                    let answer = call.await.unwrap();
                    assert_eq!(scene.outside(), before, "{what} {answer:?}");
                    if let Some(swap) = swap {
                        swap.back();
                    }
                    scene.restart().await;
                    scene.try_unpublish().await.unwrap();
                    assert_eq!(scene.mounted(), NOTHING, "{what}");
                    assert!(!scene.target().exists(), "{what}");
                    assert_eq!(scene.outside(), before, "{what}");
                }
                if !was_met {
                    break;
                }
                met += 1;
            }
        }
        assert!(met > 4, "{met}");
    }
}

#[tokio::test]
async fn a_publication_that_is_killed_between_any_two_steps_is_finished_by_its_repeat() {
    let mut scene = Scene::new(mounted("ext4")).await;
    for (steps, begins) in [("publish.", true), ("unpublish.", false)] {
        for point in points_of(steps) {
            for hit in 1..12 {
                scene.restart().await;
                if begins {
                    let _ = fs::remove_dir_all(scene.root().join("team"));
                } else {
                    scene.try_publish().await.unwrap();
                }
                scene.restart_until(&format!("{point}:{hit}"), "kill").await;
                let answer = if begins {
                    scene.try_publish().await
                } else {
                    scene.try_unpublish().await
                };
                let was_met = answer.is_err();
                if was_met {
                    scene.agent.wait_until_killed().await;
                }
                scene.restart().await;
                if begins {
                    scene.try_publish().await.unwrap();
                    assert_eq!(scene.mounted(), [text(scene.target())], "{point}:{hit}");
                }
                scene.try_unpublish().await.unwrap();
                assert_eq!(scene.mounted(), NOTHING, "{point}:{hit}");
                assert!(!scene.target().exists(), "{point}:{hit}");
                if !was_met {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn what_is_below_the_root_through_no_link_is_published_there() {
    let scene = Scene::new(mounted("ext4")).await;
    let alias = scene.agent.path("alias");
    symlink(scene.root(), &alias).unwrap();
    // The root is the administrator's, whatever links lead to it.
    for (root, target) in [
        (scene.root(), scene.target()),
        (alias.clone(), alias.join("team/deep/data")),
        ("/".into(), scene.target()),
    ] {
        for _ in 0..2 {
            let request = scene.publish(&root, &target);
            ok(scene.agent.node().node_publish_volume(request).await);
        }
        assert_eq!(scene.mounted(), [text(scene.target())]);
        let read_only = NodePublishVolumeRequest {
            readonly: true,
            ..scene.publish(&root, &target)
        };
        let answer = scene.agent.node().node_publish_volume(read_only).await;
        refused(answer, Code::AlreadyExists);
        scene.try_unpublish().await.unwrap();
        assert_eq!(scene.mounted(), NOTHING);
    }
}

#[tokio::test]
async fn links_and_paths_out_of_the_root_are_refused_by_name() {
    let scene = Scene::new(mounted("ext4")).await;
    let before = scene.outside();
    let root = scene.root();
    fs::create_dir_all(root.join("own/data")).unwrap();
    // Also those that stay inside.
    for (name, to) in [
        ("out", "../outside"),
        ("inside", "own"),
        ("none", "/nowhere"),
    ] {
        symlink(to, root.join(name)).unwrap();
    }
    symlink(root.join("own/data"), root.join("own/last")).unwrap();
    for (target, link) in [
        ("out/deep/data", "out"),
        ("inside/data", "inside"),
        ("none/data", "none"),
        ("own/last", "own/last"),
    ] {
        let request = scene.publish(&root, &root.join(target));
        let answer = scene.agent.node().node_publish_volume(request).await;
        let message = refused(answer, Code::InvalidArgument);
        let (target, link) = (root.join(target), root.join(link));
        assert!(
            message.contains(&format!("target_path {} ", target.display())),
            "{message}"
        );
        assert!(
            message.contains(&format!("link {},", link.display())),
            "{message}"
        );
    }
    for target in [
        root.clone(),
        scene.agent.path("outside/deep/data"),
        scene.agent.path("srvx/data"),
    ] {
        let request = scene.publish(&root, &target);
        let answer = scene.agent.node().node_publish_volume(request).await;
        let message = refused(answer, Code::InvalidArgument);
        assert!(message.contains("is not below its root"), "{message}");
    }
    fs::write(root.join("file"), "x").unwrap();
    for (target, code) in [
        ("file/data", Code::FailedPrecondition),
        ("file", Code::FailedPrecondition),
    ] {
        let request = scene.publish(&root, &root.join(target));
        refused(scene.agent.node().node_publish_volume(request).await, code);
    }
    let request = scene.publish(Path::new("relative"), &root.join("data"));
    let answer = scene.agent.node().node_publish_volume(request).await;
    assert!(refused(answer, Code::InvalidArgument).contains(MOUNT_ROOT));
    assert_eq!(scene.outside(), before);
    assert_eq!(scene.mounted(), NOTHING);
}

#[tokio::test]
async fn the_end_of_a_publication_takes_no_mount_of_others_away() {
    let scene = Scene::new(mounted("ext4")).await;
    scene.try_publish().await.unwrap();
    let target = text(scene.target());
    let deep = scene.root().join("team/deep");
    // Somebody's mount below it, and on it.
    fs::rename(&deep, deep.with_extension("aside")).unwrap();
    fs::create_dir_all(scene.target()).unwrap();
    run("mount", &["-t", "tmpfs", "drumlin-test", &target]);
    let status = scene.try_unpublish().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(scene.mounted().len(), 2);
    run("umount", &[&target]);
    fs::remove_dir(scene.target()).unwrap();
    fs::remove_dir(&deep).unwrap();
    fs::rename(deep.with_extension("aside"), &deep).unwrap();
    run("mount", &["-t", "tmpfs", "drumlin-test", &target]);
    let status = scene.try_unpublish().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert_eq!(scene.mounted().len(), 2);
    run("umount", &[&target]);
    scene.try_unpublish().await.unwrap();
    assert_eq!(scene.mounted(), NOTHING);
}
