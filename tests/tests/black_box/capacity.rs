//! How much room there is, and what a thick class promises.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use drumlin_proto::{
    csi::v1::{
        CapacityRange, CreateVolumeRequest, GetCapacityRequest, VolumeCapability,
        volume_capability::access_mode::Mode,
    },
    drumlin::v1::RollbackVolumeGroupSnapshotRequest,
};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    requests::{MIB, create, delete, expand, for_mode, from_snapshot, mounted, raw, snapshot},
    storage::{Kind, Scratch},
};
use tonic::Code;

use crate::{
    group_snapshots::take,
    helpers::{mount, ok, put, refused, text, unmount},
};

/// Where the classes of [`thin_and_thick`] are.
const CLASSES: [&str; 2] = ["thin", "thick"];

/// Two classes, each on a file system of 512 MiB: the default shares its room, the other reserves it.
async fn thin_and_thick(storage: Kind) -> Agent {
    let scratch = Scratch::new();
    let paths = CLASSES.map(|name| text(scratch.file_system(name, storage, 512)));
    let config = format!(
        "classes:\n- {{name: thin, default: true, directory: {{path: {}}}}}\n- {{name: thick, directory: {{path: {}, allocation: thick}}}}\n",
        paths[0], paths[1]
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

fn in_class(class: &str, request: CreateVolumeRequest) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        ..request
    }
}

/// The room in a class for volumes that are used so, in mebibytes.
async fn room(agent: &Agent, class: &str, capability: &VolumeCapability) -> i64 {
    let request = GetCapacityRequest {
        parameters: [("class".to_owned(), class.to_owned())].into(),
        volume_capabilities: vec![capability.clone()],
        ..GetCapacityRequest::default()
    };
    ok(agent.controller().get_capacity(request).await).available_capacity / MIB
}

async fn made(agent: &Agent, request: CreateVolumeRequest) -> String {
    ok(agent.controller().create_volume(request).await)
        .volume
        .unwrap()
        .volume_id
}

/// The mebibytes that the image at this place really takes.
fn taken(directory: &Path, id: &str) -> u64 {
    let image = directory.join(id.rsplit('/').next().unwrap()).join("image");
    (fs::metadata(image).unwrap().blocks() * 512) >> 20
}

#[tokio::test]
async fn a_thin_volume_takes_what_is_written_and_a_thick_one_all_that_it_may_become() {
    for storage in [Kind::Ext4, Kind::Xfs] {
        let agent = thin_and_thick(storage).await;
        for (class, least, most) in [("thin", 0, 16), ("thick", 96, 98)] {
            let images = agent.path(class);
            let before = room(&agent, class, &raw()).await;
            let id = made(&agent, in_class(class, create(class, 96, &mounted("ext4")))).await;
            let has = taken(&images.join("volumes"), &id);
            assert!((least..=most).contains(&has), "{class}: {has} MiB");
            let less = before - room(&agent, class, &raw()).await;
            let is_counted = i64::try_from(has).unwrap();
            assert!(
                (less - is_counted).abs() <= 4,
                "{class}: {less} MiB less for {has}"
            );

            // Formatting gives nothing back, and growth is reserved as well.
            let at = mount(&agent, class, &id, &mounted("ext4")).await;
            put(&at.1, "file", b"x");
            unmount(&agent, &id, &at).await;
            ok(agent
                .controller()
                .controller_expand_volume(expand(&id, 120))
                .await);
            let has = taken(&images.join("volumes"), &id);
            if class == "thick" {
                assert!((120..=122).contains(&has), "{has} MiB");
                // A copy shares nothing: what it promises is there when it is written.
                let before = room(&agent, class, &raw()).await;
                let answer = agent.controller().create_snapshot(snapshot("s", &id)).await;
                let copy = ok(answer).snapshot.unwrap().snapshot_id;
                let restored = CreateVolumeRequest {
                    volume_content_source: from_snapshot(&copy),
                    ..create("restored", 120, &mounted("ext4"))
                };
                let restored = made(&agent, in_class(class, restored)).await;
                assert!(taken(&images.join("volumes"), &restored) >= 120);
                assert!(before - room(&agent, class, &raw()).await >= 120);
            } else {
                assert!(has < 32, "{has} MiB");
            }
        }
    }
}

#[tokio::test]
async fn a_thick_class_that_is_full_refuses_and_is_as_it_was() {
    for storage in [Kind::Ext4, Kind::Xfs] {
        let agent = thin_and_thick(storage).await;
        let volumes = agent.path("thick/volumes");
        let id = made(&agent, in_class("thick", create("v", 200, &raw()))).await;
        let left = room(&agent, "thick", &raw()).await;
        assert!(left < 300, "{left} MiB");
        let names = || fs::read_dir(&volumes).unwrap().count();
        let before = (names(), left);
        let mut controller = agent.controller();
        let larger = in_class("thick", create("w", left + 8, &raw()));
        let message = refused(
            controller.create_volume(larger).await,
            Code::ResourceExhausted,
        );
        assert!(!message.is_empty());
        // More than root's reserve on ext4, which growth may take and capacity leaves out.
        let grown = controller
            .controller_expand_volume(expand(&id, 200 + left + 64))
            .await;
        refused(grown, Code::ResourceExhausted);
        assert_eq!((names(), room(&agent, "thick", &raw()).await), before);
        assert_eq!(
            fs::metadata(volumes.join(id.rsplit('/').next().unwrap()).join("image"))
                .unwrap()
                .len(),
            200 << 20
        );
        // What it says that it has, it has.
        let most = made(&agent, in_class("thick", create("w", left - 4, &raw()))).await;
        for id in [&most, &id] {
            ok(controller.delete_volume(delete(id)).await);
        }
        // xfs gives the blocks of a removed file back a little later.
        let free = || {
            let found = nix::sys::statvfs::statvfs(&agent.path("thick")).unwrap();
            i64::try_from(found.blocks_available() * found.fragment_size()).unwrap() / MIB
        };
        eventually(free, |free| *free >= left + 199).await;
    }
}

#[tokio::test]
async fn there_is_room_only_for_what_could_be_made() {
    let agent = thin_and_thick(Kind::Xfs).await;
    assert!(room(&agent, "thin", &raw()).await > 300);
    assert!(room(&agent, "thin", &mounted("xfs")).await > 300);
    let shared = for_mode(&raw(), Mode::MultiNodeMultiWriter);
    assert_eq!(room(&agent, "thin", &shared).await, 0);
    let minimum = async |fs_type: &str| {
        let request = GetCapacityRequest {
            volume_capabilities: vec![mounted(fs_type)],
            ..GetCapacityRequest::default()
        };
        ok(agent.controller().get_capacity(request).await).minimum_volume_size
    };
    let (ext4, xfs) = (minimum("ext4").await, minimum("xfs").await);
    assert!(xfs > ext4, "{xfs:?} {ext4:?}");
    let smallest = CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes: xfs.unwrap(),
            limit_bytes: xfs.unwrap(),
        }),
        ..create("xfs", 0, &mounted("xfs"))
    };
    let id = made(&agent, smallest).await;
    let at = mount(&agent, "xfs", &id, &mounted("xfs")).await;
    unmount(&agent, &id, &at).await;
    for (key, value) in [("class", "nope"), ("speed", "fast")] {
        let request = GetCapacityRequest {
            parameters: [(key.to_owned(), value.to_owned())].into(),
            ..GetCapacityRequest::default()
        };
        let message = refused(
            agent.controller().get_capacity(request).await,
            Code::InvalidArgument,
        );
        assert!(
            message.starts_with(&format!("parameters.{key}")),
            "{message}"
        );
    }
    let two = GetCapacityRequest {
        volume_capabilities: vec![mounted("ext4"), mounted("xfs")],
        ..GetCapacityRequest::default()
    };
    let answer = ok(agent.controller().get_capacity(two).await);
    assert_eq!(answer.available_capacity, 0);
}

#[tokio::test]
async fn a_rollback_for_which_there_is_no_room_is_refused_and_changes_nothing() {
    // Without reflinks the new bytes of a volume lie beside the old ones until they are whole.
    let agent = thin_and_thick(Kind::Ext4).await;
    for class in CLASSES {
        let mut ids = Vec::new();
        for name in ["a", "b"] {
            let request = in_class(class, create(&format!("{class}-{name}"), 64, &raw()));
            ids.push(made(&agent, request).await);
        }
        let images: Vec<PathBuf> = ids
            .iter()
            .map(|id| bytes_of_class(&agent, class, id))
            .collect();
        for image in &images {
            let file = fs::File::options().write(true).open(image).unwrap();
            file.write_all_at(&vec![1; 32 << 20], 0).unwrap();
        }
        let group = take(&agent, &format!("{class}-g"), &ids).await;
        for image in &images {
            let file = fs::File::options().write(true).open(image).unwrap();
            file.write_all_at(&vec![2; 32 << 20], 0).unwrap();
        }
        // Room for one of them and a part of the other.
        let left = room(&agent, class, &raw()).await;
        let keep = if class == "thick" { 40 } else { 24 };
        let filler = agent.path(class).join("filler");
        let file = fs::File::create(&filler).unwrap();
        let bytes = vec![3; 1 << 20];
        for _ in 0..left - keep {
            (&file).write_all(&bytes).unwrap();
        }
        file.sync_all().unwrap();
        drop(file);
        let back = RollbackVolumeGroupSnapshotRequest {
            name: format!("{class}-back"),
            group_snapshot_id: group.group_snapshot_id.clone(),
            discard: true,
        };
        let answer = agent
            .own()
            .rollback_volume_group_snapshot(back.clone())
            .await;
        refused(answer, Code::ResourceExhausted);
        for image in &images {
            assert_eq!(fs::read(image).unwrap()[..4096], [2; 4096], "{class}");
        }
        fs::remove_file(&filler).unwrap();
        ok(agent.own().rollback_volume_group_snapshot(back).await);
        for image in &images {
            assert_eq!(fs::read(image).unwrap()[..4096], [1; 4096], "{class}");
        }
    }
}

/// Where the bytes of a volume of a class are.
fn bytes_of_class(agent: &Agent, class: &str, id: &str) -> PathBuf {
    let key = id.rsplit('/').next().unwrap();
    agent.path(class).join("volumes").join(key).join("image")
}
