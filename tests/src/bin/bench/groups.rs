//! Group snapshots: how long writers wait, beside one bare suspend and resume, and beside the naive way.

use std::{path::PathBuf, time::Duration};

use drumlin_proto::csi::v1::{CreateVolumeGroupSnapshotRequest, VolumeCapability};
use drumlin_tests::{
    agent::{Agent, Options},
    programs::run,
    requests::{
        create, create_group, delete_group_snapshot, mounted, publish, raw, set_members, stage,
    },
    sequence::{Place, RING, Writer},
    storage::Kind,
};

use crate::{
    lvm::{bare, pool},
    measure::{Table, median, timed},
    process,
};

/// How often each figure is measured.
const TIMES: usize = 10;

/// A suspend and a resume of one device by one process that does nothing else: what it took, in microseconds.
///
/// `struct dm_ioctl`: version, sizes, flags, the name at 48; `DM_DEV_SUSPEND` is 0xc138fd06, the flag 2.
const SUSPEND: &str = r#"
use Time::HiRes qw(time);
open(my $control, "+<", "/dev/mapper/control") or die $!;
my $head = sub { pack("LLLLLLlLLLQa128a129x7", 4, 0, 0, 312, 312, 0, 0, $_[0], 0, 0, 0, $ARGV[0], "") };
my $begun = time;
for my $flags (2, 0) {
    my $call = $head->($flags);
    ioctl($control, 0xc138fd06, $call) or die $!;
}
printf("%d\n", (time - $begun) * 1e6);
"#;

/// A volume that is used, and its place for a writer.
async fn used(
    agent: &Agent,
    name: &str,
    mebibytes: i64,
    capability: &VolumeCapability,
) -> (String, Place) {
    let request = create(name, mebibytes, capability);
    let made = agent.controller().create_volume(request).await.unwrap();
    let id = made.into_inner().volume.unwrap().volume_id;
    let staging = agent.scratch.directory(&format!("staging/{name}"));
    let staging = staging.to_string_lossy().into_owned();
    let target = agent.scratch.directory("targets").join(name);
    let target = target.to_string_lossy().into_owned();
    let mut node = agent.node();
    node.node_stage_volume(stage(&id, &staging, capability))
        .await
        .unwrap();
    node.node_publish_volume(publish(&id, (&staging, &target), capability))
        .await
        .unwrap();
    let path = if *capability == raw() {
        PathBuf::from(target)
    } else {
        let path = PathBuf::from(target).join("ring");
        std::fs::write(&path, vec![0; RING]).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        path
    };
    (id, Place { path, offset: 0 })
}

/// Takes a group snapshot and deletes it; how long the call took.
async fn take(agent: &Agent, ids: &[String], number: usize) -> Duration {
    let mut groups = agent.group_controller();
    let request = CreateVolumeGroupSnapshotRequest {
        name: format!("g{number}"),
        source_volume_ids: ids.to_vec(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let (made, time) = timed(groups.create_volume_group_snapshot(request)).await;
    let made = made.unwrap().into_inner().group_snapshot.unwrap();
    assert_eq!(made.snapshots.len(), ids.len());
    let request = delete_group_snapshot(&made);
    groups.delete_volume_group_snapshot(request).await.unwrap();
    time
}

/// The longest write while group snapshots are taken: the median of several.
async fn stall(agent: &Agent, ids: &[String], writer: &Writer) -> Duration {
    let mut stalls = Vec::new();
    for number in 0..TIMES {
        writer.goes_on(5);
        writer.longest();
        take(agent, ids, number).await;
        stalls.push(writer.longest());
    }
    median(stalls)
}

/// Volumes in use, and the places of writers in them.
struct Used {
    how: &'static str,
    ids: Vec<String>,
    places: Vec<Place>,
}

impl Used {
    fn of(how: &'static str, volumes: Vec<(String, Place)>) -> Self {
        let (ids, places) = volumes.into_iter().unzip();
        Self { how, ids, places }
    }
}

/// The logical volume of a volume.
fn lv(id: &str) -> String {
    format!("dl-v-{}", id.rsplit('/').next().unwrap())
}

/// `lvcreate -s` of each volume, one by one; how long all of them take.
fn bare_copies(group: &str, ids: &[String], prefix: &str) -> Duration {
    let copy = |id: &String| {
        bare(&[
            "lvcreate",
            "-q",
            "-s",
            "-n",
            &format!("{prefix}-{}", lv(id)),
            &format!("{group}/{}", lv(id)),
        ])
    };
    ids.iter().map(copy).sum()
}

fn remove_copies(group: &str, ids: &[String], prefix: &str) {
    for id in ids {
        run(
            "lvremove",
            &["-q", "-f", &format!("{group}/{prefix}-{}", lv(id))],
        );
    }
}

pub(crate) async fn thin(table: &mut Table) {
    let (agent, group) = pool(Options {
        arguments: vec!["--log-level=debug".to_owned()],
        ..Options::default()
    })
    .await;
    let [mut all, mut raws] = [Vec::new(), Vec::new()];
    for number in 0..64 {
        all.push(used(&agent, &format!("v{number}"), 16, &mounted("ext4")).await);
        raws.push(used(&agent, &format!("r{number}"), 4, &raw()).await);
    }
    let used = [Used::of("mounted", all), Used::of("raw", raws)];
    let [mounted, _] = &used;
    let bare_suspend = suspended(&group, mounted);
    let at_16 = stalls(table, &agent, &used, bare_suspend).await;
    naive(table, &group, mounted, at_16);
    copies(table, &agent, &group, &mounted.ids[..16]).await;
    members(table, &agent).await;
}

/// A bare suspend and resume of the first volume under a writer.
fn suspended(group: &str, used: &Used) -> Duration {
    let device = format!("{group}-{}", lv(&used.ids[0])).replace('-', "--");
    let device = device.replacen("--dl", "-dl", 1);
    let writer = Writer::start(1, &used.places[..1]).unwrap();
    let suspend = || {
        let took = run("perl", &["-e", SUSPEND, &device]);
        Duration::from_micros(took.trim().parse().unwrap())
    };
    let suspended = median((0..TIMES).map(|_| suspend()).collect());
    writer.stop().unwrap();
    suspended
}

/// The longest writes beside a bare suspend; says that of 16 mounted volumes.
async fn stalls(
    table: &mut Table,
    agent: &Agent,
    used: &[Used],
    bare_suspend: Duration,
) -> Duration {
    let mut at_16 = Duration::ZERO;
    for (many, wanted) in [(1, 1.5), (16, 3.0), (64, 6.0)] {
        for Used { how, ids, places } in used {
            let writer = Writer::start(2, &places[..many]).unwrap();
            let stall = stall(agent, &ids[..many], &writer).await;
            writer.stop().unwrap();
            let figure = format!(
                "longest write during a group snapshot of {many} {how} beside one bare suspend and resume"
            );
            table.ratio(&figure, (stall, bare_suspend), wanted);
            if many == 16 && *how == "mounted" {
                at_16 = stall;
            }
        }
    }
    at_16
}

/// The longest write while all are frozen and copied one by one.
fn naive(table: &mut Table, group: &str, used: &Used, at_16: Duration) {
    let (ids, places) = (&used.ids[..16], &used.places[..16]);
    let writer = Writer::start(3, places).unwrap();
    let mut naive = Vec::new();
    for _ in 0..3 {
        writer.goes_on(5);
        writer.longest();
        let targets = places
            .iter()
            .map(|place| place.path.parent().unwrap().to_string_lossy().into_owned());
        let targets: Vec<String> = targets.collect();
        for target in &targets {
            run("fsfreeze", &["--freeze", target]);
        }
        bare_copies(group, ids, "naive");
        for target in &targets {
            run("fsfreeze", &["--unfreeze", target]);
        }
        naive.push(writer.longest());
        remove_copies(group, ids, "naive");
    }
    writer.stop().unwrap();
    table.ratio(
        "the same for 16 mounted beside freezing all and lvcreate -s one by one",
        (at_16, median(naive)),
        1.0 / 50.0,
    );
}

async fn copies(table: &mut Table, agent: &Agent, group: &str, ids: &[String]) {
    let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
    for number in 0..TIMES {
        ours.push(take(agent, ids, number).await);
        theirs.push(bare_copies(group, ids, "bare"));
        remove_copies(group, ids, "bare");
    }
    table.ratio(
        "CreateVolumeGroupSnapshot of 16 beside 16 lvcreate -s",
        (median(ours), median(theirs)),
        1.0,
    );
}

/// Changes of LVM's that the agent had made so far.
fn changes(agent: &Agent) -> f64 {
    let log = agent.log();
    let count = log.lines().filter(|line| {
        let is_lvms = line.contains("command=\"lvm");
        line.contains("program ended") && is_lvms || line.contains("commands carried out")
    });
    count.count() as f64
}

async fn members(table: &mut Table, agent: &Agent) {
    let mut ids = Vec::new();
    for number in 0..100 {
        let request = create(&format!("m{number}"), 4, &raw());
        let made = agent.controller().create_volume(request).await.unwrap();
        ids.push(made.into_inner().volume.unwrap().volume_id);
    }
    let mut groups = agent.groups();
    let request = create_group("members", ids.clone());
    let made = groups.create_volume_group(request).await.unwrap();
    let id = made.into_inner().volume_group.unwrap().volume_group_id;
    for (what, wanted, list) in [("no change", 0.0, &ids[..]), ("one change", 2.0, &ids[1..])] {
        let before = changes(agent);
        let request = set_members(&id, list.to_vec());
        groups
            .modify_volume_group_membership(request)
            .await
            .unwrap();
        let figure = format!("ModifyVolumeGroupMembership of 100, {what}: changing programs");
        table.most(&figure, changes(agent) - before, wanted, "");
    }
}

/// Over image files that share blocks.
pub(crate) async fn directory(table: &mut Table) {
    let agent = process::agent(Kind::Xfs, 24 << 10).await;
    let mut all = Vec::new();
    for number in 0..16 {
        let (id, place) = used(&agent, &format!("v{number}"), 1024, &mounted("ext4")).await;
        // Something to share.
        let filler = place.path.with_file_name("filler");
        run(
            "dd",
            &[
                "if=/dev/urandom",
                &format!("of={}", filler.display()),
                "bs=1M",
                "count=64",
                "status=none",
            ],
        );
        all.push((id, place));
    }
    run("sync", &[]);
    let ids: Vec<String> = all.iter().map(|(id, _)| id.clone()).collect();
    let places: Vec<Place> = all.iter().map(|(_, place)| place.clone()).collect();
    let writer = Writer::start(1, &places).unwrap();
    let stall = stall(&agent, &ids, &writer).await;
    writer.stop().unwrap();
    table.most(
        "longest write during a group snapshot of 16 mounted volumes in a directory with reflinks",
        stall.as_secs_f64() * 1000.0,
        50.0,
        "ms",
    );
}
