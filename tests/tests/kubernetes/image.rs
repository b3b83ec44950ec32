//! The image's root file system, put together as its build does, and the agent in it as its container runs it.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use drumlin_tests::{
    agent::{Agent, Options},
    cluster::Cluster,
    kubelet::{Kubelet, Retry},
    programs::{drumlin, output, programs_of, run, workspace},
    requests::{expand, mounted, node_expand, raw, snapshot},
    storage::Scratch,
};

use crate::{
    helpers::{get, mount, ok, put, unmount, volume},
    kustomize::Rendered,
};

/// What the agent and its programs call, and what makes each say who it is.
const PROGRAMS: [(&str, &str); 14] = [
    ("mkfs.ext4", "-V"),
    ("e2fsck", "-V"),
    ("resize2fs", "-h"),
    ("tune2fs", "-h"),
    ("mkfs.xfs", "-V"),
    ("xfs_growfs", "-V"),
    ("xfs_repair", "-V"),
    ("mkfs.btrfs", "--version"),
    ("btrfs", "--version"),
    ("btrfstune", "--help"),
    ("lvm", "version"),
    ("thin_ls", "--version"),
    ("thin_check", "--version"),
    ("setpriv", "--version"),
];

fn mounted_at(options: &[&str], what: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    let (what, at) = (what.to_string_lossy(), at.to_string_lossy());
    let words: Vec<&str> = options.iter().copied().chain([&*what, &*at]).collect();
    run("mount", &words);
}

/// A binary that the image's C library is too old for brings that of this machine: the image's own build has no need to.
fn with_its_library(image: &Path) {
    let binary = image.join("usr/bin/drumlin");
    let image = image.to_string_lossy();
    let started = output("chroot", &[&image, "drumlin", "--version"]);
    if started.status.success() {
        return;
    }
    let listed = run("ldd", &[&drumlin().to_string_lossy()]);
    let words = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    let own = Path::new(&*image).join("own");
    fs::create_dir_all(&own).unwrap();
    for library in words {
        let name = Path::new(library).file_name().unwrap();
        fs::copy(library, own.join(name)).unwrap();
    }
    let binary = binary.to_string_lossy();
    let words = [
        "--set-interpreter",
        "/own/ld-linux-x86-64.so.2",
        "--set-rpath",
        "/own",
    ];
    run("patchelf", &[&words[..], &[&*binary]].concat());
    run("chroot", &[&image, "drumlin", "--version"]);
}

/// The rights that no process here has more of.
fn bounds() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let bounds = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    u64::from_str_radix(bounds.unwrap().trim(), 16).unwrap()
}

/// Makes the image, and makes it again.
fn built(scratch: &Scratch) -> PathBuf {
    let script = workspace()
        .join("manifests/image/rootfs")
        .to_string_lossy()
        .into_owned();
    let binary = drumlin().to_string_lossy().into_owned();
    let made = |name: &str| {
        let tar = scratch.path().join(name);
        run(&script, &[&binary, &tar.to_string_lossy()]);
        tar
    };
    let (one, two) = (made("one.tar"), made("two.tar"));
    let alike = output("cmp", &[&one.to_string_lossy(), &two.to_string_lossy()]);
    assert!(alike.status.success(), "{alike:?}");
    let image = scratch.directory("image");
    run(
        "tar",
        &[
            "-x",
            "-f",
            &one.to_string_lossy(),
            "-C",
            &image.to_string_lossy(),
        ],
    );
    image
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_is_built_the_same_and_has_all_that_the_agent_calls() {
    let cluster = Cluster::of_the_lab();
    let container = Rendered::of(&cluster, "base", &[]).container("agent");
    // Dropped in this order: the agent, kubelet, what is mounted in the image, the image.
    let (image, scratch) = (Scratch::new(), Scratch::new());
    let root = built(&image);
    with_its_library(&root);
    its_programs_start(&root);
    mounted_as_by_the_pod(&root, scratch.path());

    let within = ["chroot".to_owned(), root.to_string_lossy().into_owned()];
    let command = container.command.into_iter();
    let registry = scratch.directory("registry");
    let kubelet = Kubelet::start(registry.join("csi.drumlin.dev-reg.sock"), Retry::SameSocket);
    let options = Options {
        arguments: vec![
            "--kubelet-register".to_owned(),
            format!("--kubelet-registration-dir={}", registry.display()),
        ],
        within: within
            .into_iter()
            .chain(command.take_while(|word| word != "drumlin"))
            .collect(),
        ..Options::default()
    };
    let agent = Agent::with(scratch, options).await;
    kubelet.until_registered(1).await;
    its_probes_succeed(&root, &agent);
    let written = fs::write(inside(&root, Path::new("/etc/x")), "x");
    assert_eq!(written.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    let kept = rights_that_are_kept();
    for own in [agent.pid()].into_iter().chain(programs_of(agent.pid())) {
        let status = fs::read_to_string(format!("/proc/{own}/status")).unwrap();
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert!(status.contains(&format!("{set}:\t{kept:016x}")), "{status}");
        }
    }
    for kind in ["ext4", "xfs", "btrfs"] {
        let id = volume(&agent, kind, 320, &mounted(kind)).await;
        a_volume_of_somebody_is_used(&agent, kind, &id, kept).await;
    }
    let id = volume(&agent, "raw", 8, &raw()).await;
    let at = mount(&agent, "raw", &id, &raw()).await;
    fs::write(&at.1, "precious").unwrap();
    unmount(&agent, &id, &at).await;
}

/// As kubelet runs them: in the container, as its first process was, but with all rights that there are.
fn its_probes_succeed(root: &Path, agent: &Agent) {
    let (root, socket) = (root.to_string_lossy(), agent.socket());
    let endpoint = format!("--endpoint={}", socket.display());
    for probe in [&["ping"][..], &["ping", "--ready"][..]] {
        let words = [&[&*root, "drumlin"], probe, &[&*endpoint]].concat();
        run("chroot", &words);
    }
}

fn its_programs_start(root: &Path) {
    for (program, option) in PROGRAMS {
        let said = output("chroot", &[&root.to_string_lossy(), program, option]);
        // Some end with 1 when they have said how they are used.
        let is_missing = matches!(said.status.code(), None | Some(125..=127));
        assert!(!is_missing, "{program}: {said:?}");
        let said = [said.stdout, said.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.contains("error while loading"), "{program}: {said}");
    }
}

/// Where a path of the image is for who is outside.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap())
}

/// Read only but for what the pod mounts; what is mounted in there is seen outside.
fn mounted_as_by_the_pod(root: &Path, own: &Path) {
    mounted_at(&["--bind"], own, own);
    run("mount", &["--make-shared", &own.to_string_lossy()]);
    mounted_at(&["--bind"], root, root);
    for (options, path) in [
        (["--bind"].as_slice(), "/dev"),
        (&["-t", "proc"], "/proc"),
        (&["-t", "sysfs"], "/sys"),
        (&["-t", "tmpfs"], "/run/drumlin"),
        (&["-t", "tmpfs"], "/tmp"),
    ] {
        let path = Path::new(path);
        mounted_at(options, path, &inside(root, path));
    }
    mounted_at(&["--bind"], own, &inside(root, own));
    // The harness starts its own binary by its path, and here that is the image's.
    let binary = drumlin();
    fs::create_dir_all(inside(root, binary.parent().unwrap())).unwrap();
    symlink("/usr/bin/drumlin", inside(root, &binary)).unwrap();
    run("mount", &["-o", "remount,bind,ro", &root.to_string_lossy()]);
}

/// `CAP_SYS_RESOURCE`.
const SYS_RESOURCE: u64 = 1 << 24;

/// The rights of the container, as bits.
fn rights_that_are_kept() -> u64 {
    // sys_admin 21, mknod 27, dac_read_search 2, chown 0, ipc_lock 14, sys_nice 23
    let kept = [21, 27, 2, 0, 14, 23].map(|bit| 1_u64 << bit);
    // Of these, those that there are here.
    (kept.iter().sum::<u64>() | SYS_RESOURCE) & bounds()
}

async fn a_volume_of_somebody_is_used(agent: &Agent, kind: &str, id: &str, kept: u64) {
    let at = mount(agent, kind, id, &mounted(kind)).await;
    put(&at.1, "file", b"precious");
    // Somebody's own, which root without all its rights could not look into.
    run("chown", &["-R", "1000", &at.1]);
    run("chmod", &["700", &at.1]);
    ok(agent.controller().create_snapshot(snapshot(kind, id)).await);
    let grown = expand(id, 400);
    ok(agent.controller().controller_expand_volume(grown).await);
    // The kernel grows a mounted ext4 for sys_resource alone.
    if kind != "ext4" || kept & SYS_RESOURCE != 0 {
        let request = node_expand(id, &at.1);
        ok(agent.node().node_expand_volume(request).await);
    }
    assert_eq!(get(&at.1, "file"), b"precious", "{kind}");
    unmount(agent, id, &at).await;
}
