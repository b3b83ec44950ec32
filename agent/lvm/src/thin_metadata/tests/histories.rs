//! Random histories of writes, discards and snapshots, written with trees that share what they have in common.

use super::{
    image::Split,
    model::{Map, Pool, Random, compare, differing, number, write},
    tools::{check_snapshot, delta, dump},
};
use crate::{ThinView, host::testing::Scratch};

/// The number of histories, each of its own seed.
const HISTORIES: u64 = 40;

/// A pool to which a history has happened.
fn history(random: &mut Random) -> Pool {
    let blocks = 1 + random.below(4000);
    let mut data = 0;
    let mut pool = vec![Map::new()];
    for time in 0..u32::try_from(4 + random.below(20)).unwrap() {
        let device = random.index(number(pool.len()) - 1);
        let start = random.below(blocks);
        let end = (start + 1 + random.below(blocks / 4)).min(blocks);
        let step = 1 + random.below(3);
        if random.below(5) == 0 {
            if pool.len() < 4 {
                pool.push(pool[device].clone());
            }
            continue;
        }
        let map = &mut pool[device];
        match random.below(4) {
            0 => map.retain(|block, _| !(start..end).contains(block)),
            // The same data, with another time: no difference.
            1 => map
                .range_mut(start..end)
                .for_each(|(_, value)| value.1 = time),
            _ => {
                for block in (start..end).filter(|block| block.is_multiple_of(step)) {
                    map.insert(block, (data, time));
                    data += 1;
                }
            }
        }
    }
    pool
}

/// Equal leaves in most trees, and above them now equal nodes, now others; few entries in a node make high trees.
fn splits(random: &mut Random, pool: &Pool) -> Vec<Split> {
    let rooms = [12, 15, 30, 252];
    let room = rooms[random.index(4)];
    let split = |_: &Map| Split {
        room,
        leaves: random.below(8) / 7,
        above: random.below(2),
    };
    pool.iter().map(split).collect()
}

#[test]
fn after_random_histories_model_and_tools_agree() {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let pool = history(&mut random);
        let splits = splits(&mut random, &pool);
        write(&path, &pool, &splits);
        check_snapshot(&path);
        compare(&path, ThinView::MetadataSnapshot, &pool, 0);
        compare(&path, ThinView::LastCommit, &pool, random.below(4000));
        let last = pool.len() - 1;
        let options = ["-m"];
        assert_eq!(dump(&options, &path, number(last)), pool[last], "{seed}");
        if last > 0 {
            let found = delta(&options, &path, 1, number(last));
            assert_eq!(found, differing(&pool[0], &pool[last], 0), "{seed}");
        }
    }
}
