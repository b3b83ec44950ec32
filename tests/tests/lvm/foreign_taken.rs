//! Logical volumes made by hand, by TopoLVM or by OpenEBS LVM LocalPV, by the commands that these run: adopted in place,
//! byte for byte, with their names and mounts, and handed back.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use drumlin_proto::drumlin::v1::{AdoptVolumeRequest, ReleaseVolumeRequest};
use drumlin_tests::{
    agent::{Agent, Options, eventually},
    programs::run,
    requests::{expand, snapshot},
    sources,
    storage::{Scratch, lvm},
};
use serde_json::Value;
use tonic::Code;

use crate::{
    foreign_helpers::{digest, done, fails, is_own, mounts_at, validated},
    helpers::{ok, text},
    host::Host,
};

const UID: &str = "8376b776-75f9-4786-8311-f8780adfab";

/// A group with a thin pool as OpenEBS names it, and classes for thin and linear volumes.
pub(crate) async fn start() -> (Host, String) {
    let scratch = Scratch::new();
    let group = scratch.volume_group(512);
    lvm(
        "lvcreate",
        &["-L", "300M", "-T", &format!("{group}/{group}_thinpool")],
    );
    let config = format!(
        "classes: [{{name: thin, default: true, thin: {{volumeGroup: {group}, pool: {group}_thinpool}}}}, {{name: thick, thick: {{volumeGroup: {group}}}}}]\n"
    );
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    (Host::over(scratch, options).await, group)
}

/// Everything that LVM records about a group, and how often that was changed.
pub(crate) fn record(group: &str) -> String {
    let volumes = [
        "--noheadings",
        "-a",
        "-o",
        "lv_name,lv_uuid,lv_tags,lv_permissions,lv_size,devices",
        group,
    ];
    lvm("vgs", &["--noheadings", "-o", "vg_seqno", group]) + &lvm("lvs", &volumes)
}

pub(crate) fn tags(volume: &str) -> String {
    lvm("lvs", &["--noheadings", "-o", "lv_tags", volume])
        .trim()
        .to_owned()
}

/// A process that writes, syncs and counts until it is dropped.
struct Writer {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn on(target: &str) -> Self {
        let (stop, count) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut file = File::create(Path::new(target).join("log")).unwrap();
        let (stops, counts) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            while !stops.load(Ordering::SeqCst) {
                let number = counts.load(Ordering::SeqCst);
                writeln!(file, "{number:08}").unwrap();
                file.sync_data().unwrap();
                counts.store(number + 1, Ordering::SeqCst);
            }
        });
        Self {
            stop,
            count,
            thread: Some(thread),
        }
    }

    /// Waits until it has written more.
    async fn goes_on(&self) {
        let before = self.count.load(Ordering::SeqCst);
        eventually(
            || self.count.load(Ordering::SeqCst),
            |count| *count > before + 2,
        )
        .await;
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        self.count.load(Ordering::SeqCst)
    }
}

/// A volume of a maker: its name, the arguments of `lvcreate`, the maker, its class.
type Made = (String, Vec<String>, &'static str, &'static str);

/// As the makers make them: TopoLVM in `internal/lvmd/command/lvm.go`, OpenEBS in `pkg/lvm/lvm_util.go`.
fn makers(group: &str) -> Vec<Made> {
    let pool = format!("{group}/{group}_thinpool");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let (topo, openebs) = (format!("{UID}01"), format!("pvc-{UID}02"));
    let (topo_thin, openebs_thin) = (format!("{UID}03"), format!("pvc-{UID}04"));
    vec![
        (
            "data".to_owned(),
            words(&["-L", "32M", "-n", "data", "--addtag", "backup", group]),
            "hand",
            "thick",
        ),
        (
            "thin+data".to_owned(),
            words(&["-V", "32M", "-T", &pool, "-n", "thin+data"]),
            "hand",
            "thin",
        ),
        (
            topo.clone(),
            words(&["-n", &topo, "-L", "33554432b", "-W", "y", "-y", group]),
            "topolvm",
            "thick",
        ),
        (
            topo_thin.clone(),
            words(&[
                "-T",
                &pool,
                "-n",
                &topo_thin,
                "-V",
                "33554432b",
                "-W",
                "y",
                "-y",
            ]),
            "topolvm",
            "thin",
        ),
        (
            openebs.clone(),
            words(&["-L", "33554432b", "-n", &openebs, group, "-y"]),
            "openebs-lvm",
            "thick",
        ),
        (
            openebs_thin.clone(),
            words(&["-T", &pool, "-V", "33554432b", "-n", &openebs_thin, "-y"]),
            "openebs-lvm",
            "thin",
        ),
    ]
}

#[tokio::test]
async fn volumes_of_every_maker_are_adopted_in_place_and_handed_back() {
    let (host, group) = start().await;
    for (index, (name, words, maker, class)) in makers(&group).into_iter().enumerate() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        lvm("lvcreate", &words);
        let (source, device) = (format!("{group}/{name}"), format!("/dev/{group}/{name}"));
        run("mkfs.ext4", &["-q", &device]);
        let object = format!("v{index}");
        adopt_unmounted(&host, &group, (&source, &object), (maker, class)).await;
        lvm("lvremove", &["-y", &source]);
    }
}

/// The whole way of an unmounted volume, there and back.
async fn adopt_unmounted(
    host: &Host,
    group: &str,
    (source, object): (&str, &str),
    (maker, class): (&str, &str),
) {
    let agent = &host.agent;
    let device = format!("/dev/{source}");
    let (bytes, own_tags) = (digest(&device), tags(source));
    let before = record(group);
    let list: Value = serde_json::from_str(&done(agent, "adopt", &["-o", "json"])).unwrap();
    let listed = &list["volumes"][0];
    for (field, wanted) in [
        ("source", source),
        ("maker", maker),
        ("class", class),
        ("fsType", "ext4"),
    ] {
        assert_eq!(listed[field], wanted, "{list}");
    }
    assert_eq!(listed["refusals"], Value::Array(Vec::new()), "{list}");
    let manifest = done(agent, "adopt", &[source, object]);
    validated(agent, &manifest);
    assert_eq!(record(group), before, "a dry run changes nothing");
    assert_eq!(
        manifest.contains("in a cluster") || manifest.contains("if a cluster"),
        maker != "hand",
        "{manifest}"
    );

    // The manifest may come first: it waits for the adoption, instead of having an empty volume created.
    host.write("v.yaml", &[manifest.clone()]);
    host.until(object, &["does not exist"]).await;
    assert_eq!(record(group), before);
    done(agent, "adopt", &[&device, object, "--yes"]);
    host.until(object, &["True", "32Mi", "not mounted"]).await;
    let adopted = record(group);
    done(agent, "adopt", &[source, object, "--yes"]);
    assert_eq!(record(group), adopted, "a repeat changes nothing");
    assert_eq!(digest(&device), bytes, "{source}");
    let all = tags(source);
    assert!(own_tags.is_empty() || all.contains(&own_tags), "{all}");

    // It is a volume like others: it has snapshots, grows and is used.
    let id = host.object("Volume", object)["status"]["volumeHandle"]
        .as_str()
        .unwrap()
        .to_owned();
    let taken = ok(agent
        .controller()
        .create_snapshot(snapshot(&format!("s-{object}"), &id))
        .await);
    let taken = taken.snapshot.unwrap().snapshot_id;
    host.write("v.yaml", &[]);
    host.until(object, &["Orphan"]).await;
    let message = fails(agent, "handover", &["dv", object, "--to-host", "--yes"]);
    assert!(message.contains("snapshots"), "{message}");
    ok(agent
        .controller()
        .delete_snapshot(drumlin_proto::csi::v1::DeleteSnapshotRequest {
            snapshot_id: taken,
            ..drumlin_proto::csi::v1::DeleteSnapshotRequest::default()
        })
        .await);
    assert_eq!(digest(&device), bytes, "{source}");
    let held = record(group);
    done(agent, "handover", &["dv", object, "--to-host"]);
    assert_eq!(record(group), held, "a dry run changes nothing");
    done(agent, "handover", &["dv", object, "--to-host", "--yes"]);
    assert_eq!(tags(source), own_tags);
    assert_eq!(digest(&device), bytes, "{source}");
    let (table, _) = eventually(|| agent.status(), |(table, _)| !table.contains(object)).await;
    assert!(!table.contains(object), "{table}");
    grows_under_its_own_name(agent, source, object).await;
}

/// Adopted again, it grows, though it has not the name that this agent would have given it.
async fn grows_under_its_own_name(agent: &Agent, source: &str, object: &str) {
    done(agent, "adopt", &[source, object, "--yes"]);
    let again: Value =
        serde_json::from_str(&done(agent, "adopt", &[source, object, "-o", "json"])).unwrap();
    let id = again["handle"].as_str().unwrap().to_owned();
    let grown = ok(agent
        .controller()
        .controller_expand_volume(expand(&id, 48))
        .await);
    assert_eq!(grown.capacity_bytes, 48 << 20);
    done(agent, "handover", &[&id, "--to-host", "--yes"]);
    let size = lvm(
        "lvs",
        &["--noheadings", "--units", "m", "-o", "lv_size", source],
    );
    assert_eq!(size.trim(), "48.00m");
}

#[tokio::test]
async fn a_mounted_volume_stays_mounted_and_its_writer_goes_on() {
    for (class, file_system) in [("thin", "xfs"), ("thick", "ext4"), ("thick", "btrfs")] {
        let (host, group) = start().await;
        let agent = &host.agent;
        let pool = format!("{group}/{group}_thinpool");
        match class {
            "thin" => lvm("lvcreate", &["-V", "400M", "-T", &pool, "-n", "db"]),
            _ => lvm("lvcreate", &["-y", "-L", "256M", "-n", "db", &group]),
        };
        let (source, device) = (format!("{group}/db"), format!("/dev/{group}/db"));
        run(&format!("mkfs.{file_system}"), &["-q", &device]);
        let target = text(agent.scratch.directory("srv"));
        run("mount", &["-o", "noatime,nodev", &device, &target]);
        let (mount, writer) = (mounts_at(&target), Writer::on(&target));
        let manifest = done(agent, "adopt", &[&source, "db", "--yes"]);
        for words in ["noatime", "nodev", &format!("path: {target}"), file_system] {
            assert!(manifest.contains(words), "{manifest}");
        }
        validated(agent, &manifest);
        host.write("db.yaml", &[manifest]);
        host.until("db", &["True", &target]).await;
        writer.goes_on().await;
        assert_eq!(mounts_at(&target), mount, "it is mounted once, as before");
        // Its user stops, and it is handed back while it is mounted.
        host.write("db.yaml", &[]);
        host.until("db", &["Orphan"]).await;
        done(agent, "handover", &["dv", "db", "--to-host", "--yes"]);
        writer.goes_on().await;
        assert_eq!(mounts_at(&target), mount);
        assert_eq!(tags(&source), "");
        let count = writer.end();
        let written = fs::read_to_string(Path::new(&target).join("log")).unwrap();
        let numbers: Vec<u64> = written.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        run("umount", &[&target]);
    }
}

#[tokio::test]
async fn a_thin_snapshot_of_others_is_a_volume_of_its_own() {
    let (host, group) = start().await;
    let agent = &host.agent;
    let pool = format!("{group}/{group}_thinpool");
    lvm("lvcreate", &["-V", "32M", "-T", &pool, "-n", "origin"]);
    run("mkfs.ext4", &["-q", &format!("/dev/{group}/origin")]);
    // As TopoLVM restores a volume.
    lvm(
        "lvcreate",
        &[
            "-s",
            "-k",
            "n",
            "-n",
            "restored",
            &format!("{group}/origin"),
        ],
    );
    lvm(
        "lvchange",
        &["-k", "n", "-a", "y", &format!("{group}/restored")],
    );
    let device = format!("/dev/{group}/restored");
    let bytes = digest(&device);
    let manifest = done(agent, "adopt", &[&format!("{group}/restored"), "--yes"]);
    assert!(
        manifest.contains(&format!("a snapshot of {group}/origin")),
        "{manifest}"
    );
    lvm("lvremove", &["-y", &format!("{group}/origin")]);
    host.write("r.yaml", &[manifest]);
    host.until("restored", &["True"]).await;
    assert_eq!(digest(&device), bytes);
}

#[tokio::test]
async fn killed_at_each_step_of_an_adoption_or_a_handover_the_repeat_ends_it() {
    let points = sources::agent_points().into_iter();
    let points: Vec<String> = points
        .filter(|point| is_own(point) && !point.starts_with("directory."))
        .collect();
    assert!(points.len() > 5, "{points:?}");
    let (mut host, group) = start().await;
    lvm("lvcreate", &["-y", "-L", "16M", "-n", "v", &group]);
    let device = format!("/dev/{group}/v");
    run("mkfs.ext4", &["-q", &device]);
    let bytes = digest(&device);
    let options = host.agent.options().clone();
    for point in points {
        let armed = options.clone().killed_at(&point);
        host.agent.kill();
        host.agent.restart_with(armed).await;
        let mut kills = 0;
        let request = AdoptVolumeRequest {
            source: format!("{group}/v"),
            name: "v".to_owned(),
            ..AdoptVolumeRequest::default()
        };
        let id = loop {
            match host.agent.inventory().adopt_volume(request.clone()).await {
                Ok(adopted) => break adopted.into_inner().volume_id,
                Err(_) => revive(&mut host, &options, &mut kills).await,
            }
        };
        assert_eq!(digest(&device), bytes, "{point}");
        let staging = text(host.agent.scratch.directory("staging"));
        run("mount", &["-o", "ro", &device, &staging]);
        let request = ReleaseVolumeRequest {
            volume_id: id,
            staging_target_path: staging.clone(),
            ..ReleaseVolumeRequest::default()
        };
        loop {
            match host.agent.inventory().release_volume(request.clone()).await {
                Ok(_) => break,
                Err(status) if status.code() == Code::NotFound => break,
                Err(_) => revive(&mut host, &options, &mut kills).await,
            }
        }
        assert_eq!(kills, 1, "{point}: {}", host.agent.log());
        assert_eq!(mounts_at(&staging), [""; 0], "{point}");
        assert_eq!(
            (tags(&format!("{group}/v")), digest(&device)),
            (String::new(), bytes.clone()),
            "{point}"
        );
    }
}

async fn revive(host: &mut Host, options: &Options, kills: &mut u32) {
    *kills += 1;
    host.agent.wait_until_killed().await;
    host.agent.restart_with(options.clone()).await;
}
