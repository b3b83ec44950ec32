//! Image files that others made: adopted in place, byte for byte, with their mounts, and handed back.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::{Path, PathBuf},
};

use drumlin_proto::drumlin::v1::{AdoptVolumeRequest, ReleaseVolumeRequest};
use drumlin_tests::{
    agent::{Options, eventually},
    programs::{output, run},
    requests::snapshot,
    sources,
    storage::Scratch,
};
use serde_json::Value;
use tonic::Code;

use crate::{
    foreign_helpers::{digest, done, fails, is_own, mounts_at, validated},
    helpers::{ok, refused, text},
    host::Host,
};

/// An agent over one class of image files, on the file system where `others` have theirs.
pub(crate) async fn start(scratch: Scratch, options: Options) -> (Host, PathBuf) {
    let images = scratch.directory("images");
    let others = scratch.directory("others");
    let config = format!(
        "classes: [{{name: files, directory: {{path: {}}}}}]\n",
        images.display()
    );
    let options = Options {
        config: Some(config),
        ..options
    };
    (Host::over(scratch, options).await, others)
}

/// An image file with an ext4 that has some files.
pub(crate) fn image(others: &Path, name: &str) -> String {
    let path = text(others.join(name));
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F", &path]);
    path
}

#[tokio::test]
async fn an_image_file_is_adopted_in_place_and_handed_back() {
    let (host, others) = start(Scratch::new(), Options::default()).await;
    let agent = &host.agent;
    let source = image(&others, "Web_1.img");
    run("chmod", &["0640", &source]);
    let (bytes, before) = (digest(&source), fs::metadata(&source).unwrap());
    let manifest = done(agent, "adopt", &[&source]);
    assert!(manifest.contains("name: web-1"), "{manifest}");
    assert!(manifest.contains("mode (640)"), "{manifest}");
    validated(agent, &manifest);
    assert_eq!(
        fs::metadata(&source).unwrap().ctime_nsec(),
        before.ctime_nsec()
    );

    let adopted = done(agent, "adopt", &[&source, "--yes"]);
    assert_eq!(adopted, manifest, "what is printed is the same");
    // A repeat finds it.
    done(agent, "adopt", &[&source, "--yes"]);
    assert!(!Path::new(&source).exists());
    host.write("web.yaml", &[manifest]);
    host.until("web-1", &["True", "16Mi", "not mounted"]).await;
    let now = home_of(&others);
    assert_eq!(digest(&now), bytes);
    let after = fs::metadata(&now).unwrap();
    assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()));

    let refused = fails(agent, "handover", &["dv", "web-1", "--to-host", "--yes"]);
    assert!(refused.contains("web.yaml"), "{refused}");
    host.write("web.yaml", &[]);
    host.until("web-1", &["Orphan"]).await;
    let shown = done(agent, "handover", &["dv", "web-1", "--to-host"]);
    assert!(shown.contains(&source), "{shown}");
    assert_eq!(digest(&now), bytes);
    done(agent, "handover", &["dv", "web-1", "--to-host", "--yes"]);
    assert_eq!(digest(&source), bytes);
    assert_eq!(fs::metadata(&source).unwrap().ino(), before.ino());
    let (table, _) = eventually(|| agent.status(), |(_, code)| *code == 0).await;
    assert!(!table.contains("web-1"), "{table}");
    // And again, elsewhere.
    done(agent, "adopt", &[&source, "db/web", "--yes"]);
    let elsewhere = text(others.join("elsewhere"));
    let list = ok(agent
        .controller()
        .list_volumes(drumlin_proto::csi::v1::ListVolumesRequest::default())
        .await);
    let id = list.entries[0].volume.as_ref().unwrap().volume_id.clone();
    done(
        agent,
        "handover",
        &[&id, "--to-host", "--path", &elsewhere, "--yes"],
    );
    assert_eq!(digest(&elsewhere), bytes);
}

/// The only image file in the class.
fn home_of(others: &Path) -> String {
    let volumes = others.parent().unwrap().join("images/volumes");
    let mut found = fs::read_dir(volumes)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let home = found.next().unwrap();
    assert_eq!(found.next(), None);
    text(home.join("image"))
}

#[tokio::test]
async fn a_mounted_image_stays_mounted_and_its_writer_goes_on() {
    let (host, others) = start(Scratch::new(), Options::default()).await;
    let agent = &host.agent;
    let source = image(&others, "db.img");
    let target = text(agent.scratch.directory("srv"));
    run("mount", &["-o", "loop,noatime,nosuid", &source, &target]);
    let mount = mounts_at(&target);
    let open = File::create(Path::new(&target).join("open")).unwrap();

    let list: Value = serde_json::from_str(&done(agent, "adopt", &["-o", "json"])).unwrap();
    // Other tests have files there, too.
    let mut volumes = list["volumes"].as_array().unwrap().iter();
    let listed = volumes
        .find(|volume| volume["source"] == *source)
        .unwrap()
        .clone();
    assert_eq!(listed["mountPath"], *target, "{list}");
    let shown = |form: &str| done(agent, "adopt", &[&source, "db", "-o", form]);
    let json: Value = serde_json::from_str(&shown("json")).unwrap();
    assert_eq!(json["manifest"]["metadata"]["name"], "db");
    assert_eq!(serde_yaml::from_str::<Value>(&shown("yaml")).unwrap(), json);
    let list: Value = serde_yaml::from_str(&done(agent, "adopt", &["-o", "yaml"])).unwrap();
    let mut volumes = list["volumes"].as_array().unwrap().iter();
    assert!(volumes.any(|volume| *volume == listed), "{list}");
    let manifest = done(agent, "adopt", &[&source, "db", "--yes"]);
    for words in ["noatime", "nosuid", &format!("path: {target}")] {
        assert!(manifest.contains(words), "{manifest}");
    }
    validated(agent, &manifest);
    host.write("db.yaml", &[manifest]);
    host.until("db", &["True", &target]).await;
    assert_eq!(mounts_at(&target), mount, "it is mounted once, as before");
    std::io::Write::write_all(&mut &open, b"on").unwrap();
    open.sync_all().unwrap();
    let id = host.object("Volume", "db")["status"]["volumeHandle"]
        .as_str()
        .unwrap()
        .to_owned();
    let taken = ok(agent.controller().create_snapshot(snapshot("s", &id)).await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    host.write("db.yaml", &[]);
    host.until("db", &["Orphan"]).await;
    let message = fails(agent, "handover", &["dv", "db", "--to-host", "--yes"]);
    assert!(message.contains(&taken), "{message}");
    ok(agent
        .controller()
        .delete_snapshot(drumlin_proto::csi::v1::DeleteSnapshotRequest {
            snapshot_id: taken,
            ..drumlin_proto::csi::v1::DeleteSnapshotRequest::default()
        })
        .await);
    let shown = done(agent, "handover", &["dv", "db", "--to-host", "--yes"]);
    assert!(shown.contains(&target), "{shown}");
    assert_eq!(mounts_at(&target), mount);
    std::io::Write::write_all(&mut &open, b"and on").unwrap();
    open.sync_all().unwrap();
    let staged = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = text(agent.path("state"));
    assert!(!staged.contains(&root), "{staged}");
    drop(open);
    run("umount", &[&target]);
    assert!(Path::new(&source).exists());
}

/// How a file is before it is refused, words of the refusal, and what ends it.
type Refusal = (&'static str, fn(&str), &'static str, fn(&str));

/// What of a file alone, or of its loop device, forbids its adoption.
const REFUSALS: [Refusal; 10] = [
    (
        "second-name",
        |path| fs::hard_link(path, format!("{path}-2")).unwrap(),
        "2 names",
        |_| {},
    ),
    (
        "odd-size",
        |path| {
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len((16 << 20) + 1)
                .unwrap();
        },
        "no multiple of 4096",
        |_| {},
    ),
    (
        "small",
        |path| {
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(4096)
                .unwrap();
        },
        "of at least",
        |_| {},
    ),
    (
        "blank",
        |path| {
            File::create(path).unwrap().set_len(16 << 20).unwrap();
        },
        "no file system",
        |_| {},
    ),
    (
        "partitions",
        |path| {
            let file = File::create(path).unwrap();
            file.set_len(16 << 20).unwrap();
            file.write_all_at(b"EFI PART", 512).unwrap();
        },
        "GPT partition table",
        |_| {},
    ),
    (
        "crypt",
        |path| {
            let file = File::create(path).unwrap();
            file.set_len(16 << 20).unwrap();
            file.write_all_at(b"LUKS\xba\xbe", 0).unwrap();
        },
        "LUKS",
        |_| {},
    ),
    (
        "swap",
        |path| {
            run("mkswap", &["-q", path]);
        },
        "contains swap",
        |_| {},
    ),
    (
        "part",
        |path| {
            run("losetup", &["-f", "-o", "1048576", path]);
        },
        "a part of it",
        detach,
    ),
    (
        "read-only",
        |path| {
            run("losetup", &["-f", "-r", path]);
        },
        "is read-only",
        detach,
    ),
    (
        "image",
        |path| fs::write(Path::new(path).with_file_name("record.json"), "{}").unwrap(),
        "is an image of a Drumlin agent",
        |path| fs::remove_file(Path::new(path).with_file_name("record.json")).unwrap(),
    ),
];

#[tokio::test]
async fn an_image_file_is_refused_while_in_doubt() {
    let (host, others) = start(Scratch::new(), Options::default()).await;
    let agent = &host.agent;
    for (name, prepare, words, end) in REFUSALS {
        let source = image(&others, name);
        prepare(&source);
        for arguments in [vec![source.as_str()], vec![source.as_str(), "--yes"]] {
            let message = fails(agent, "adopt", &arguments);
            assert!(message.contains(words), "{name}: {message}");
            assert!(message.contains("cannot be adopted"), "{name}: {message}");
        }
        assert!(Path::new(&source).exists());
        end(&source);
    }
    let open = image(&others, "open");
    let file = File::open(&open).unwrap();
    assert!(fails(agent, "adopt", &[&open]).contains("in use by process"));
    drop(file);
    let link = text(others.join("link"));
    symlink(&open, &link).unwrap();
    assert!(fails(agent, "adopt", &[&link]).contains("not a regular file"));
    let elsewhere = agent
        .scratch
        .file_system("elsewhere", drumlin_tests::storage::Kind::Ext4, 64);
    let elsewhere = image(&elsewhere, "x");
    assert!(fails(agent, "adopt", &[&elsewhere]).contains("another file system"));
    assert!(fails(agent, "adopt", &["/nowhere"]).contains("/nowhere: there is no such image file"));
    assert!(fails(agent, "adopt", &["vg/nowhere"]).contains("no such logical volume"));
    // A name that has another volume, in the agent or in the reconciler.
    done(agent, "adopt", &[&open, "one", "--yes"]);
    let other = image(&others, "other");
    let taken = fails(agent, "adopt", &[&other, "one", "--yes"]);
    assert!(taken.contains("has it already"), "{taken}");
    let class = fails(agent, "adopt", &[&other, "two", "--class", "no"]);
    assert!(class.contains("does not exist on this node"), "{class}");
    assert!(Path::new(&other).exists());
}

/// Detaches the loop devices over a file.
fn detach(path: &str) {
    let devices = run("losetup", &["-n", "-O", "NAME", "-j", path]);
    for device in devices.split_whitespace() {
        run("losetup", &["-d", device]);
    }
}

fn adopt_request(source: &str) -> AdoptVolumeRequest {
    AdoptVolumeRequest {
        source: source.to_owned(),
        name: "v".to_owned(),
        ..AdoptVolumeRequest::default()
    }
}

#[tokio::test]
async fn killed_at_each_step_of_an_adoption_or_a_handover_no_byte_is_lost_and_the_repeat_ends_it() {
    let points = sources::agent_points();
    let points: Vec<String> = points
        .into_iter()
        .filter(|point| is_own(point) && !point.starts_with("lvm."))
        .collect();
    assert!(points.len() > 6, "{points:?}");
    for point in points {
        let (mut host, others) = start(Scratch::new(), Options::default()).await;
        let source = image(&others, "v.img");
        let target = text(host.agent.scratch.directory("srv"));
        run("mount", &["-o", "loop", &source, &target]);
        fs::write(Path::new(&target).join("file"), "precious").unwrap();
        run("sync", &["-f", &target]);
        let inode = fs::metadata(&source).unwrap().ino();
        let options = host.agent.options().clone();
        let armed = options.clone().killed_at(&point);
        host.agent.kill();
        host.agent.restart_with(armed).await;
        let mut kills = 0;
        let id = loop {
            let adopted = host
                .agent
                .inventory()
                .adopt_volume(adopt_request(&source))
                .await;
            if let Ok(adopted) = adopted {
                break adopted.into_inner().volume_id;
            }
            kills += 1;
            revive(&mut host, &options).await;
        };
        assert_eq!(
            fs::read(Path::new(&target).join("file")).unwrap(),
            b"precious"
        );
        assert_eq!(
            fs::metadata(home_of(&others)).unwrap().ino(),
            inode,
            "{point}"
        );
        // As the reconciler has it: staged, too.
        let staging = text(host.agent.scratch.directory("staging"));
        run("mount", &["--bind", &target, &staging]);
        kills += release(&mut host, &options, (id, staging.clone())).await;
        assert_eq!(
            kills,
            1,
            "no call comes to {point} once: {}",
            host.agent.log()
        );
        assert_eq!(fs::metadata(&source).unwrap().ino(), inode, "{point}");
        assert_eq!(mounts_at(&staging), [""; 0]);
        assert_eq!(
            fs::read(Path::new(&target).join("file")).unwrap(),
            b"precious"
        );
        let left = fs::read_dir(others.parent().unwrap().join("images/volumes")).unwrap();
        assert_eq!(left.count(), 0, "{point}");
        run("umount", &[&target]);
        assert_eq!(output("e2fsck", &["-fn", &source]).status.code(), Some(0));
    }
}

/// Hands a volume over, as often as it takes. Returns how often the agent was killed.
async fn release(host: &mut Host, options: &Options, (id, staging): (String, String)) -> u32 {
    let request = ReleaseVolumeRequest {
        volume_id: id,
        staging_target_path: staging,
        ..ReleaseVolumeRequest::default()
    };
    let mut kills = 0;
    loop {
        match host.agent.inventory().release_volume(request.clone()).await {
            Ok(_) => return kills,
            Err(status) if status.code() == Code::NotFound => return kills,
            Err(_) => {
                kills += 1;
                revive(host, options).await;
            }
        }
    }
}

/// Starts the agent again after it was killed.
async fn revive(host: &mut Host, options: &Options) {
    host.agent.wait_until_killed().await;
    host.agent.restart_with(options.clone()).await;
}

#[tokio::test]
async fn requests_about_volumes_of_others_are_checked() {
    let (host, _) = start(Scratch::new(), Options::default()).await;
    let mut inventory = host.agent.inventory();
    for (request, words) in [
        (adopt_request(""), "source is missing"),
        (
            AdoptVolumeRequest {
                name: String::new(),
                ..adopt_request("vg/v")
            },
            "name is missing",
        ),
        (
            AdoptVolumeRequest {
                class: "No!".to_owned(),
                ..adopt_request("vg/v")
            },
            "class",
        ),
        (
            AdoptVolumeRequest {
                owner: [("x".to_owned(), "y".to_owned())].into(),
                ..adopt_request("vg/v")
            },
            "owner.x",
        ),
    ] {
        let message = refused(inventory.adopt_volume(request).await, Code::InvalidArgument);
        assert!(message.contains(words), "{message}");
    }
    for source in [
        "vg/v",
        "/nowhere",
        "vg/../v",
        "-rf",
        "vg/v/w",
        "/dev/null",
        "/dev/vg/v",
    ] {
        let answer = inventory.adopt_volume(adopt_request(source)).await;
        let code = answer.unwrap_err().code();
        assert!(
            [Code::NotFound, Code::FailedPrecondition].contains(&code),
            "{source}: {code}"
        );
    }
    let release = |volume_id: &str| ReleaseVolumeRequest {
        volume_id: volume_id.to_owned(),
        ..ReleaseVolumeRequest::default()
    };
    refused(
        inventory.release_volume(release("")).await,
        Code::InvalidArgument,
    );
    refused(
        inventory.release_volume(release("no")).await,
        Code::NotFound,
    );
}
