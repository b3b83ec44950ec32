//! Tags of logical volumes and of the group.

use drumlin_tests::{
    requests::raw,
    storage::{Scratch, lvm},
};

use super::look;
use crate::{
    groups::{group, name_of, over, thin},
    helpers::volume,
};

/// A logical volume that has the tags of an image.
fn image(group: &str, name: &str, node: &str, more: &str) {
    let tags = [
        "drumlin.schema=1",
        "drumlin.id=volume:0b0c8a50-6e0c-5b52-9f3e-0a7a7f3ab001",
        "drumlin.class=default",
        &format!("drumlin.node={node}"),
        more,
    ];
    let tags = tags.into_iter().filter(|tag| !tag.is_empty());
    let tags: Vec<&str> = tags.flat_map(|tag| ["--addtag", tag]).collect();
    let words = [
        &[
            "-y",
            "-V",
            "16M",
            "-T",
            &format!("{group}/pool"),
            "-n",
            name,
        ],
        &tags[..],
    ];
    lvm("lvcreate", &words.concat());
}

#[tokio::test]
async fn the_tag_of_a_pool_that_the_agent_made_is_known() {
    let scratch = Scratch::new();
    let group = scratch.volume_group(200);
    let class = format!("thin: {{volumeGroup: {group}, pool: pool, create: {{size: 80%VG}}}}");
    let agent = over(scratch, &class).await;
    volume(&agent, "v", 16, &raw()).await;
    let tags = lvm(
        "lvs",
        &["--noheadings", "-o", "lv_tags", &format!("{group}/pool")],
    );
    assert_eq!(tags.trim(), "drumlin.pool=made");
    let found = look(&agent);
    found.lacks("unparsable-tag");
    let path = format!("{group}/pool");
    lvm("lvchange", &["--addtag", "drumlin.pool=other", &path]);
    look(&agent).mend("unparsable-tag", &path);
    look(&agent).lacks("unparsable-tag");
}

#[tokio::test]
async fn tags_that_say_something_wrong_are_told() {
    let mut agent = thin(200, &["-L", "300M"], "overcommit: 10").await;
    let group = group(&agent);
    let id = volume(&agent, "v", 16, &raw()).await;
    let path = format!("{group}/{}", name_of(&id));
    let checks = [
        "unparsable-tag",
        "half-made-volume",
        "other-node",
        "orphan-thin-device",
        "clock-jump",
        "lost-volume",
    ];
    let found = look(&agent);
    for check in checks {
        found.lacks(check);
    }
    lvm("lvchange", &["--addtag", "drumlin.size=big", &path]);
    lvm("vgchange", &["--addtag", "drumlin:nonsense", &group]);
    let found = look(&agent);
    found.mend("unparsable-tag", &path);
    let of_group = found
        .all("unparsable-tag")
        .into_iter()
        .find(|one| one["object"] == group.as_str());
    assert_eq!(
        of_group.unwrap()["command"],
        format!("vgchange --deltag drumlin:nonsense {group}")
    );
    lvm("vgchange", &["--deltag", "drumlin:nonsense", &group]);
    look(&agent).lacks("unparsable-tag");

    image(&group, "theirs", "node-z", "");
    image(
        &group,
        "ahead",
        "node-a",
        "drumlin.l.created=4102444800000000000",
    );
    lvm(
        "lvcreate",
        &[
            "-V",
            "16M",
            "-T",
            &format!("{group}/pool"),
            "-n",
            "dl-orphan-pool-9",
            "--addtag",
            "drumlin-orphan",
        ],
    );
    let found = look(&agent);
    let advice = found.text("other-node", &group, "advice");
    assert!(advice.contains("adoptNode: node-z"), "{advice}");
    found.finds("clock-jump", &format!("{group}/ahead"));
    found.finds("orphan-thin-device", "dl-orphan-pool-9");
    for name in ["theirs", "ahead", "dl-orphan-pool-9"] {
        lvm("lvremove", &["-y", &format!("{group}/{name}")]);
    }
    // A change of a running agent is not half made.
    lvm("lvchange", &["--addtag", "drumlin.incomplete=yes", &path]);
    look(&agent).lacks("half-made-volume");
    agent.kill();
    look(&agent).finds("half-made-volume", &path);
    lvm("lvchange", &["--deltag", "drumlin.incomplete=yes", &path]);
    let found = look(&agent);
    for check in checks {
        found.lacks(check);
    }
}
