//! Free blocks, given back: of a mounted volume, of one that is not, and of none that must keep them.

use std::{fs, path::Path, time::Duration};

use drumlin_proto::{
    identity::{
        self,
        capability::{Type, reclaim_space::Type as Reclaim, volume_group::Type as Groups},
    },
    reclaimspace::{self, StorageConsumption},
};
use drumlin_tests::{
    agent::{Agent, Options, Volumes, is_over_lvm},
    does_not_apply,
    requests::{MIB, delete, mounted, raw},
    storage::Scratch,
};
use tonic::{Code, Status};

use crate::{
    dialect::{reclaim_controller, reclaim_node},
    helpers::{get, mount, ok, put, refused, unmount, volume},
};

/// Some of a volume's blocks are used, then freed.
const FILE: usize = 24 << 20;

/// Whether what is given back is free for others.
fn takes_back() -> bool {
    !is_over_lvm() || Volumes::asked() == Volumes::Thin
}

fn bytes(usage: Option<StorageConsumption>) -> i64 {
    usage.unwrap().usage_bytes
}

/// What a volume took before and after its free blocks were given back, at a path or anywhere.
async fn reclaim(agent: &Agent, id: &str, path: Option<&str>) -> Result<(i64, i64), Status> {
    let Some(path) = path else {
        let request = reclaimspace::ControllerReclaimSpaceRequest {
            volume_id: id.to_owned(),
            ..reclaimspace::ControllerReclaimSpaceRequest::default()
        };
        let answer = reclaim_controller(agent)
            .controller_reclaim_space(request)
            .await?
            .into_inner();
        return Ok((bytes(answer.pre_usage), bytes(answer.post_usage)));
    };
    let request = reclaimspace::NodeReclaimSpaceRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..reclaimspace::NodeReclaimSpaceRequest::default()
    };
    let answer = reclaim_node(agent).node_reclaim_space(request).await?;
    let answer = answer.into_inner();
    Ok((bytes(answer.pre_usage), bytes(answer.post_usage)))
}

/// Fills a file in a published volume and removes it.
fn use_and_free(target: &str) {
    put(target, "large", &vec![7; FILE]);
    fs::remove_file(Path::new(target).join("large")).unwrap();
}

/// Gives free blocks back until there are some: xfs frees what was removed a little later, and says nothing of it.
async fn reclaim_some(agent: &Agent, id: &str, path: Option<&str>) -> (i64, i64) {
    let (first, mut last) = reclaim(agent, id, path).await.unwrap();
    for _ in 0..50 {
        if first - last > 16 * MIB || !takes_back() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        last = reclaim(agent, id, path).await.unwrap().1;
    }
    (first, last)
}

#[tokio::test]
async fn free_blocks_are_given_back_mounted_and_not() {
    let agent = Agent::start().await;
    for (file_system, mebibytes) in [("ext4", 128), ("xfs", 512), ("btrfs", 512)] {
        let capability = mounted(file_system);
        let id = volume(&agent, file_system, mebibytes, &capability).await;
        let check = |(before, after): (i64, i64)| {
            let freed = before - after;
            if takes_back() {
                assert!(freed > 16 * MIB, "{file_system}: {before} {after}");
            } else {
                assert_eq!((before, after), (mebibytes * MIB, mebibytes * MIB));
            }
        };
        // Nobody has ever used it.
        let (before, after) = reclaim(&agent, &id, None).await.unwrap();
        assert_eq!(before, after);
        let at = mount(&agent, file_system, &id, &capability).await;
        put(&at.1, "kept", b"kept");
        for path in [Some(at.1.as_str()), Some(at.0.as_str()), None] {
            use_and_free(&at.1);
            check(reclaim_some(&agent, &id, path).await);
        }
        use_and_free(&at.1);
        unmount(&agent, &id, &at).await;
        check(reclaim_some(&agent, &id, None).await);
        let at = mount(&agent, file_system, &id, &capability).await;
        assert_eq!(get(&at.1, "kept"), b"kept");
        unmount(&agent, &id, &at).await;
        let status = reclaim(&agent, &id, Some(&at.1)).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status}");
        ok(agent.controller().delete_volume(delete(&id)).await);
    }
}

#[tokio::test]
async fn what_is_not_known_to_be_free_stays() {
    let agent = Agent::start().await;
    let id = volume(&agent, "raw", 16, &raw()).await;
    let at = mount(&agent, "raw", &id, &raw()).await;
    use std::os::unix::fs::FileExt;
    let device = fs::File::options().write(true).open(&at.1).unwrap();
    device.write_all_at(&vec![0; 4 << 20], 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let status = reclaim(&agent, &id, Some(&at.1)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let (before, after) = reclaim(&agent, &id, None).await.unwrap();
    assert!(before == after && before >= 4 * MIB, "{before} {after}");
    unmount(&agent, &id, &at).await;
    let (before, after) = reclaim(&agent, &id, None).await.unwrap();
    assert!(before == after && before >= 4 * MIB, "{before} {after}");
    let unknown = "node-a/default/00000000-0000-5000-8000-000000000000";
    for (id, path, code) in [
        (unknown, None, Code::NotFound),
        (unknown, Some("/somewhere"), Code::NotFound),
        (id.as_str(), Some(""), Code::InvalidArgument),
        ("", None, Code::InvalidArgument),
    ] {
        let status = reclaim(&agent, id, path).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
}

/// What was reserved is not given away.
#[tokio::test]
async fn a_thick_image_keeps_its_blocks() {
    if is_over_lvm() {
        return does_not_apply!("logical volumes have no images");
    }
    let scratch = Scratch::new();
    let images = scratch.directory("images");
    let class = format!("{{path: {}, allocation: thick}}", images.display());
    let options = Options {
        config: Some(format!(
            "classes: [{{name: default, directory: {class}}}]\n"
        )),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    let id = volume(&agent, "v", 64, &mounted("ext4")).await;
    let at = mount(&agent, "v", &id, &mounted("ext4")).await;
    use_and_free(&at.1);
    for path in [Some(at.1.as_str()), None] {
        let (before, after) = reclaim(&agent, &id, path).await.unwrap();
        assert!(before == after && after >= 64 * MIB, "{before} {after}");
    }
    unmount(&agent, &id, &at).await;
}

#[tokio::test]
async fn clients_of_what_csi_does_not_have_find_it_on_their_socket() {
    let scratch = Scratch::new();
    let path = scratch.path().join("addons.sock");
    let config = format!("addonsEndpoint: unix://{}\n", path.display());
    for (policy, keeps) in [("unlink", true), ("cascade", false)] {
        let options = Options {
            config: Some(format!("{config}onGroupDelete: {policy}\n")),
            ..Options::default()
        };
        let scratch = Scratch::new();
        let agent = Agent::with(scratch, options).await;
        let id = volume(&agent, "v", 64, &mounted("ext4")).await;
        for channel in [agent.channel(), drumlin_proto::connect(&path).unwrap()] {
            let mut client = identity::identity_client::IdentityClient::new(channel.clone());
            let who = ok(client.get_identity(identity::GetIdentityRequest {}).await);
            assert_eq!(who.name, "csi.drumlin.dev");
            assert_eq!(
                ok(client.probe(identity::ProbeRequest {}).await).ready,
                Some(true)
            );
            let request = identity::GetCapabilitiesRequest {};
            let all = ok(client.get_capabilities(request).await).capabilities;
            let has = |wanted: &dyn Fn(&Type) -> bool| {
                all.iter().filter_map(|one| one.r#type.as_ref()).any(wanted)
            };
            for when in [Reclaim::Offline, Reclaim::Online] {
                assert!(has(&|one| {
                    matches!(one, Type::ReclaimSpace(one) if one.r#type() == when)
                }));
            }
            assert!(has(&|one| matches!(
                one,
                Type::VolumeGroup(one) if one.r#type() == Groups::LimitVolumeToOneVolumeGroup
            )));
            assert_eq!(
                has(&|one| matches!(
                    one,
                    Type::VolumeGroup(one) if one.r#type() == Groups::DoNotAllowVgToDeleteVolumes
                )),
                keeps
            );
            let request = reclaimspace::ControllerReclaimSpaceRequest {
                volume_id: id.clone(),
                ..reclaimspace::ControllerReclaimSpaceRequest::default()
            };
            use reclaimspace::reclaim_space_controller_client::ReclaimSpaceControllerClient as Client;
            ok(Client::new(channel).controller_reclaim_space(request).await);
        }
        let mut csi = drumlin_proto::csi::v1::identity_client::IdentityClient::new(
            drumlin_proto::connect(&path).unwrap(),
        );
        let request = drumlin_proto::csi::v1::GetPluginInfoRequest {};
        refused(csi.get_plugin_info(request).await, Code::Unimplemented);
    }
}
