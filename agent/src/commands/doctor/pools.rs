//! Thin pools and the exception stores of snapshots: how full they are, and whether they work.

use std::path::Path;

use drumlin_core::{
    backend::lvm::{Provisioning, ThinPool, owned},
    host::device_mapper::DeviceMapper,
    types::ClassName,
};
use drumlin_lvm::metadata::{GroupMetadata, LogicalVolume, VolumeKind};

use super::{check::Check, finding::Finding, lvm::Classes};

/// A store with so much in use, in percent, is nearly full.
const FILLING: u64 = 80;

/// Used and total blocks.
type Fill = (u64, u64);

/// The kernel's status of a pool.
#[derive(Debug, PartialEq, Eq)]
enum PoolStatus {
    /// It cannot be used, and why.
    Failed(&'static str),
    /// It works, so full.
    Works {
        metadata: Fill,
        data: Fill,
        is_out_of_space: bool,
    },
}

/// Looks at the pools of the classes of a group, and at the stores of its snapshots.
pub(super) fn check(now: &GroupMetadata, classes: &Classes<'_>) -> Vec<Finding> {
    let mapper = Path::new("/dev/mapper/control").exists();
    let mapper = mapper.then(|| DeviceMapper::open().ok()).flatten();
    let mut found = Vec::new();
    for (class, settings) in classes {
        if let Provisioning::Thin(pool) = &settings.provisioning {
            found.extend(look(now, (class, pool), mapper.as_ref()));
        }
    }
    if let Some(mapper) = mapper {
        let stores = now.volumes.values().filter(|volume| {
            matches!(volume.kind, VolumeKind::Snapshot { .. }) && owned(volume).is_some()
        });
        found.extend(stores.filter_map(|volume| store(now, volume, &mapper)));
    }
    found
}

fn look(
    now: &GroupMetadata,
    (class, wanted): (&ClassName, &ThinPool),
    mapper: Option<&DeviceMapper>,
) -> Vec<Finding> {
    let path = format!("{}/{}", now.name, wanted.name);
    let Some((volume, pool)) = now.pool(&wanted.name) else {
        let is_made = wanted.create.is_some() && !now.volumes.contains_key(&wanted.name);
        let message = format!("class {class} has no thin pool of this name");
        let finding = Finding::new(Check::PoolUnusable, &path, message)
            .advice(format!("create it (`lvcreate --type thin-pool -L SIZE -n {} {}`), or set `create` in the class", wanted.name, now.name));
        return if is_made { Vec::new() } else { vec![finding] };
    };
    let mut found = Vec::new();
    if !pool.zeroes {
        found.push(
            Finding::new(
                Check::PoolUnusable,
                &path,
                format!("it does not zero new chunks, so volumes of class {class} could show data of deleted ones"),
            )
            .command(format!("lvchange --zero y {path}")),
        );
    }
    let promised: u64 = now
        .volumes
        .values()
        .filter(|one| matches!(&one.kind, VolumeKind::Thin { pool, .. } if *pool == wanted.name))
        .map(|one| now.bytes(one))
        .sum();
    let size = now.bytes(volume);
    if promised > size {
        found.push(Finding::new(
            Check::Overcommitted,
            &path,
            format!(
                "{} MiB are promised to volumes and snapshots, and the pool has {} MiB (class {class} allows {} %)",
                promised >> 20,
                size >> 20,
                wanted.overcommit
            ),
        ));
    }
    let words = mapper.map(|mapper| mapper.status(&now.pool_uuid(volume)));
    match words {
        Some(Ok(Some(words))) => found.extend(fill(now, volume, (wanted, &pool.metadata), &words)),
        Some(Ok(None)) | None => {}
        Some(Err(error)) => found.push(Finding::not_checked(path, error.chain())),
    }
    found
}

fn fill(
    now: &GroupMetadata,
    volume: &LogicalVolume,
    (wanted, metadata_name): (&ThinPool, &str),
    words: &str,
) -> Vec<Finding> {
    let path = format!("{}/{}", now.name, volume.name);
    let (metadata, data, is_out_of_space) = match parse(words) {
        PoolStatus::Failed(why) => {
            let finding = Finding::new(Check::PoolFailed, &path, why);
            return vec![finding.advice(format!(
                "take its volumes out of use, and run `lvconvert --repair {path}`; if its metadata is full, run `lvextend --poolmetadatasize +1G {path}`"
            ))];
        }
        PoolStatus::Works {
            metadata,
            data,
            is_out_of_space,
        } => (percent(metadata), percent(data), is_out_of_space),
    };
    let (limits, extend) = (wanted.limits, format!("lvextend -l +20%LV {path}"));
    let mut found = Vec::new();
    if is_out_of_space || data >= u64::from(limits.data_limit) {
        let what = if is_out_of_space {
            "it is out of data space: writes wait for a minute, and then fail".to_owned()
        } else {
            format!(
                "{data} % of its data is used, and at {} % nothing new is created",
                limits.data_limit
            )
        };
        found.push(Finding::new(Check::PoolFull, &path, what).command(&extend));
    } else if data >= u64::from(limits.warn_at) {
        let what = format!(
            "{data} % of its data is used (warnAt is {} %)",
            limits.warn_at
        );
        found.push(Finding::new(Check::PoolFilling, &path, what).command(&extend));
    }
    if metadata >= u64::from(limits.metadata_limit) {
        let of_metadata = now
            .volumes
            .get(metadata_name)
            .map_or(0, |volume| now.bytes(volume));
        let what = format!(
            "{metadata} % of its metadata is used, and at {} % nothing new is created",
            limits.metadata_limit
        );
        // Half as much again, in whole MiB.
        let more = ((of_metadata / 2) >> 20).max(4);
        let extend = format!("lvextend --poolmetadatasize +{more}M {path}");
        found.push(Finding::new(Check::PoolFull, &path, what).command(extend));
    }
    found
}

/// Parses the status of a pool (`Documentation/admin-guide/device-mapper/thin-provisioning.rst`).
fn parse(words: &str) -> PoolStatus {
    let mut words = words.split_whitespace();
    if matches!(words.next(), None | Some("Fail" | "Error")) {
        return PoolStatus::Failed("it has failed: every access to its volumes fails");
    }
    let (Some(metadata), Some(data)) = (words.next().and_then(pair), words.next().and_then(pair))
    else {
        return PoolStatus::Failed("it has a status that this version cannot parse");
    };
    let rest: Vec<&str> = words.collect();
    if rest.contains(&"needs_check") {
        return PoolStatus::Failed("its metadata must be checked");
    }
    if rest.contains(&"ro") {
        return PoolStatus::Failed("it is read-only: its metadata is full or damaged");
    }
    PoolStatus::Works {
        metadata,
        data,
        is_out_of_space: rest.contains(&"out_of_data_space"),
    }
}

fn store(now: &GroupMetadata, volume: &LogicalVolume, mapper: &DeviceMapper) -> Option<Finding> {
    let path = format!("{}/{}", now.name, volume.name);
    let words = match mapper.status(&now.mapped_uuid(volume)) {
        Ok(words) => words?,
        Err(error) => return Some(Finding::not_checked(path, error.chain())),
    };
    let Some(fill) = words.split_whitespace().next().and_then(pair) else {
        let message = "its exception store overflowed: more was overwritten in its volume than it could keep; it is lost";
        return Some(
            Finding::new(Check::SnapshotOverflowed, path, message)
                .advice("delete the snapshot, and set a larger snapshotSize in the class"),
        );
    };
    let used = percent(fill);
    (used >= FILLING).then(|| {
        let message =
            format!("{used} % of its exception store is used; a full one invalidates the snapshot");
        Finding::new(Check::SnapshotStoreFilling, &path, message)
            .command(format!("lvextend -l +50%LV {path}"))
    })
}

/// Parses `12/345`.
fn pair(word: &str) -> Option<Fill> {
    let (used, total) = word.split_once('/')?;
    Some((used.parse().ok()?, total.parse().ok()?))
}

fn percent((used, total): Fill) -> u64 {
    used.saturating_mul(100) / total.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_pool_is_read() {
        let works = "2 113/1024 1/16384 - rw no_discard_passdown queue_if_no_space - 256";
        let of = |metadata, data, is_out_of_space| PoolStatus::Works {
            metadata,
            data,
            is_out_of_space,
        };
        assert_eq!(parse(works), of((113, 1024), (1, 16384), false));
        let full = works.replace(" rw ", " out_of_data_space ");
        assert_eq!(parse(&full), of((113, 1024), (1, 16384), true));
        for wrong in [
            "Fail",
            "Error",
            "",
            "2 x",
            &works.replace(" rw ", " ro "),
            &works.replace("- 256", "needs_check 256"),
        ] {
            assert!(matches!(parse(wrong), PoolStatus::Failed(_)), "{wrong}");
        }
    }
}
