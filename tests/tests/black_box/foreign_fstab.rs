//! Volumes of others that the host mounts at its start, as their line in `/etc/fstab` says.

use std::{fs, path::PathBuf};

use drumlin_tests::{
    agent::{Options, eventually},
    doctor::Diagnosis,
    programs::run,
    storage::Scratch,
};

use crate::{
    foreign_files::{image, start},
    foreign_helpers::done,
    helpers::text,
    host::{Host, small},
};

/// An agent whose host has this table of mounts.
async fn with_fstab() -> (Host, PathBuf, String) {
    let scratch = Scratch::new();
    let fstab = text(scratch.path().join("fstab"));
    fs::write(&fstab, "").unwrap();
    let options = Options {
        environment: vec![("LIBMOUNT_FSTAB".to_owned(), fstab.clone())],
        ..Options::default()
    };
    let (host, others) = start(scratch, options).await;
    (host, others, fstab)
}

#[tokio::test]
async fn a_line_of_fstab_is_named_before_and_after_the_adoption() {
    let (host, others, fstab) = with_fstab().await;
    let agent = &host.agent;
    let source = image(&others, "db.img");
    let target = text(agent.scratch.directory("srv"));
    let notes = |words: &[&str]| done(agent, "adopt", words);
    assert!(!notes(&[&source, "db"]).contains("fstab"));
    for (line, wanted) in [
        (
            format!("{source} {target} ext4 loop 0 2"),
            "the host does not start",
        ),
        (
            format!("{source} {target} ext4 loop,nofail 0 2"),
            "there is no such file; remove that line",
        ),
    ] {
        fs::write(&fstab, format!("# by hand\n{line}\n")).unwrap();
        let shown = notes(&[&source, "db"]);
        let named = format!("line 2 of {fstab} mounts it at {target}");
        assert!(shown.contains(&named) && shown.contains(wanted), "{shown}");
    }
    // Of what is mounted, the device and the path are known, too.
    run("mount", &["-o", "loop", &source, &target]);
    let device = run("findmnt", &["-no", "SOURCE", &target]);
    for line in [
        format!("{} /elsewhere ext4 defaults", device.trim()),
        format!("LABEL=db {target} ext4 defaults"),
    ] {
        fs::write(&fstab, line).unwrap();
        let shown = notes(&[&source, "db"]);
        assert!(shown.contains(&format!("line 1 of {fstab}")), "{shown}");
    }
    fs::write(&fstab, format!("{source} {target} ext4 loop 0 2\n")).unwrap();
    let manifest = notes(&[&source, "db", "--yes"]);
    host.write("db.yaml", &[manifest]);
    host.until("db", &["True"]).await;
    let told = Diagnosis::where_mounts_are(agent, &format!("export LIBMOUNT_FSTAB={fstab}"));
    let object = format!("{fstab}:1");
    let message = told.text("mounted-by-host", &object, "message");
    assert!(message.contains("does not start with it"), "{message}");
    assert_eq!(
        told.text("mounted-by-host", &object, "advice"),
        "remove that line"
    );
    // Also where it would mount it elsewhere.
    fs::write(&fstab, format!("{source} /elsewhere ext4 loop 0 2\n")).unwrap();
    let told = Diagnosis::where_mounts_are(agent, &format!("export LIBMOUNT_FSTAB={fstab}"));
    told.finds("mounted-by-host", &object);
    fs::write(&fstab, format!("{source} {target} ext4 loop,noauto\n")).unwrap();
    let told = Diagnosis::where_mounts_are(agent, &format!("export LIBMOUNT_FSTAB={fstab}"));
    told.lacks("mounted-by-host");
}

#[tokio::test]
async fn a_table_that_cannot_be_read_is_said() {
    let (host, others, fstab) = with_fstab().await;
    let source = image(&others, "db.img");
    fs::remove_file(&fstab).unwrap();
    fs::create_dir(&fstab).unwrap();
    let shown = done(&host.agent, "adopt", &[&source, "db", "--yes"]);
    assert!(
        shown.contains("it is not known what mounts it") && shown.contains(&fstab),
        "{shown}"
    );
    fs::remove_dir(&fstab).unwrap();
}

#[tokio::test]
async fn a_loop_device_ends_with_its_last_user_after_a_handover() {
    let (host, others, _) = with_fstab().await;
    let agent = &host.agent;
    let source = image(&others, "db.img");
    let target = text(agent.scratch.directory("srv"));
    run("mount", &["-o", "loop", &source, &target]);
    let manifest = done(agent, "adopt", &[&source, "db", "--yes"]);
    host.write("db.yaml", &[manifest]);
    host.until("db", &["True"]).await;
    host.write("db.yaml", &[]);
    host.write("other.yaml", &[small("other")]);
    host.until("db", &["Orphan"]).await;
    done(agent, "handover", &["dv", "db", "--to-host", "--yes"]);
    let devices = || run("losetup", &["--associated", &source]);
    assert_ne!(devices(), "", "it is mounted");
    run("umount", &[&target]);
    eventually(devices, String::is_empty).await;
}
