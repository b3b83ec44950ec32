//! What this host lacks, in a mount namespace where it does.

use drumlin_tests::{
    agent::{Agent, Options, write},
    doctor::Diagnosis,
    storage::Scratch,
};

use crate::group_snapshots::with_reflinks;

/// A `/dev` as a container has it that was given no devices; LVM's programs cannot make a node of device-mapper there.
const WITHOUT_DEVICES: &str =
    "mount -t tmpfs none /dev; mknod /dev/null c 1 3; mount -o remount,ro /dev";

/// An agent that has ended, with this configuration.
async fn configured(config: &str) -> Agent {
    let options = Options {
        config: Some("node: n\n".to_owned()),
        ..Options::default()
    };
    let mut agent = Agent::with(Scratch::new(), options).await;
    agent.kill();
    write(&agent.path("config.yaml"), config);
    agent
}

#[tokio::test]
async fn a_program_that_is_not_installed_is_missing() {
    let scratch = Scratch::new();
    let images = scratch.directory("images");
    let agent = configured(&format!(
        "classes: [{{name: default, directory: {{path: {}, fsType: xfs}}}}]\n",
        images.display()
    ))
    .await;
    Diagnosis::of(&agent).lacks("missing-program");
    let hide = "for home in /usr/sbin /usr/bin /sbin /bin; do [ ! -e $home/mkfs.xfs ] || mount --bind /dev/null $home/mkfs.xfs; done";
    let found = Diagnosis::where_mounts_are(&agent, hide);
    let advice = found.text("missing-program", "mkfs.xfs", "advice");
    assert!(advice.contains("xfsprogs"), "{advice}");
}

#[tokio::test]
async fn a_kernel_without_loop_devices_is_told() {
    let agent = configured("node: n\n").await;
    Diagnosis::of(&agent).lacks("no-loop-devices");
    let found = Diagnosis::where_mounts_are(&agent, WITHOUT_DEVICES);
    let command = found.text("no-loop-devices", "/dev/loop-control", "command");
    assert_eq!(command, "modprobe loop");
    found.lacks("no-device-mapper");
}

/// What is done where the kernel is one of Debian's, of this version of kernel.org.
fn with_kernel(agent: &Agent, version: &str) -> Diagnosis {
    let fake = agent.path("kernel-version");
    write(
        &fake,
        &format!("#1 SMP PREEMPT_DYNAMIC Debian {version}-1 (2023-11-30)\n"),
    );
    let bind = format!("mount --bind {} /proc/sys/kernel/version", fake.display());
    Diagnosis::where_mounts_are(agent, &bind)
}

#[tokio::test]
async fn a_kernel_with_a_known_fault_is_told_where_it_harms_a_class() {
    let config = |kind: &str| {
        let images = "directory: {path: /tmp, allocation: thick";
        format!("classes: [{{name: default, {images}, fsType: {kind}}}}}]\n")
    };
    let agent = configured(&config("ext4")).await;
    let found = with_kernel(&agent, "6.1.64");
    let message = found.text("known-fault", "kernel", "message");
    assert!(
        message.contains("class default") && message.contains("Linux 6.1.64"),
        "{message}"
    );
    let advice = found.text("known-fault", "kernel", "advice");
    assert_eq!(advice, "update it to Linux 6.1.66 or newer");
    with_kernel(&agent, "6.1.66").lacks("known-fault");
    write(&agent.path("config.yaml"), &config("xfs"));
    with_kernel(&agent, "6.1.64").lacks("known-fault");
}

#[tokio::test]
async fn a_fault_of_shared_blocks_is_told_where_images_share_them() {
    let agent = with_reflinks(1200).await;
    let advice = with_kernel(&agent, "6.1.177").text("known-fault", "kernel", "advice");
    assert_eq!(advice, "update it to Linux 6.1.178 or newer");
    with_kernel(&agent, "6.1.178").lacks("known-fault");
}

#[tokio::test]
async fn a_kernel_without_device_mapper_and_a_group_that_is_missing_are_told() {
    let agent =
        configured("classes: [{name: default, thick: {volumeGroup: dt-no-such-group}}]\n").await;
    let found = Diagnosis::where_mounts_are(&agent, WITHOUT_DEVICES);
    found.finds("no-device-mapper", "/dev/mapper/control");
    found.finds("volume-group-missing", "dt-no-such-group");
    found.lacks("no-loop-devices");
}
