//! The programs of thin-provisioning-tools, which need no device-mapper.

use std::{fmt::Write, fs, ops::Range, path::Path};

use super::model::{Map, Pool, number};
use crate::host::testing::run;

/// Has `thin_restore` write a pool's metadata to a new file.
pub(super) fn restore(path: &Path, pool: &Pool) {
    let mut xml = String::from(
        r#"<superblock uuid="" time="5" transaction="9" version="2" data_block_size="128" nr_data_blocks="16777216">"#,
    );
    for (at, map) in pool.iter().enumerate() {
        let id = number(at);
        let count = map.len();
        let transaction = id + 100;
        let _ = writeln!(
            xml,
            r#"<device dev_id="{id}" mapped_blocks="{count}" transaction="{transaction}" creation_time="3" snap_time="4">"#
        );
        for (block, (data, time)) in map {
            let _ = writeln!(
                xml,
                r#"<single_mapping origin_block="{block}" data_block="{data}" time="{time}"/>"#
            );
        }
        xml.push_str("</device>\n");
    }
    xml.push_str("</superblock>\n");
    let source = path.with_extension("xml");
    fs::write(&source, xml).unwrap();
    fs::write(path, vec![0; 16 << 20]).unwrap();
    let names = [&source, path].map(|path| path.to_str().unwrap());
    run("thin_restore", &["-i", names[0], "-o", names[1]]);
}

/// Has `thin_check` look at the metadata snapshot.
pub(super) fn check_snapshot(path: &Path) {
    run("thin_check", &["-q", "-m", path.to_str().unwrap()]);
}

/// The runs that `thin_delta` finds different. `options` say of which view.
pub(super) fn delta(options: &[&str], path: &Path, base: u64, target: u64) -> Vec<Range<u64>> {
    let (base, target) = (base.to_string(), target.to_string());
    let devices = ["--snap1", &base, "--snap2", &target, path.to_str().unwrap()];
    let found = run("thin_delta", &[options, &devices].concat());
    let different = found.lines().filter(|line| {
        let line = line.trim_start();
        ["<different", "<left_only", "<right_only"]
            .iter()
            .any(|kind| line.starts_with(kind))
    });
    merged(different.map(|line| (attribute(line, "begin"), attribute(line, "length"))))
}

/// The mappings of a device that `thin_dump` finds. `options` say of which view.
pub(super) fn dump(options: &[&str], path: &Path, device: u64) -> Map {
    let id = device.to_string();
    let arguments = ["--dev-id", &id, path.to_str().unwrap()];
    let found = run("thin_dump", &[options, &arguments].concat());
    let mut map = Map::new();
    for line in found.lines() {
        let time = || u32::try_from(attribute(line, "time")).unwrap();
        if line.contains("<single_mapping") {
            let block = attribute(line, "origin_block");
            map.insert(block, (attribute(line, "data_block"), time()));
        } else if line.contains("<range_mapping") {
            let (block, data) = (
                attribute(line, "origin_begin"),
                attribute(line, "data_begin"),
            );
            for at in 0..attribute(line, "length") {
                map.insert(block + at, (data + at, time()));
            }
        }
    }
    map
}

fn attribute(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
    rest.split('"').next().unwrap().parse().unwrap()
}

fn merged(found: impl Iterator<Item = (u64, u64)>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (begin, length) in found {
        match runs.last_mut() {
            Some(run) if run.end == begin => run.end += length,
            _ => runs.push(begin..begin + length),
        }
    }
    runs
}
