//! The blocks that differ between two thin devices of 1 TiB, beside `thin_delta`.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use drumlin_lvm::{ThinBlocks, ThinMetadata, ThinView};
use drumlin_tests::{
    programs::{program, run},
    storage::Scratch,
};

use crate::measure::{Table, median};

/// The argument with which this program reads metadata as a process of its own.
pub(crate) const WALK: &str = "metadata-walk";
/// The number of blocks of 64 KiB in each device.
const BLOCKS: u64 = 1 << 24;
/// One block of so many differs.
const DIFFERING: u64 = 100;
/// Each program runs so many times.
const ROUNDS: usize = 3;

pub(crate) fn changed_blocks(table: &mut Table) {
    let scratch = Scratch::new();
    let path = metadata(scratch.path());
    let itself = std::env::current_exe().unwrap();
    let ours = |walk| {
        let mut command = program(&itself);
        command.arg(WALK).arg(walk).arg(&path);
        command
    };
    let theirs = || {
        let mut command = program("thin_delta");
        command.args(["--snap1", "1", "--snap2", "2"]).arg(&path);
        command
    };
    let mut figures: [Vec<(Duration, f64)>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let commands = [ours("differing"), ours("mapped"), theirs()];
        for (figures, command) in figures.iter_mut().zip(commands) {
            figures.push(measured(command));
        }
    }
    let [differing, mapped, delta] = figures.map(|all| {
        let peak = all.iter().map(|(_, peak)| *peak).fold(0.0, f64::max);
        (
            median(all.into_iter().map(|(time, _)| time).collect()),
            peak,
        )
    });
    table.ratio(
        "blocks that differ between two devices of 1 TiB that share no metadata, beside thin_delta",
        (differing.0, delta.0),
        0.3,
    );
    table.ratio(
        "blocks of one of them that are mapped, beside the same",
        (mapped.0, delta.0),
        0.3,
    );
    let peak = differing.1.max(mapped.1);
    table.most("peak memory of a process that reads them", peak, 8.0, "MiB");
    table.beside("the same beside thin_delta", (peak, delta.1), 1.0, "MiB");
}

/// Reads metadata in this process, and prints how much it found.
pub(crate) fn walk(arguments: &[String]) {
    let [walk, path] = arguments else {
        panic!("{WALK} takes a walk and a path")
    };
    let metadata = ThinMetadata::open(Path::new(path), ThinView::LastCommit).unwrap();
    let runs = match walk.as_str() {
        "mapped" => metadata.mapped(1, ThinBlocks::ZERO),
        _ => metadata.differing(1, 2, ThinBlocks::ZERO),
    };
    let blocks = runs.unwrap().map(|run| {
        let run = run.unwrap();
        run.end.0 - run.start.0
    });
    println!("{}", blocks.sum::<u64>());
    metadata.verify_unchanged().unwrap();
}

/// Metadata of two devices, each mapped completely, no two neighbours to neighbours.
fn metadata(directory: &Path) -> PathBuf {
    let source = directory.join("xml");
    let mut xml = BufWriter::new(File::create(&source).unwrap());
    writeln!(
        xml,
        r#"<superblock uuid="" time="1" transaction="2" version="2" data_block_size="128" nr_data_blocks="{}">"#,
        BLOCKS * 3
    )
    .unwrap();
    for device in [1, 2] {
        writeln!(
            xml,
            r#"<device dev_id="{device}" mapped_blocks="{BLOCKS}" transaction="0" creation_time="0" snap_time="0">"#
        )
        .unwrap();
        for block in 0..BLOCKS {
            let differs = device == 2 && block.is_multiple_of(DIFFERING);
            let data = block * 2 + u64::from(differs);
            writeln!(
                xml,
                r#"<single_mapping origin_block="{block}" data_block="{data}" time="1"/>"#
            )
            .unwrap();
        }
        writeln!(xml, "</device>").unwrap();
    }
    writeln!(xml, "</superblock>").unwrap();
    drop(xml);
    let path = directory.join("metadata");
    File::create(&path).unwrap().set_len(2 << 30).unwrap();
    let names = [&source, &path].map(|path| path.to_str().unwrap());
    run("thin_restore", &["-i", names[0], "-o", names[1]]);
    fs::remove_file(source).unwrap();
    path
}

/// How long a program runs, and the most memory that it has, in MiB.
fn measured(mut command: Command) -> (Duration, f64) {
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0;
    loop {
        let ended = child.try_wait().unwrap();
        if let Some(outcome) = ended {
            assert!(outcome.success(), "{command:?}");
            return (begun.elapsed(), peak);
        }
        let status = fs::read_to_string(&status).unwrap_or_default();
        // Of a process that has just ended there is none.
        if let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
            let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
            peak = kibibytes / 1024.0;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
