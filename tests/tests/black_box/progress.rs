//! How far a long copy is: in the status, in the log, and as a bar on a terminal.

use std::{fs, path::PathBuf};

use drumlin_tests::{
    agent::{Options, eventually},
    programs::{output, run},
    storage::{Kind, Scratch},
    throttle::SlowReads,
};

use crate::{
    helpers::text,
    host::{Host, volume},
};

/// A copy whose disk is read once a second, a mebibyte at the most.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_copy_says_how_far_it_is_in_status_log_and_bar() {
    let scratch = Scratch::new();
    let images = scratch.file_system("images", Kind::Ext4, 400);
    let device = run("findmnt", &["-no", "SOURCE", &text(images.clone())]);
    let options = Options {
        config: Some(format!(
            "classes:\n- {{name: default, directory: {{path: {}, allocation: thick}}}}\n",
            images.display()
        )),
        ..Options::default()
    };
    let mut host = Host::over(scratch, options).await;
    let plain = host.agent.options().clone();
    host.write("v.yaml", &[volume("v", "64Mi", "volumeMode: Block")]);
    host.until("v", &["Created"]).await;
    let handle = host.object("Volume", "v")["status"]["volumeHandle"].clone();
    let key = handle
        .as_str()
        .unwrap()
        .rsplit('/')
        .next()
        .unwrap()
        .to_owned();
    let image = images.join("volumes").join(key);
    fs::write(image.join("image"), vec![7; 64 << 20]).unwrap();
    run("sync", &["-f", &text(image.join("image"))]);
    let file = format!("if={}", image.join("image").display());
    // What is in memory needs no read.
    run("dd", &[&file, "iflag=nocache", "count=0", "status=none"]);
    let reads = SlowReads::of(
        &PathBuf::from(device.trim()),
        &format!("drumlin-test-{}", host.agent.pid()),
    );
    reads.add(host.agent.pid());
    let clone = "volumeMode: Block\nsource: {volumeName: v}";
    host.write("copy.yaml", &[volume("copy", "64Mi", clone)]);
    let status = || {
        host.find("Volume", "copy").unwrap_or_default()["status"]["lastOperation"]["progress"]
            .clone()
    };
    let told = eventually(status, |progress| progress["percent"].as_u64() > Some(0)).await;
    assert_eq!(told["operation"], "copying", "{told}");
    assert!(told["percent"].as_u64() < Some(100), "{told}");
    for field in ["bytesPerSecond", "secondsLeft"] {
        assert!(told[field].as_u64() > Some(0), "{field}: {told}");
    }
    host.until("copy", &["OperationPending", "copying,", "s left"])
        .await;
    let log = eventually(
        || host.agent.log(),
        |log| log.contains("operation in progress"),
    )
    .await;
    assert!(log.contains("copying,"), "{log}");
    let state = text(host.agent.path("state"));
    let program = text(drumlin_tests::programs::drumlin());
    let command = format!("{program} wait dv/copy --timeout 2s --state-dir {state}");
    // On a terminal; the program ends with 3, for the copy is not ready.
    let seen = output("script", &["-qec", &command, "/dev/null"]);
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen.contains("Volume/default/copy ["), "{seen:?}");
    assert!(seen.contains("% copying, "), "{seen:?}");
    host.agent.kill();
    drop(reads);
    host.agent.restart_with(plain).await;
    host.until("copy", &["Created"]).await;
    let last = host.object("Volume", "copy")["status"]["lastOperation"].clone();
    assert_eq!(last["progress"], serde_json::Value::Null, "{last}");
}
