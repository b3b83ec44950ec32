//! A volume that grows while nobody uses it: its file system has the new size as soon as it is staged.

use drumlin_tests::{
    agent::{Agent, Options},
    programs::output,
    requests::{expand, mounted, node_expand, stage, unstage},
    storage::Scratch,
};

use crate::helpers::{bytes_of, get, mount, ok, paths, put, unmount, volume};

const MIB: u64 = 1 << 20;

/// The size of the file system at a path.
fn size(path: &str) -> u64 {
    let found = nix::sys::statvfs::statvfs(path).unwrap();
    found.blocks() * found.fragment_size()
}

/// What starts an agent that has all rights of this machine, and one that may not grow a mounted ext4.
fn launchers() -> [Vec<String>; 2] {
    let without = ["setpriv", "--bounding-set", "-sys_resource"];
    [Vec::new(), without.map(str::to_owned).into()]
}

#[tokio::test]
async fn an_unused_volume_grows_and_its_file_system_before_anybody_sees_it() {
    for within in launchers() {
        for (kind, before, after) in [("ext4", 32, 96), ("xfs", 320, 640), ("btrfs", 256, 512)] {
            let what = format!("{kind} by {within:?}");
            let options = Options {
                within: within.clone(),
                ..Options::default()
            };
            let agent = Agent::with(Scratch::new(), options).await;
            let capability = mounted(kind);
            let id = volume(&agent, "v", before, &capability).await;
            // Its file system is as small as it was, and was in use.
            let at = mount(&agent, "v", &id, &capability).await;
            put(&at.1, "file", b"kept");
            let small = size(&at.1);
            unmount(&agent, &id, &at).await;

            let grown = expand(&id, after);
            let answer = ok(agent.controller().controller_expand_volume(grown).await);
            let wanted = u64::try_from(after).unwrap() * MIB;
            assert_eq!(
                u64::try_from(answer.capacity_bytes).unwrap(),
                wanted,
                "{what}"
            );

            let (staging, _) = paths(&agent, "v");
            let request = stage(&id, &staging, &capability);
            ok(agent.node().node_stage_volume(request).await);
            assert!(size(&staging) > small * 3 / 2, "{what}: {small}");
            assert_eq!(get(&staging, "file"), b"kept", "{what}");
            // Kubelet calls it after the pod's mounts, for it has not been told.
            let at = mount(&agent, "v", &id, &capability).await;
            let request = node_expand(&id, &at.1);
            let answer = ok(agent.node().node_expand_volume(request).await);
            assert_eq!(
                u64::try_from(answer.capacity_bytes).unwrap(),
                wanted,
                "{what}"
            );
            unmount(&agent, &id, &at).await;
            is_sound(&agent, &id, kind);
        }
    }
}

#[tokio::test]
async fn a_file_system_that_was_not_unmounted_grows_after_its_journal_is_replayed() {
    let without = launchers().into_iter().next_back().unwrap();
    let options = Options {
        within: without,
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let plain = mounted("ext4");
    let id = volume(&agent, "v", 32, &plain).await;
    let at = mount(&agent, "v", &id, &plain).await;
    put(&at.1, "file", b"kept");
    let small = size(&at.1);
    // The image of a file system in use, as a power cut leaves it, in the place of the one that was unmounted.
    let image = bytes_of(&agent, &id);
    let used = std::fs::read(&image).unwrap();
    unmount(&agent, &id, &at).await;
    std::fs::write(bytes_of(&agent, &id), used).unwrap();
    let grown = expand(&id, 96);
    ok(agent.controller().controller_expand_volume(grown).await);
    let (staging, _) = paths(&agent, "v");
    let request = stage(&id, &staging, &plain);
    ok(agent.node().node_stage_volume(request).await);
    assert!(size(&staging) > small * 3 / 2);
    assert_eq!(get(&staging, "file"), b"kept");
    let request = unstage(&id, &staging);
    ok(agent.node().node_unstage_volume(request).await);
    is_sound(&agent, &id, "ext4");
}

/// Has the programs of an ext4 check it.
fn is_sound(agent: &Agent, id: &str, kind: &str) {
    if kind == "ext4" {
        let image = bytes_of(agent, id);
        let checked = output("e2fsck", &["-f", "-n", &image.to_string_lossy()]);
        assert!(checked.status.success(), "{checked:?}");
    }
}
