//! LVM's programs and settings. Only programs that read are run, and none that takes a lock.

use std::{collections::BTreeSet, path::Path, time::Duration};

use drumlin_core::{
    backend::lvm::Provisioning,
    host::{exec, read_probe},
};
use drumlin_lvm::{command, dmeventd::Dmeventd, metadata, preflight};
use serde_json::Value;

use super::{
    check::Check,
    finding::{Finding, shell},
    known_faults,
    subject::Subject,
};

/// Time for a disk to answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// The kernel's device-mapper.
const CONTROL: &str = "/dev/mapper/control";
/// The list of disks that LVM may use.
const DEVICES_FILE: &str = "/etc/lvm/devices/system.devices";

/// Looks at LVM, where a class uses it.
pub(super) async fn check(subject: &Subject) -> Vec<Finding> {
    let groups = subject.volume_groups();
    let names: BTreeSet<String> = groups
        .map(|(_, settings)| settings.volume_group.clone())
        .collect();
    // What is missing is said with the other programs, and with what the kernel has. LVM would make the node.
    let is_missing = exec::find("lvm").is_none() || !Path::new(CONTROL).exists();
    if names.is_empty() || is_missing {
        return Vec::new();
    }
    let mut found = version(subject).await;
    found.extend(hidden(&names).await);
    found.extend(autoextend(subject).await);
    found
}

async fn version(subject: &Subject) -> Vec<Finding> {
    let text = match command::version().await {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return vec![Finding::not_checked("lvm", error.chain())],
    };
    if let Err(error) = preflight::check_version(&text) {
        return vec![Finding::new(Check::OldLvm, "lvm", error.to_string()).advice("update lvm2")];
    }
    let untested = preflight::untested(&text).map(|version| {
        let message = format!("this is LVM {version}; the agent is tested with other versions (docs/src/compatibility.md)");
        Finding::new(Check::UntestedLvm, "lvm", message)
    });
    let mut found = known_faults::of_lvm(subject, &text);
    found.extend(untested);
    found
}

/// Disks of our groups that LVM does not see.
async fn hidden(names: &BTreeSet<String>) -> Vec<Finding> {
    // The checks of volume groups say so.
    let Ok(scan) = metadata::scan(names, PATIENCE) else {
        return Vec::new();
    };
    let words = [
        "pvs",
        "--readonly",
        "--foreign",
        "--shared",
        "-o",
        "pv_name",
    ];
    let report = match command::report(&words).await {
        Ok(output) => output,
        Err(error) => return vec![Finding::not_checked("disks that LVM sees", error.chain())],
    };
    let Ok(report) = serde_json::from_slice::<Value>(&report.stdout) else {
        return vec![Finding::not_checked(
            "disks that LVM sees",
            "the report of pvs cannot be read",
        )];
    };
    let list = |value: &Value, field| value.get(field).and_then(Value::as_array).cloned();
    let reports = list(&report, "report").unwrap_or_default();
    let rows = reports
        .iter()
        .filter_map(|report| list(report, "pv"))
        .flatten();
    let names: Vec<Value> = rows.filter_map(|row| row.get("pv_name").cloned()).collect();
    let seen = names.iter().filter_map(Value::as_str);
    let seen: BTreeSet<u64> = seen
        .filter_map(|name| read_probe::number(Path::new(name)).ok())
        .collect();
    let mut found = Vec::new();
    for group in &scan.groups {
        let paths = group.disks.iter().map(|(_, path)| path);
        let unseen = paths
            .filter(|path| read_probe::number(path).is_ok_and(|number| !seen.contains(&number)));
        found.extend(unseen.map(|path| hidden_disk(&group.metadata.name, path)));
    }
    found
}

fn hidden_disk(group: &str, path: &Path) -> Finding {
    let message = format!("it is a disk of volume group {group}, and LVM's settings hide it");
    let finding = Finding::at(Check::HiddenDisk, path, message);
    if Path::new(DEVICES_FILE).exists() {
        finding
            .command(format!("lvmdevices --adddev {}", shell(path)))
            .advice(
                "or correct devices/filter and devices/global_filter in lvm.conf and lvmlocal.conf",
            )
    } else {
        finding.advice("correct devices/filter, devices/global_filter or devices/scan in lvm.conf and lvmlocal.conf")
    }
}

/// Whether pools are extended before they are full.
async fn autoextend(subject: &Subject) -> Vec<Finding> {
    const SETTING: &str = "activation/thin_pool_autoextend_threshold";
    let pools = subject
        .volume_groups()
        .filter_map(|(_, settings)| match &settings.provisioning {
            Provisioning::Thin(pool) => Some(format!("{}/{}", settings.volume_group, pool.name)),
            Provisioning::Thick(_) => None,
        });
    let pools: BTreeSet<String> = pools.collect();
    if pools.is_empty() {
        return Vec::new();
    }
    let value = match command::setting(SETTING).await {
        Ok(line) => line,
        Err(error) => return vec![Finding::not_checked(SETTING, error.chain())],
    };
    let threshold = value
        .split_once('=')
        .and_then(|(_, value)| value.trim().parse::<u32>().ok());
    let why = match (threshold, Dmeventd::now()) {
        (_, Dmeventd::Absent) => "dmeventd is not installed",
        (None | Some(100..), _) => "activation/thin_pool_autoextend_threshold is 100",
        _ => return Vec::new(),
    };
    let findings = pools.into_iter().map(|pool| {
        Finding::new(Check::NoAutoextend, pool, format!("nothing extends this pool when it fills up: {why}"))
            .advice("set thin_pool_autoextend_threshold in lvm.conf and run dmeventd, or extend the pool by hand when `pool-filling` is reported")
    });
    findings.collect()
}
