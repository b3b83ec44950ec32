//! Physical volumes of a group: found by LVM, and refused when they do not belong to exactly one group of this host.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::{
    Error, Kind, Result, VolumeGroup,
    command::{self, SystemId, report},
    duplicates, unresponsive_disks,
};

/// Timeout for LVM's scan of all disks while all of them answer.
const SLOW_TO_REPORT: Duration = Duration::from_secs(3);

/// A disk as LVM reports it.
#[derive(Debug, Deserialize)]
struct DiskRow {
    pv_name: PathBuf,
    vg_name: String,
    vg_uuid: String,
    vg_systemid: String,
}

/// The disks of a group that LVM may use on this host.
#[derive(Debug)]
pub(crate) struct FoundDisks {
    pub(crate) paths: Vec<PathBuf>,
    /// The system id of the group when LVM found it.
    pub(crate) system_id: String,
}

impl VolumeGroup {
    /// Finds the disks of the group. Runs one program.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when no such group exists, when there are several, or when it is not the same as
    /// before.
    pub(crate) async fn find_disks(&self) -> Result<FoundDisks> {
        let rows = self.report_disks(&[]);
        let rows = if let Ok(rows) = tokio::time::timeout(SLOW_TO_REPORT, rows).await {
            rows?
        } else {
            // LVM may be waiting for a disk of another group.
            unresponsive_disks::look_for().await;
            self.report_disks(&[]).await?
        };
        self.check_uuids(&rows)?;
        let system_id = rows.first().map(|row| row.vg_systemid.clone());
        let paths: Vec<PathBuf> = rows
            .into_iter()
            .map(|row| row.pv_name)
            // A missing disk is reported as [unknown].
            .filter(|path| path.is_absolute())
            .collect();
        if !paths.is_empty() {
            let system_id = system_id.unwrap_or_default();
            return Ok(FoundDisks { paths, system_id });
        }
        // LVM does not report groups of other hosts by default.
        let hidden = self.report_disks(&["--foreign", "--shared"]).await?;
        let why = match hidden.into_iter().next() {
            Some(row) if !row.vg_systemid.is_empty() => {
                is_foreign(&row.vg_systemid, &command::system_id().await?)
            }
            Some(_) => {
                "is shared with other hosts, which this agent does not support; use a local volume group for the class".to_owned()
            }
            None => {
                unresponsive_disks::look_for().await;
                match unresponsive_disks::names() {
                    silent if silent.is_empty() => {
                        "is missing; create it, or reconnect its disks".to_owned()
                    }
                    silent => format!(
                        "is missing, and these disks do not answer: {}; check dmsetup info for suspended devices, and the kernel log",
                        silent.join(", ")
                    ),
                }
            }
        };
        Err(Error::new(
            Kind::Precondition,
            format!("volume group {} {why}", self.name),
        ))
    }

    /// Returns true unless a group with a different UUID (without dashes) was read before.
    pub(crate) fn is_uuid(&self, uuid: &str) -> bool {
        self.uuid.get().is_none_or(|known| known == uuid)
    }

    /// The error for a group that has replaced the one that was read before.
    pub(crate) fn is_another(&self, disks: &str) -> Error {
        Error::new(
            Kind::Precondition,
            format!(
                "volume group {name} on {disks} is not the one that this agent has used so far, whose UUID is {uuid}; reconnect the disks of that group, or restart the agent to use the new one",
                name = self.name,
                uuid = self.uuid.get().map(String::as_str).unwrap_or_default()
            ),
        )
    }

    /// Refuses two groups of the same name: LVM identifies groups by name and changes neither of them, and the one
    /// with the higher sequence number need not be ours.
    fn check_uuids(&self, rows: &[DiskRow]) -> Result<()> {
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for row in rows {
            let disks = groups.entry(&row.vg_uuid).or_default();
            disks.push(row.pv_name.display().to_string());
        }
        let mut groups = groups
            .into_iter()
            .map(|(uuid, disks)| (uuid, disks.join(", ")));
        match (groups.next(), groups.next()) {
            (Some((uuid, disks)), None) if !self.is_uuid(&uuid.replace('-', "")) => {
                Err(self.is_another(&disks))
            }
            (Some((uuid, disks)), Some((other, others))) => Err(Error::new(
                Kind::Precondition,
                format!(
                    "two volume groups are named {name}: {uuid} on {disks}, and {other} on {others}; rename the wrong one (vgrename UUID NEWNAME), or disconnect its disks",
                    name = self.name
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The group's disks as LVM reports them.
    async fn report_disks(&self, options: &[&str]) -> Result<Vec<DiskRow>> {
        #[derive(Deserialize)]
        struct Answer {
            report: Vec<Report>,
        }
        #[derive(Deserialize)]
        struct Report {
            pv: Vec<DiskRow>,
        }
        let words = ["pvs", "-o", "pv_name,vg_name,vg_uuid,vg_systemid"];
        let output = report(&[&words[..], options].concat()).await?;
        // A disk of another group may have a path that is not UTF-8.
        let text = String::from_utf8_lossy(&output.stdout);
        let answer: Answer = serde_json::from_str(&text).map_err(|error| {
            Error::new(Kind::Command, "could not parse the report of pvs").because(error)
        })?;
        let rows = answer.report.into_iter().flat_map(|report| report.pv);
        let rows: Vec<DiskRow> = rows.filter(|row| row.vg_name == self.name).collect();
        let is_ours = |disk: &str| rows.iter().any(|row| row.pv_name.as_os_str() == disk);
        duplicates::check(&self.name, &output.stderr, is_ours)?;
        Ok(rows)
    }
}

/// The reason to refuse a group with a foreign system id. In a container the host name and the machine id are not the
/// host's: there the host's own group looks foreign, and changing its id to the container's would lock the host out.
fn is_foreign(theirs: &str, ours: &SystemId) -> String {
    let SystemId { id, source } = ours;
    let id = match id.as_str() {
        "" => "none",
        id => id,
    };
    let moved = "run vgchange --systemid on that host before moving the disks (lvmsystemid(7))";
    match source.as_str() {
        "uname" | "machineid" | "file" => format!(
            "belongs to the host with the system id {theirs}, but LVM's system id here is {id} (global/system_id_source is {source}); if this is that host and the agent runs in a container with its own {source}, add {theirs} to local/extra_system_ids in the host's lvmlocal.conf and do not change the system id of the group; otherwise {moved}"
        ),
        _ => format!(
            "belongs to the host with the system id {theirs}, but LVM's system id here is {id}; {moved}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(disk: &str, uuid: &str) -> DiskRow {
        DiskRow {
            pv_name: disk.into(),
            vg_name: "physical-volumes-test".to_owned(),
            vg_uuid: uuid.to_owned(),
            vg_systemid: String::new(),
        }
    }

    #[test]
    fn disks_of_two_groups_of_one_name_are_refused_by_name() {
        let group = VolumeGroup::new("physical-volumes-test");
        let (ours, other) = (row("/dev/a", "x-1"), row("/dev/b", "y-2"));
        group.check_uuids(&[]).unwrap();
        group
            .check_uuids(&[row("/dev/c", "x-1"), row("[unknown]", "x-1")])
            .unwrap();
        let error = group.check_uuids(&[ours, other]).unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        let message = error.to_string();
        assert!(
            message.contains("x-1 on /dev/a") && message.contains("y-2 on /dev/b"),
            "{message}"
        );
    }

    #[test]
    fn a_group_that_took_the_place_of_another_one_is_refused() {
        let group = VolumeGroup::new("physical-volumes-test-2");
        group.uuid.set("x1".to_owned()).unwrap();
        group.check_uuids(&[row("/dev/a", "x-1")]).unwrap();
        let message = group
            .check_uuids(&[row("/dev/b", "y-2")])
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("/dev/b") && message.contains("restart"),
            "{message}"
        );
    }

    #[test]
    fn the_host_is_not_told_to_lock_itself_out_of_its_group() {
        let of = |id: &str, source: &str| SystemId {
            id: id.to_owned(),
            source: source.to_owned(),
        };
        let message = is_foreign("host-a", &of("pod-x", "uname"));
        for part in [
            "host-a",
            "pod-x",
            "extra_system_ids",
            "do not change the system id",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let message = is_foreign("host-a", &of("", "none"));
        assert!(
            message.contains("id here is none") && !message.contains("container"),
            "{message}"
        );
    }
}
