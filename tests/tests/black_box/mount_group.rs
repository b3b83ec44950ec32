//! The group that the files of a volume are given to, and who is told that the agent gives them.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use drumlin_proto::csi::v1::{
    NodeGetCapabilitiesRequest,
    node_service_capability::{Type, rpc},
    volume_capability::{AccessType, MountVolume, access_mode::Mode},
};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{capability, mounted},
    storage::Scratch,
};

use crate::helpers::{mount, ok, put, unmount, volume};

/// Whether the agent advertises that it gives files to a group.
async fn is_advertised(agent: &Agent) -> bool {
    let answer = agent
        .node()
        .node_get_capabilities(NodeGetCapabilitiesRequest {})
        .await;
    let capabilities = ok(answer).capabilities.into_iter();
    let types = capabilities.filter_map(|capability| match capability.r#type? {
        Type::Rpc(rpc) => Some(rpc.r#type()),
    });
    let types: Vec<rpc::Type> = types.collect();
    assert!(types.contains(&rpc::Type::StageUnstageVolume), "{types:?}");
    types.contains(&rpc::Type::VolumeMountGroup)
}

#[tokio::test]
async fn the_group_is_advertised_unless_the_configuration_says_otherwise() {
    for (file, arguments, is_wanted) in [
        ("", &[][..], true),
        ("volumeMountGroup: true\n", &[], true),
        ("volumeMountGroup: false\n", &[], false),
        (
            "volumeMountGroup: false\n",
            &["--volume-mount-group=true"],
            true,
        ),
        ("", &["--volume-mount-group=false"], false),
    ] {
        let options = Options {
            config: Some(file.to_owned()),
            arguments: arguments.iter().map(|&one| one.to_owned()).collect(),
            ..Options::default()
        };
        let agent = Agent::with(Scratch::new(), options).await;
        assert_eq!(
            is_advertised(&agent).await,
            is_wanted,
            "{file}{arguments:?}"
        );
    }
}

#[tokio::test]
async fn a_group_that_is_not_advertised_is_respected_all_the_same() {
    // A caller may have asked for the capabilities before the agent was restarted with others.
    let options = Options {
        config: Some("volumeMountGroup: false\n".to_owned()),
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    let grouped = MountVolume {
        fs_type: "ext4".to_owned(),
        volume_mount_group: "4711".to_owned(),
        ..MountVolume::default()
    };
    let grouped = capability(AccessType::Mount(grouped), Mode::SingleNodeWriter);
    let id = volume(&agent, "v", 32, &grouped).await;
    let at = mount(&agent, "v", &id, &grouped).await;
    let metadata = fs::metadata(&at.1).unwrap();
    assert_eq!((metadata.gid(), metadata.mode() & 0o2070), (4711, 0o2070));
    unmount(&agent, &id, &at).await;
}

/// What a container has to keep of root's rights for it (`docs/src/compatibility.md`).
const RIGHTS: &str =
    "--bounding-set=-all,+sys_admin,+sys_resource,+mknod,+dac_read_search,+chown,+fowner,+fsetid";

#[tokio::test]
async fn few_rights_are_enough_to_give_files_of_others_to_a_group() {
    let within = ["setpriv", RIGHTS, "--inh-caps=-all", "--no-new-privs", "--"];
    let options = Options {
        within: within.map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let agent = Agent::with(Scratch::new(), options).await;
    for kind in ["ext4", "xfs", "btrfs"] {
        let alone = mounted(kind);
        let id = volume(&agent, kind, 320, &alone).await;
        let at = mount(&agent, kind, &id, &alone).await;
        put(&at.1, "file", b"precious");
        run("chown", &["-R", "1000", &at.1]);
        run("chmod", &["700", &at.1]);
        unmount(&agent, &id, &at).await;
        let grouped = MountVolume {
            fs_type: kind.to_owned(),
            volume_mount_group: "4711".to_owned(),
            ..MountVolume::default()
        };
        let grouped = capability(AccessType::Mount(grouped), Mode::SingleNodeWriter);
        let at = mount(&agent, kind, &id, &grouped).await;
        for (name, bits) in [(".", 0o2070), ("file", 0o060)] {
            let given = fs::metadata(Path::new(&at.1).join(name)).unwrap();
            assert_eq!((given.uid(), given.gid()), (1000, 4711), "{kind}: {name}");
            let mode = given.mode();
            assert_eq!(mode & bits, bits, "{kind}: {name} is {mode:o}");
        }
        unmount(&agent, &id, &at).await;
    }
}
