//! Every way in which people and programs change a directory wakes the reconciler.

use std::os::unix::fs::symlink;

use super::*;

/// Waits for a reason to look that is not the poll.
async fn woken(watch: &mut Watch) -> bool {
    let woken = tokio::time::timeout(Duration::from_secs(10), watch.wait(POLL))
        .await
        .is_ok();
    watch.follow();
    woken
}

/// A watch that has nothing left to report.
async fn quiet(path: &Path) -> Watch {
    let mut watch = following(path);
    while tokio::time::timeout(Duration::from_millis(800), watch.wait(POLL))
        .await
        .is_ok()
    {
        watch.follow();
    }
    watch
}

/// One that follows a path already, as after the first look.
fn following(path: &Path) -> Watch {
    let mut watch = Watch::new(path);
    watch.follow();
    watch
}

#[tokio::test]
async fn writes_renames_and_removals_wake() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let mut watch = quiet(&path).await;
    fs::write(path.join("a.yaml"), "x").unwrap();
    assert!(woken(&mut watch).await);
    fs::rename(path.join("a.yaml"), path.join("b.yaml")).unwrap();
    assert!(woken(&mut watch).await);
    fs::remove_file(path.join("b.yaml")).unwrap();
    assert!(woken(&mut watch).await);
}

#[tokio::test]
async fn reading_the_directory_does_not_wake() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.yaml"), "x").unwrap();
    let watch = quiet(directory.path()).await;
    for _ in 0..3 {
        for entry in fs::read_dir(directory.path()).unwrap() {
            fs::read(entry.unwrap().path()).unwrap();
        }
    }
    let woken = tokio::time::timeout(Duration::from_secs(1), watch.wait(POLL)).await;
    assert!(woken.is_err(), "reading is no change");
}

#[tokio::test]
async fn a_swapped_link_within_wakes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    fs::create_dir(path.join("..v1")).unwrap();
    fs::create_dir(path.join("..v2")).unwrap();
    symlink("..v1", path.join("..data")).unwrap();
    let mut watch = quiet(&path).await;
    symlink("..v2", path.join("..tmp")).unwrap();
    fs::rename(path.join("..tmp"), path.join("..data")).unwrap();
    assert!(woken(&mut watch).await);
}

#[tokio::test]
async fn a_root_that_is_a_swapped_link_is_followed_to_its_new_target() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two, current) = ("one", "two", directory.path().join("current"));
    for version in [one, two] {
        fs::create_dir(directory.path().join(version)).unwrap();
    }
    symlink(one, &current).unwrap();
    let mut watch = quiet(&current).await;
    symlink(two, directory.path().join("tmp")).unwrap();
    fs::rename(directory.path().join("tmp"), &current).unwrap();
    assert!(woken(&mut watch).await, "the swap");
    fs::remove_dir_all(directory.path().join(one)).unwrap();
    while tokio::time::timeout(Duration::from_millis(800), watch.wait(POLL))
        .await
        .is_ok()
    {
        watch.follow();
    }
    fs::write(directory.path().join(two).join("a.yaml"), "x").unwrap();
    assert!(woken(&mut watch).await, "a file behind the new target");
}

#[tokio::test]
async fn a_link_on_the_way_that_is_swapped_is_followed_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for version in ["git/7/manifests", "git/8/manifests"] {
        fs::create_dir_all(at(version)).unwrap();
    }
    // Two links, the second one at the end of the first one's way.
    symlink("7", at("git/current")).unwrap();
    symlink("git/current", at("here")).unwrap();
    let mut watch = quiet(&at("here/manifests")).await;
    symlink("8", at("git/tmp")).unwrap();
    fs::rename(at("git/tmp"), at("git/current")).unwrap();
    assert!(woken(&mut watch).await, "the swap");
    fs::write(at("git/8/manifests/a.yaml"), "x").unwrap();
    assert!(woken(&mut watch).await, "a file behind the new target");
    while tokio::time::timeout(Duration::from_millis(800), watch.wait(POLL))
        .await
        .is_ok()
    {
        watch.follow();
    }
    // Other changes near the path wake nothing.
    for name in ["other", "git/other", "git/7/other"] {
        fs::write(at(name), "x").unwrap();
    }
    let woken = tokio::time::timeout(Duration::from_secs(1), watch.wait(POLL)).await;
    assert!(woken.is_err(), "nothing on the way was changed");
}

#[tokio::test]
async fn a_directory_on_the_way_that_comes_later_or_is_replaced_wakes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut watch = quiet(&at("one/two/three")).await;
    fs::create_dir(at("one")).unwrap();
    assert!(woken(&mut watch).await, "the first part");
    fs::create_dir_all(at("one/two/three")).unwrap();
    assert!(woken(&mut watch).await, "the rest");
    fs::create_dir_all(at("new/two/three")).unwrap();
    while tokio::time::timeout(Duration::from_millis(800), watch.wait(POLL))
        .await
        .is_ok()
    {
        watch.follow();
    }
    fs::rename(at("one"), at("old")).unwrap();
    fs::rename(at("new"), at("one")).unwrap();
    assert!(woken(&mut watch).await, "another one in its place");
    assert!(steps(&at("one/two/three")).ends_with(&[
        at("one"),
        at("one/two"),
        at("one/two/three")
    ]));
}

#[tokio::test]
async fn a_root_that_is_removed_and_made_again_is_watched_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifests.d");
    fs::create_dir(&path).unwrap();
    let mut watch = quiet(&path).await;
    fs::remove_dir(&path).unwrap();
    assert!(woken(&mut watch).await, "the removal");
    fs::create_dir(&path).unwrap();
    assert!(woken(&mut watch).await, "the new one");
    while tokio::time::timeout(Duration::from_millis(800), watch.wait(POLL))
        .await
        .is_ok()
    {
        watch.follow();
    }
    fs::write(path.join("a.yaml"), "x").unwrap();
    assert!(woken(&mut watch).await, "a file in the new one");
}

#[tokio::test]
async fn a_root_that_is_renamed_away_and_back_is_seen_both_times() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("manifests.d");
    fs::create_dir(&path).unwrap();
    let mut watch = quiet(&path).await;
    fs::rename(&path, directory.path().join("away")).unwrap();
    assert!(woken(&mut watch).await);
    fs::rename(directory.path().join("away"), &path).unwrap();
    assert!(woken(&mut watch).await);
}

#[tokio::test]
async fn a_thousand_files_at_once_wake_once_or_twice() {
    let directory = tempfile::tempdir().unwrap();
    let mut watch = quiet(directory.path()).await;
    for index in 0..1000 {
        fs::write(directory.path().join(format!("{index}.yaml")), "x").unwrap();
    }
    let mut times = 0;
    while tokio::time::timeout(Duration::from_secs(1), watch.wait(POLL))
        .await
        .is_ok()
    {
        watch.follow();
        times += 1;
    }
    assert!((1..=3).contains(&times), "{times}");
}

#[tokio::test]
async fn whoever_has_the_waker_has_it_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let mut watch = quiet(directory.path()).await;
    watch.waker().notify_one();
    assert!(woken(&mut watch).await);
}
