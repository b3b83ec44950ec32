//! What this host lacks, in a mount namespace where it does.

use drumlin_tests::{
    agent::{Agent, Options, write},
    doctor::Diagnosis,
    storage::Scratch,
};

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

#[tokio::test]
async fn a_kernel_without_device_mapper_and_a_group_that_is_missing_are_told() {
    let agent =
        configured("classes: [{name: default, thick: {volumeGroup: dt-no-such-group}}]\n").await;
    let found = Diagnosis::where_mounts_are(&agent, WITHOUT_DEVICES);
    found.finds("no-device-mapper", "/dev/mapper/control");
    found.finds("volume-group-missing", "dt-no-such-group");
    found.lacks("no-loop-devices");
}
