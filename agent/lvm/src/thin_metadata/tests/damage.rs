//! Damaged metadata: an error, never a panic and never a wrong answer.

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    image::{Image, SNAPSHOT, Split, put, seal},
    model::{Map, Random, mapped, numbers as numbers_of, write},
};
use crate::{
    Error, Kind, Result, ThinBlocks, ThinMetadata, ThinView,
    host::testing::Scratch,
    thin_metadata::{
        node::{self, HEADER},
        superblock,
    },
};

/// A file with the metadata of two devices with trees of several levels.
struct Metadata {
    _scratch: Scratch,
    path: PathBuf,
    file: File,
    image: Image,
    blocks: u64,
    maps: Vec<Map>,
}

impl Metadata {
    fn new() -> Self {
        let scratch = Scratch::new();
        let path = scratch.path().join("metadata");
        let base: Map = (0..300).map(|block| (block * 2, (block, 1))).collect();
        let mut target = base.clone();
        target.insert(1, (5000, 2));
        let split = Split {
            room: 12,
            leaves: 0,
            above: 0,
        };
        let maps = vec![base, target];
        let image = write(&path, &maps, &[split, split]);
        let blocks = u64::try_from(image.bytes().len() / 4096).unwrap();
        Self {
            _scratch: scratch,
            file: File::options().write(true).open(&path).unwrap(),
            path,
            image,
            blocks,
            maps,
        }
    }

    fn replace(&self, block: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, block * 4096).unwrap();
    }
}

/// The runs of several walks.
type Found = Vec<Vec<Range<u64>>>;

/// Reads all that there is. What is found before an error must ascend.
fn read(path: &Path) -> Result<Found, (Found, Error)> {
    let mut all = Vec::new();
    let mut work = || -> Result<()> {
        let metadata = ThinMetadata::open(path, ThinView::MetadataSnapshot)?;
        for device in [1, 2] {
            metadata.device(device)?;
        }
        let walks = [
            metadata.mapped(1, ThinBlocks::ZERO)?,
            metadata.mapped(2, ThinBlocks::ZERO)?,
            metadata.differing(1, 2, ThinBlocks::ZERO)?,
            metadata.mapped(1, ThinBlocks(300))?,
        ];
        for walk in walks {
            all.push(Vec::<Range<u64>>::new());
            for run in walk {
                let run = run?;
                let runs = all.last_mut().unwrap();
                let end = runs.last().map_or(0, |last| last.end + 1);
                assert!(run.start < run.end && (runs.is_empty() || run.start.0 >= end));
                runs.push(run.start.0..run.end.0);
            }
        }
        Ok(())
    };
    match work() {
        Ok(()) => Ok(all),
        Err(error) => Err((all, error)),
    }
}

#[test]
fn a_changed_byte_of_any_block_is_an_error_that_names_it() {
    let metadata = Metadata::new();
    let whole = read(&metadata.path).unwrap();
    assert_eq!(whole[0], mapped(&metadata.maps[0], 0));
    let mut random = Random(1);
    for block in 0..metadata.blocks {
        // The headers, and some of the rest.
        let headers = [
            0, 5, 8, 17, 21, 24, 31, 33, 40, 48, 57, 320, 329, 337, 341, 362,
        ];
        let rest: Vec<_> = (0..8).map(|_| random.below(4096)).collect();
        for at in headers.into_iter().chain(rest) {
            let bytes = metadata.image.block(block);
            let mut flipped = bytes.to_vec();
            flipped[usize::try_from(at).unwrap()] ^= 1 << random.below(8);
            metadata.replace(block, &flipped);
            let (before, error) = read(&metadata.path).unwrap_err();
            metadata.replace(block, bytes);
            assert_eq!(error.kind(), Kind::Precondition, "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("block {block} ")),
                "{block}, {at}: {text}"
            );
            for (found, whole) in before.iter().zip(&whole) {
                assert!(whole.starts_with(found), "{block}, {at}");
            }
        }
    }
    assert_eq!(read(&metadata.path).unwrap(), whole);
}

#[test]
fn a_block_that_was_written_for_another_place_is_refused() {
    let metadata = Metadata::new();
    let last = metadata.blocks - 1;
    metadata.replace(last, metadata.image.block(last - 1));
    let (_, error) = read(&metadata.path).unwrap_err();
    let text = format!("block {last} of");
    assert!(error.to_string().contains(&text), "{error:?}");
    let text = format!("it was written as block {}", last - 1);
    assert!(error.to_string().ends_with(&text), "{error:?}");
}

/// What is wrong with a tree whose root has one number replaced, with a right checksum.
fn wrong_root(at: usize, value: &[u8]) -> String {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    let mut image = Image::new();
    let numbers = |keys: [u64; 3], values: [u64; 3]| -> Vec<(u64, Vec<u8>)> {
        let values = values.map(|value| value.to_le_bytes().to_vec());
        keys.into_iter().zip(values).collect()
    };
    let leaves: Vec<u64> = [0, 10, 20]
        .map(|key| image.node(2, 6, 8, &numbers([key, key + 1, key + 2], [1, 2, 3])))
        .to_vec();
    let children = [leaves[0], leaves[1], leaves[2]];
    let root = image.node(1, 6, 8, &numbers([0, 10, 20], children));
    image.finish(&[(root, 9)]);
    let mut bytes = image.block(root).to_vec();
    put(&mut bytes, at, value);
    seal(&mut bytes, node::SALT);
    let mut all = image.bytes();
    put(&mut all, usize::try_from(root).unwrap() * 4096, &bytes);
    std::fs::write(&path, all).unwrap();
    let metadata = ThinMetadata::open(&path, ThinView::LastCommit).unwrap();
    let found = metadata.mapped(1, ThinBlocks::ZERO).unwrap();
    let error = numbers_of(found).unwrap_err();
    assert_eq!(error.kind(), Kind::Precondition);
    error.to_string()
}

#[test]
fn what_no_tree_can_have_is_refused_by_name() {
    let values = HEADER + 6 * 8;
    let cases: [(usize, &[u8], &str); 14] = [
        (4, &[3], "has the flags 0x3"),
        (4, &[0], "has the flags 0x0"),
        (16, &[7], "7 entries, and room for 6"),
        (16, &[0], "has no entries"),
        (20, &[255], "room for 255"),
        (24, &[4], "values of 4 bytes, not 8"),
        // Keys behind and before those of a leaf, equal ones, and one that is behind the end of every device.
        (HEADER, &[1], "key 0 does not ascend within 1 to 9"),
        (HEADER + 8, &[2], "key 2 does not ascend within 0 to 1"),
        (HEADER + 16, &[10], "key 10 does not ascend within 0 to"),
        (
            HEADER + 16,
            &[255; 8],
            "does not ascend within 0 to 281474976710654",
        ),
        (values, &[3], "key 10 does not ascend within 0 to 9"),
        (values, &[5], "key 10 does not ascend within 0 to 9"),
        (values, &[7], "values of 24 bytes, not 8"),
        (values, &[255, 255], "it is behind the end of the device"),
    ];
    for (at, value, wanted) in cases {
        let text = wrong_root(at, value);
        assert!(text.contains(wanted), "{at}, {value:?}: {text}");
    }
}

#[test]
fn superblocks_that_no_supported_pool_has_are_refused() {
    let metadata = Metadata::new();
    let cases = [
        (40, 3, "version 3 and features 0x0"),
        (360, 4, "version 2 and features 0x4"),
        (336, 0, "blocks of 0 sectors"),
        (336, 200, "blocks of 200 sectors"),
        (336, (1 << 21) + 128, "blocks of 2097280 sectors"),
        (340, 16, "it has blocks of 16 sectors"),
    ];
    for (at, value, wanted) in cases {
        for block in [superblock::LOCATION, SNAPSHOT] {
            let mut bytes = metadata.image.block(block).to_vec();
            put(&mut bytes, at, &u32::to_le_bytes(value));
            seal(&mut bytes, superblock::SALT);
            metadata.replace(block, &bytes);
            let (_, error) = read(&metadata.path).unwrap_err();
            metadata.replace(block, metadata.image.block(block));
            assert_eq!(error.kind(), Kind::Precondition);
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
}

#[test]
fn a_node_below_itself_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.path().join("metadata");
    let mut image = Image::new();
    // The first block behind both superblocks.
    let itself = 2_u64.to_le_bytes().to_vec();
    let root = image.node(1, 6, 8, &[(0, itself)]);
    image.finish(&[(root, 1), (root, 1)]);
    std::fs::write(&path, image.bytes()).unwrap();
    let metadata = ThinMetadata::open(&path, ThinView::LastCommit).unwrap();
    let found = metadata.mapped(1, ThinBlocks::ZERO).unwrap();
    let text = numbers_of(found).unwrap_err().to_string();
    assert!(text.contains("block 2 of"), "{text}");
    assert!(
        text.ends_with("below more nodes than a tree can have"),
        "{text}"
    );
}

#[test]
fn nodes_of_random_bytes_with_right_checksums_come_to_an_end() {
    let metadata = Metadata::new();
    let mut random = Random(2);
    for _ in 0..1000 {
        let block = 2 + random.below(metadata.blocks - 2);
        let mut bytes = metadata.image.block(block).to_vec();
        for _ in 0..=random.below(4) {
            // Numbers as they are in nodes, and any.
            let number = match random.below(4) {
                0 => random.below(4),
                1 => random.below(metadata.blocks),
                2 => u64::MAX - random.below(2),
                _ => random.next(),
            };
            let number = number.to_le_bytes();
            match random.below(6) {
                0 => {
                    let field = [4, 16, 20, 24][random.index(4)];
                    put(&mut bytes, field, &number[..4]);
                }
                1 => bytes[HEADER..].fill_with(|| number[random.index(8)]),
                _ => put(&mut bytes, HEADER + 8 * random.index(24), &number),
            }
        }
        seal(&mut bytes, node::SALT);
        metadata.replace(block, &bytes);
        if let Err((_, error)) = read(&metadata.path) {
            let kinds = [Kind::Precondition, Kind::NotFound];
            assert!(kinds.contains(&error.kind()), "{error:?}");
        }
        metadata.replace(block, metadata.image.block(block));
    }
    read(&metadata.path).unwrap();
}
