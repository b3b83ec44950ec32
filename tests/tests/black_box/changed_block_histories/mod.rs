//! Changed blocks after random histories of a volume that is written to, discarded and grown between its snapshots: what
//! is told of a snapshot is applied to a copy of an older or a later one, and makes it bit by bit.
//!
//! One seed gives one history: a failure names it, and `DRUMLIN_HISTORY=<seed>` tells it alone.

mod check;
mod history;

use std::ops::Range;

use drumlin_proto::csi::v1::{GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use drumlin_tests::{
    agent::{Agent, Options, Volumes, is_over_lvm},
    random::number,
    storage::{Kind, Scratch},
};

use crate::{
    group_snapshots::on,
    snapshot_metadata::{all, allocated, changes, delta},
};
use check::{Pair, ranges};
use history::History;

/// The seed of the first history in CI.
const SEED: u64 = 0x0d12_0a13;
/// So many there are over each file system, two in a second.
const MANY: u64 = 25;
/// And in the lab, where thin volumes take three seconds for one, and thick ones five; the soak tells 100 there, too.
const MANY_OVER_LVM: u64 = 4;

/// Names the history that fails.
struct Seed(u64);

impl Drop for Seed {
    #[expect(
        clippy::print_stderr,
        reason = "who runs the tests runs this one again"
    )]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it fails with DRUMLIN_HISTORY={}", self.0);
        }
    }
}

/// An agent over each kind of storage.
async fn agents() -> Vec<Agent> {
    if is_over_lvm() {
        return vec![over_lvm().await];
    }
    let mut agents = Vec::new();
    for kind in [Kind::Xfs, Kind::Btrfs, Kind::Ext4] {
        agents.push(on(kind, 1 << 10, "").await);
    }
    agents
}

/// The stores of thick snapshots are as large as their volumes: more is written than the usual fifth.
async fn over_lvm() -> Agent {
    let scratch = Scratch::new();
    let classes = Volumes::asked().classes(&scratch);
    let config = classes.replace("thick: {", "thick: {snapshotSize: 100%, ");
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    Agent::with(scratch, options).await
}

async fn told_delta(agent: &Agent, request: GetMetadataDeltaRequest) -> (usize, Vec<Range<usize>>) {
    let most = usize::try_from(request.max_results).unwrap();
    let told = changes(agent, request).await.unwrap();
    let is_small = |count: &usize| most == 0 || *count <= most;
    assert!(told.messages.iter().all(is_small), "{:?}", told.messages);
    let capacity = usize::try_from(told.capacity).unwrap();
    (capacity, ranges(&told.ranges))
}

/// Checks what is told of a pair of snapshots.
async fn compare(agent: &Agent, history: &mut History<'_>, base: usize, target: usize) {
    let max_results = history.random.one(&[0, 0, 1, 3]);
    let ids = [base, target].map(|number| history.points[number].id.clone());
    let request = GetMetadataDeltaRequest {
        max_results,
        ..delta(&ids[0], &ids[1])
    };
    let (capacity, told) = told_delta(agent, request.clone()).await;
    let pair = history.pair(base, target);
    assert_eq!(capacity, pair.target.len());
    if let Err(wrong) = pair.check(&told) {
        panic!("of {base} and {target}: {wrong}: {told:?}");
    }
    // A stream that broke goes on behind any range.
    if !told.is_empty() && history.random.chance(30) {
        let last = history.random.below(u64::try_from(told.len()).unwrap());
        let last = usize::try_from(last).unwrap();
        let starting_offset = i64::try_from(told[last].end).unwrap();
        let request = GetMetadataDeltaRequest {
            starting_offset,
            ..request
        };
        let (_, rest) = told_delta(agent, request).await;
        assert_eq!(rest, told[last + 1..], "behind {starting_offset}");
    }
}

/// Checks what is told of a snapshot alone.
async fn look_at(agent: &Agent, history: &mut History<'_>, target: usize) {
    let request = GetMetadataAllocatedRequest {
        max_results: history.random.one(&[0, 2]),
        ..allocated(&history.points[target].id)
    };
    let told = all(agent, request).await.unwrap();
    let zeros = vec![0; history.points[target].bytes.len()];
    let pair = history.alone(target, &zeros);
    assert_eq!(usize::try_from(told.capacity).unwrap(), zeros.len());
    let told = ranges(&told.ranges);
    if let Err(wrong) = pair.check(&told) {
        panic!("of {target} alone: {wrong}: {told:?}");
    }
}

/// Tells the history that a seed gives.
async fn tell(agent: &Agent, seed: u64) {
    let _seed = Seed(seed);
    let mut history = History::begin(agent, seed).await;
    let snapshots = 2 + usize::try_from(history.random.below(3)).unwrap();
    for _ in 0..snapshots {
        let writes = history.random.below(8);
        history.go_on(writes).await;
    }
    let last = snapshots - 1;
    let mut pairs: Vec<_> = (0..last).map(|number| (number, number + 1)).collect();
    if last > 1 {
        pairs.push((0, last));
    }
    for (first, second) in pairs {
        compare(agent, &mut history, first, second).await;
        compare(agent, &mut history, second, first).await;
    }
    for target in 0..=last {
        look_at(agent, &mut history, target).await;
    }
    history.check_snapshots();
    history.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_any_history_what_is_told_makes_one_snapshot_of_another() {
    let seeds = if let Some(seed) = number("DRUMLIN_HISTORY") {
        seed..seed + 1
    } else {
        let first = number("DRUMLIN_HISTORIES_FROM").unwrap_or(SEED);
        let usual = if is_over_lvm() { MANY_OVER_LVM } else { MANY };
        let many = number("DRUMLIN_CHANGED_BLOCK_HISTORIES").unwrap_or(usual);
        first..first + many
    };
    let mut tellers = Vec::new();
    for agent in agents().await {
        let seeds = seeds.clone();
        tellers.push(tokio::spawn(async move {
            for seed in seeds {
                tell(&agent, seed).await;
            }
        }));
    }
    for teller in tellers {
        assert!(teller.await.is_ok(), "the seed is above");
    }
}

/// An answer that was tampered with, and what the check must say of it.
type Tampered = (Vec<Range<usize>>, &'static str);

const MISSING: &str = "is not told";

/// Makes wrong answers of one that is right, all of which the check must refuse.
async fn is_found_out(tamper: impl Fn(&Pair<'_>, &[Range<usize>]) -> Vec<Tampered>) {
    for agent in agents().await {
        let mut history = History::begin(&agent, SEED).await;
        for writes in [8, 24] {
            history.go_on(writes).await;
        }
        let [base, target] = [0, 1].map(|number| history.points[number].id.clone());
        let (_, told) = told_delta(&agent, delta(&base, &target)).await;
        assert!(told.len() > 3, "{told:?}");
        let pair = history.pair(0, 1);
        assert_eq!(pair.check(&told), Ok(()));
        let tampered = tamper(&pair, &told);
        assert!(!tampered.is_empty());
        for (answer, why) in tampered {
            let refused = pair.check(&answer);
            let is_right = |complaint: &String| complaint.contains(why);
            assert!(
                refused.as_ref().is_err_and(is_right),
                "{answer:?} of {told:?}: {refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_answer_without_one_of_its_ranges_is_found_out() {
    is_found_out(|pair, told| {
        // One where the same bytes were written again may be left out.
        let differs = |at: &usize| {
            let range = told[*at].clone();
            pair.base.get(range.clone()) != pair.target.get(range)
        };
        let without = |at| ([&told[..at], &told[at + 1..]].concat(), MISSING);
        let tampered: Vec<_> = (0..told.len()).filter(differs).map(without).collect();
        assert!(tampered.len() > 2, "{told:?}");
        tampered
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_ends_at_its_half_is_found_out() {
    is_found_out(|_, told| {
        let (one, other) = told.split_at(told.len() / 2);
        vec![(one.to_vec(), MISSING), (other.to_vec(), MISSING)]
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_off_by_a_block_is_found_out() {
    is_found_out(|pair, told| {
        let block = pair.block;
        let each = |moved: &dyn Fn(&Range<usize>) -> Range<usize>| {
            let mut all: Vec<_> = told.iter().map(moved).collect();
            all.retain(|range| !range.is_empty());
            (all, MISSING)
        };
        vec![
            each(&|range| range.start + block..range.end),
            each(&|range| range.start..range.end - block),
            each(&|range| range.start + block..(range.end + block).min(pair.target.len())),
        ]
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_tells_too_much_or_in_another_form_is_found_out() {
    is_found_out(|pair, told| {
        let size = pair.target.len();
        let whole = 0..size;
        let mut larger = told.to_vec();
        larger.push(size..size + pair.block);
        let mut reversed = told.to_vec();
        reversed.reverse();
        let mut twice = told.to_vec();
        twice.insert(0, told[0].clone());
        let mut parted = told.to_vec();
        let last = parted.pop().unwrap();
        let middle = last.start + 1;
        parted.extend([last.start..middle, middle + 1..last.end]);
        let order = "is not in order";
        vec![
            (vec![whole], "is told without a reason"),
            (larger, order),
            (reversed, order),
            (twice, order),
            (parted, "is not of whole blocks"),
        ]
    })
    .await;
}
