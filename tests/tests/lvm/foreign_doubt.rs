//! Logical volumes of others that are not adopted while in doubt, each with the reason and what to do.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use drumlin_tests::{agent::Agent, programs::run, storage::lvm};

use crate::{
    foreign_helpers::{done, fails},
    foreign_taken::{record, start, tags},
};

/// A volume that is refused: what is done to `v` first, words of the refusal, and what ends it.
type Refusal = (&'static str, fn(&str, &str), &'static str, fn(&str, &str));

fn write_at(device: &str, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

fn clear(group: &str) -> String {
    let device = format!("/dev/{group}/v");
    run("wipefs", &["-q", "-a", &device]);
    run(
        "dd",
        &[
            "if=/dev/zero",
            &format!("of={device}"),
            "bs=1M",
            "count=2",
            "conv=fsync",
            "status=none",
        ],
    );
    device
}

/// What the metadata of a volume forbids.
const BY_RECORD: [Refusal; 7] = [
    (
        "snapshot",
        |_, v| {
            lvm("lvcreate", &["-s", "-L", "8M", "-n", "s", v]);
        },
        "has snapshots",
        |g, _| {
            lvm("lvremove", &["-y", &format!("{g}/s")]);
        },
    ),
    (
        "inactive",
        |_, v| {
            lvm("lvchange", &["-an", v]);
        },
        "lvchange -ay",
        |_, v| {
            lvm("lvchange", &["-ay", v]);
        },
    ),
    (
        "read-only",
        |_, v| {
            lvm("lvchange", &["-pr", v]);
        },
        "lvchange -prw",
        |_, v| {
            lvm("lvchange", &["-prw", v]);
        },
    ),
    (
        "other node",
        |_, v| {
            lvm(
                "lvchange",
                &[
                    "--addtag",
                    "drumlin.schema=1",
                    "--addtag",
                    "drumlin.id=volume:0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab001",
                    "--addtag",
                    "drumlin.class=thick",
                    "--addtag",
                    "drumlin.node=node-x",
                    v,
                ],
            );
        },
        "belongs to node node-x",
        untag,
    ),
    (
        "left tag",
        |_, v| {
            lvm("lvchange", &["--addtag", "drumlin.l.name=x", v]);
        },
        "tags of Drumlin's",
        |_, v| {
            lvm("lvchange", &["--deltag", "drumlin.l.name=x", v]);
        },
    ),
    (
        "raid1",
        |_, v| {
            lvm("lvconvert", &["-y", "--type", "raid1", "-m", "1", v]);
        },
        "laid out as raid1",
        |_, v| {
            lvm("lvconvert", &["-y", "-m", "0", v]);
        },
    ),
    ("blank", |_, _| {}, "no file system", |_, _| {}),
];

fn untag(_: &str, volume: &str) {
    for tag in tags(volume).split(',') {
        lvm("lvchange", &["--deltag", tag, volume]);
    }
}

/// What its contents or its users forbid.
const BY_USE: [Refusal; 10] = [
    (
        "LUKS",
        |g, _| write_at(&clear(g), 0, b"LUKS\xba\xbe"),
        "LUKS",
        |_, _| {},
    ),
    (
        "swap",
        |g, _| {
            run("mkswap", &["-q", &clear(g)]);
        },
        "contains swap",
        |_, _| {},
    ),
    (
        "disk of LVM",
        |g, _| write_at(&clear(g), 512, b"LABELONE"),
        "LVM physical volume",
        |_, _| {},
    ),
    (
        "partitions",
        |g, _| write_at(&clear(g), 512, b"EFI PART"),
        "GPT partition table",
        |_, _| {},
    ),
    (
        "ext3",
        |g, _| {
            run("mkfs.ext3", &["-q", "-F", &clear(g)]);
        },
        "ext3",
        |_, _| {},
    ),
    (
        "loop device",
        |g, _| {
            let device = format!("/dev/{g}/v");
            run("mkfs.ext4", &["-q", "-F", &clear(g)]);
            run("losetup", &["-f", &device]);
        },
        "is in use by",
        |g, _| {
            let device = fs::canonicalize(format!("/dev/{g}/v")).unwrap();
            for one in run("losetup", &["-n", "-O", "NAME,BACK-FILE"]).lines() {
                let mut words = one.split_whitespace();
                let name = words.next().unwrap();
                let back = words.next().unwrap_or_default();
                if fs::canonicalize(back).is_ok_and(|back| back == device) {
                    run("losetup", &["-d", name]);
                }
            }
        },
    ),
    (
        "mapped",
        |g, _| {
            run(
                "dmsetup",
                &[
                    "create",
                    "over-v",
                    "--table",
                    &format!("0 2048 linear /dev/{g}/v 0"),
                ],
            );
        },
        "is in use by",
        |_, _| {
            run("dmsetup", &["remove", "over-v"]);
        },
    ),
    (
        "two mounts",
        |g, _| mount_twice(g),
        "several places",
        |_, _| unmount_both(),
    ),
    (
        "in a pod",
        |g, _| {
            fs::create_dir_all(POD).unwrap();
            run("mount", &[&format!("/dev/{g}/v"), POD]);
        },
        "kubelet",
        |_, _| {
            run("umount", &[POD]);
        },
    ),
    (
        "a part",
        |g, _| {
            mount_twice(g);
            fs::create_dir_all("/run/lab-b/sub").unwrap();
            fs::create_dir_all("/run/lab-c").unwrap();
            run("mount", &["--bind", "/run/lab-b/sub", "/run/lab-c"]);
            unmount_both();
        },
        "only /sub",
        |_, _| {
            run("umount", &["/run/lab-c"]);
        },
    ),
];

const POD: &str = "/run/kubelet/pods/8376b776/volumes/kubernetes.io~csi/pvc-1/mount";

fn mount_twice(group: &str) {
    for target in ["/run/lab-a", "/run/lab-b"] {
        fs::create_dir_all(target).unwrap();
        run("mount", &[&format!("/dev/{group}/v"), target]);
    }
}

fn unmount_both() {
    for target in ["/run/lab-a", "/run/lab-b"] {
        run("umount", &[target]);
    }
}

#[tokio::test]
async fn a_logical_volume_is_refused_while_in_doubt() {
    let (host, group) = start().await;
    let agent = &host.agent;
    lvm("lvcreate", &["-y", "-L", "16M", "-n", "v", &group]);
    let volume = format!("{group}/v");
    for (name, prepare, words, end) in BY_RECORD.into_iter().chain(BY_USE) {
        prepare(&group, &volume);
        let before = record(&group);
        for arguments in [&[volume.as_str(), "x"][..], &[&volume, "x", "--yes"]] {
            let message = fails(agent, "adopt", arguments);
            assert!(message.contains(words), "{name}: {message}");
            assert!(message.contains("cannot be adopted"), "{name}: {message}");
        }
        assert_eq!(record(&group), before, "{name}");
        end(&group, &volume);
    }
    // Nothing else was wrong with it: after `a part`, it has an ext4.
    let manifest = done(agent, "adopt", &[&volume, "x", "--yes"]);
    assert!(manifest.contains("deviceClass: thick"), "{manifest}");
    others_are_refused(agent, &group);
}

/// What is no volume, or another one's.
fn others_are_refused(agent: &Agent, group: &str) {
    lvm("lvcreate", &["-y", "-L", "16M", "-n", "w", group]);
    run("mkfs.ext4", &["-q", &format!("/dev/{group}/w")]);
    lvm(
        "lvcreate",
        &["-s", "-L", "8M", "-n", "cow", &format!("{group}/w")],
    );
    lvm(
        "lvcreate",
        &["-y", "-i", "2", "-L", "16M", "-n", "striped", group],
    );
    for (name, words) in [
        (format!("{group}_thinpool"), "is a thin pool"),
        (
            format!("{group}_thinpool_tdata"),
            "a part of another volume",
        ),
        ("v".to_owned(), "managed already, as"),
        ("cow".to_owned(), "is a snapshot of"),
        ("striped".to_owned(), "striped over 2 disks"),
        ("none".to_owned(), "no such logical volume"),
    ] {
        let message = fails(agent, "adopt", &[&format!("{group}/{name}"), "y", "--yes"]);
        assert!(message.contains(words), "{name}: {message}");
    }
    // A snapshot keeps its origin busy; without it the name of the object is what is wrong.
    lvm("lvremove", &["-y", &format!("{group}/cow")]);
    let taken = fails(agent, "adopt", &[&format!("{group}/w"), "x", "--yes"]);
    assert!(taken.contains("has it already"), "{taken}");
    let wrong = fails(agent, "adopt", &[&format!("{group}/w"), "Not_A_Name"]);
    assert!(wrong.contains("valid NAMESPACE/NAME"), "{wrong}");
    let misfit = fails(
        agent,
        "adopt",
        &[&format!("{group}/w"), "w", "--class", "thin"],
    );
    assert!(misfit.contains("is not in thin pool"), "{misfit}");
    let table = done(agent, "adopt", &[]);
    assert!(
        table.contains(&format!("{group}/w")) && table.contains("yes"),
        "{table}"
    );
    assert!(!table.contains("_thinpool "), "{table}");
}
