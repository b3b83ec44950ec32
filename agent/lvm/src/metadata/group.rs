//! A volume group as its metadata describes it: its disks, its volumes and their extents.

use std::collections::{BTreeMap, BTreeSet};

use super::{segment, text::Value};
use crate::Extents;

/// The metadata of a volume group, as its disks have it at one point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMetadata {
    /// Its name.
    pub name: String,
    /// Its uuid, without dashes.
    pub uuid: String,
    /// The sequence number: it grows with every change.
    pub sequence: u64,
    /// Its tags.
    pub tags: Vec<String>,
    /// The size of an extent in bytes.
    pub extent_size: u64,
    /// Size of the metadata text, in bytes.
    pub text: u64,
    /// Maximum size of the metadata text, in bytes.
    pub largest_text: u64,
    /// The system id of the owning host; empty where any host may use it.
    pub system_id: String,
    /// The reason why it may not be used, if any; a continuation of its name in messages.
    pub refusal: Option<String>,
    /// Its physical volumes, by their names within the text.
    pub disks: BTreeMap<String, PhysicalVolume>,
    /// Its logical volumes, including hidden ones, by name.
    pub volumes: BTreeMap<String, LogicalVolume>,
}

/// A physical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhysicalVolume {
    /// Its uuid, without dashes.
    pub uuid: String,
    /// The offset of its first extent, in bytes.
    pub start: u64,
    /// It is missing, or was when the text was written.
    pub is_missing: bool,
    /// New logical volumes may be allocated on it.
    pub is_allocatable: bool,
    /// Its length.
    pub extents: Extents,
    /// What no logical volume has of it.
    pub free: Extents,
}

/// A logical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "LVM records each of them, beside the others"
)]
pub struct LogicalVolume {
    /// Its name.
    pub name: String,
    /// Its uuid, without dashes.
    pub uuid: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// It is not part of another volume.
    pub is_visible: bool,
    /// LVM activates it writable.
    pub is_writable: bool,
    /// All its data exists at least once, and LVM would activate it.
    pub is_complete: bool,
    /// It is complete, but has lost redundancy.
    pub is_degraded: bool,
    /// LVM is moving its extents to another disk, or copies extents through it.
    pub is_moving: bool,
    /// The name of the volume that LVM merges this snapshot into, or will once that is not in use. It is hidden then.
    pub merges_into: Option<String>,
    /// The type of its layer over other volumes: cache, writecache, integrity, vdo.
    pub layer: Option<String>,
    /// A flag, of the volume or of a part, that this agent does not know: it may not be used.
    pub unknown_flag: Option<String>,
    /// Its length.
    pub extents: Extents,
    /// The extents of disks that it uses directly.
    pub areas: Vec<Area>,
    /// The names of its parts.
    pub parts: Vec<String>,
    /// The names of the volumes below its layer.
    pub below: Vec<String>,
    /// The form of each of its segments.
    pub segments: Vec<Segment>,
    /// The kind of the volume.
    pub kind: VolumeKind,
}

/// The form of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its type, such as `striped` (also of linear volumes), `raid1` or `thin`.
    pub kind: String,
    /// The number of disks or parts that its extents are spread over, or have copies on.
    pub legs: u64,
}

/// Extents of one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// The name of the disk within the text.
    pub disk: String,
    /// The number of the first extent.
    pub start: u64,
    /// Its length.
    pub count: Extents,
}

impl Area {
    /// The number of the first extent behind it.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.count.0)
    }
}

/// The kind of a logical volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeKind {
    /// Extents of disks: linear, striped.
    Plain,
    /// Several copies of volumes of extents.
    Mirrored,
    /// A volume in a thin pool.
    Thin {
        /// The pool's name.
        pool: String,
        /// Its device number in the pool.
        device: u64,
        /// The name of its origin, while that exists.
        origin: Option<String>,
    },
    /// A thin pool.
    Pool(Pool),
    /// An old-style snapshot; its extents are those of the exception store.
    Snapshot {
        /// The name of its origin.
        origin: String,
    },
}

/// A thin pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The size of a chunk in bytes.
    pub chunk: u64,
    /// The transaction id: LVM's counter of its changes of the pool.
    pub transaction: u64,
    /// New chunks are zeroed before they are visible.
    pub zeroes: bool,
    /// The name of its metadata volume.
    pub metadata: String,
    /// Queued messages that LVM has not sent to the pool, or whose delivery is not confirmed.
    pub messages: Vec<Message>,
}

/// A message to a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Create the device of the volume with this name.
    Create(String),
    /// Delete the device with this number.
    Delete(u64),
}

impl GroupMetadata {
    /// Parses a text; disks whose UUIDs are not `present` count as missing.
    pub(super) fn parse(text: &str, present: impl Fn(&str) -> bool) -> Result<Self, String> {
        let whole = Value::parse(text)?;
        let (name, group) = whole
            .entries()
            .find(|(_, value)| matches!(value, Value::Section(_)))
            .ok_or("it describes no volume group")?;
        let number = |name: &str| {
            let value = group.get(name).and_then(Value::number);
            value.ok_or_else(|| format!("{name} is missing"))
        };
        let mut group_read = Self {
            name: name.to_owned(),
            uuid: uuid(group)?,
            sequence: number("seqno")?,
            tags: group.texts("tags"),
            extent_size: sectors(number("extent_size")?)?,
            text: u64::try_from(text.len()).unwrap_or(u64::MAX),
            largest_text: u64::MAX,
            system_id: group
                .get("system_id")
                .and_then(Value::text)
                .unwrap_or_default()
                .to_owned(),
            refusal: refusal(name, group),
            disks: BTreeMap::new(),
            volumes: BTreeMap::new(),
        };
        for (name, disk) in group
            .get("physical_volumes")
            .into_iter()
            .flat_map(Value::entries)
        {
            let mut disk = PhysicalVolume::parse(disk)?;
            disk.is_missing |= !present(&disk.uuid);
            group_read.disks.insert(name.to_owned(), disk);
        }
        let volumes = group.get("logical_volumes");
        for (name, volume) in volumes.into_iter().flat_map(Value::entries) {
            let parsed = LogicalVolume::parse(name, volume, &group_read.disks)?;
            group_read.take(&parsed.areas);
            group_read.volumes.insert(name.to_owned(), parsed);
        }
        group_read.join_snapshots(volumes);
        group_read.spread(volumes);
        Ok(group_read)
    }

    /// Subtracts the extents of a volume from the free extents of its disks.
    fn take(&mut self, areas: &[Area]) {
        for area in areas {
            if let Some(disk) = self.disks.get_mut(&area.disk) {
                disk.free = disk.free.less(area.count);
            }
        }
    }

    /// Links old-style snapshots, which a third, hidden volume describes.
    fn join_snapshots(&mut self, volumes: Option<&Value<'_>>) {
        for (_, volume) in volumes.into_iter().flat_map(Value::entries) {
            for segment in segments(volume) {
                let word = |name| segment.get(name).and_then(Value::text);
                let (store, merged) = (word("cow_store"), word("merging_store"));
                if let (Some(origin), Some(store)) = (word("origin"), store.or(merged))
                    && let Some(snapshot) = self.volumes.get_mut(store)
                {
                    // LVM itself shows it until it is merged, whatever its flag says.
                    snapshot.is_visible = merged.is_none();
                    snapshot.merges_into = merged.map(|_| origin.to_owned());
                    snapshot.kind = VolumeKind::Snapshot {
                        origin: origin.to_owned(),
                    };
                }
            }
        }
    }

    /// The device-mapper UUID of a volume.
    pub fn mapped_uuid(&self, volume: &LogicalVolume) -> String {
        format!("LVM-{}{}", self.uuid, volume.uuid)
    }

    /// The device-mapper UUID of the pool device that does the work.
    pub fn pool_uuid(&self, pool: &LogicalVolume) -> String {
        format!("LVM-{}{}-tpool", self.uuid, pool.uuid)
    }

    /// Number of free extents on each usable disk, largest first.
    pub fn free(&self) -> Vec<Extents> {
        let usable = self
            .disks
            .values()
            .filter(|disk| disk.is_allocatable && !disk.is_missing);
        let mut free: Vec<Extents> = usable.map(|disk| disk.free).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        free
    }

    /// The old-style snapshots of a volume.
    pub fn snapshots_of<'a>(
        &'a self,
        volume: &'a LogicalVolume,
    ) -> impl Iterator<Item = &'a LogicalVolume> {
        self.volumes.values().filter(|snapshot| {
            matches!(&snapshot.kind, VolumeKind::Snapshot { origin } if *origin == volume.name)
        })
    }

    /// The snapshot of either kind that LVM merges into a volume, or will once that is not in use; there is at most
    /// one.
    pub fn merged_into(&self, volume: &LogicalVolume) -> Option<&LogicalVolume> {
        let mut volumes = self.volumes.values();
        volumes.find(|snapshot| snapshot.merges_into.as_ref() == Some(&volume.name))
    }

    /// The layer over the extents of a volume, or of a part of it, if any.
    pub fn layer_of<'a>(&'a self, volume: &'a LogicalVolume) -> Option<&'a str> {
        let mut all = self.with_parts(volume, |_| true).into_iter();
        all.find_map(|one| one.layer.as_deref())
    }

    /// The extents of disks that a volume uses, on all its legs: those of its parts whose names count.
    pub fn areas(&self, volume: &LogicalVolume, counts: fn(&str) -> bool) -> Vec<Area> {
        let all = self.with_parts(volume, counts).into_iter();
        all.flat_map(|one| one.areas.iter().cloned()).collect()
    }

    /// A volume, its parts whose names count, and theirs, each once: a text can contain cycles.
    fn with_parts<'a>(
        &'a self,
        volume: &'a LogicalVolume,
        counts: fn(&str) -> bool,
    ) -> Vec<&'a LogicalVolume> {
        let mut found = vec![volume];
        let mut seen = BTreeSet::from([volume.name.as_str()]);
        let mut next = 0;
        while let Some(one) = found.get(next) {
            let parts = one.parts.iter().filter(|part| counts(part));
            let parts = parts.filter_map(|part| self.volumes.get(part));
            let new = parts.filter(|part| seen.insert(&part.name));
            found.extend(new.collect::<Vec<_>>());
            next += 1;
        }
        found
    }

    /// The size of a volume in bytes.
    pub fn bytes(&self, volume: &LogicalVolume) -> u64 {
        volume.extents.bytes(self.extent_size)
    }

    /// The pool with this name.
    pub fn pool(&self, name: &str) -> Option<(&LogicalVolume, &Pool)> {
        let volume = self.volumes.get(name)?;
        match &volume.kind {
            VolumeKind::Pool(pool) => Some((volume, pool)),
            _ => None,
        }
    }
}

impl PhysicalVolume {
    fn parse(disk: &Value<'_>) -> Result<Self, String> {
        let extents = disk.get("pe_count").and_then(Value::number);
        let extents = Extents(extents.ok_or("pe_count is missing")?);
        let status = disk.texts("status");
        let flags = disk.texts("flags");
        let has = |word: &str| status.iter().chain(&flags).any(|one| one == word);
        let start = disk.get("pe_start").and_then(Value::number);
        Ok(Self {
            uuid: uuid(disk)?,
            start: sectors(start.ok_or("pe_start is missing")?)?,
            is_missing: has("MISSING"),
            is_allocatable: has("ALLOCATABLE"),
            extents,
            free: extents,
        })
    }
}

impl LogicalVolume {
    fn parse(
        name: &str,
        volume: &Value<'_>,
        disks: &BTreeMap<String, PhysicalVolume>,
    ) -> Result<Self, String> {
        let number =
            |segment: &Value<'_>, name| segment.get(name).and_then(Value::number).unwrap_or(0);
        let status = volume.texts("status");
        let has = |word: &str| status.iter().any(|one| one == word);
        let parts: Vec<&str> = segments(volume).flat_map(parts).collect();
        let areas = segments(volume)
            .flat_map(areas)
            .filter(|area| disks.contains_key(&area.disk));
        Ok(Self {
            name: name.to_owned(),
            uuid: uuid(volume)?,
            tags: volume.texts("tags"),
            is_visible: has("VISIBLE"),
            is_writable: has("WRITE"),
            is_moving: has("PVMOVE") || has("LOCKED"),
            merges_into: segments(volume)
                .find_map(segment::merges_into)
                .map(str::to_owned),
            is_complete: segments(volume).all(segment::has_bytes)
                && !parts
                    .iter()
                    .any(|part| disks.get(*part).is_some_and(|disk| disk.is_missing)),
            is_degraded: false,
            layer: segments(volume).find_map(segment::layer).map(str::to_owned),
            unknown_flag: segments(volume)
                .find_map(segment::unknown_flag)
                .map(str::to_owned),
            extents: segments(volume)
                .map(|segment| Extents(number(segment, "extent_count")))
                .sum(),
            areas: areas.collect(),
            parts: parts
                .into_iter()
                .filter(|part| !disks.contains_key(*part))
                .map(str::to_owned)
                .collect(),
            below: segments(volume)
                .flat_map(segment::below)
                .map(str::to_owned)
                .collect(),
            segments: segments(volume)
                .map(|segment| Segment {
                    kind: segment::kind(segment).to_owned(),
                    legs: segment::legs(segment),
                })
                .collect(),
            kind: segments(volume)
                .find_map(VolumeKind::parse)
                .unwrap_or(VolumeKind::Plain),
        })
    }
}

impl VolumeKind {
    fn parse(segment: &Value<'_>) -> Option<Self> {
        let word = |name| segment.get(name).and_then(Value::text).map(str::to_owned);
        let number = |name| segment.get(name).and_then(Value::number);
        match segment::kind(segment) {
            "thin" => Some(Self::Thin {
                pool: word("thin_pool")?,
                device: number("device_id")?,
                origin: word("origin"),
            }),
            "thin-pool" => Some(Self::Pool(Pool {
                chunk: number("chunk_size")?.checked_mul(512)?,
                transaction: number("transaction_id")?,
                zeroes: number("zero_new_blocks") == Some(1),
                metadata: word("metadata")?,
                messages: segment
                    .entries()
                    .filter(|(name, _)| name.starts_with("message"))
                    .filter_map(|(_, message)| Message::parse(message))
                    .collect(),
            })),
            kind if is_redundant(kind) => Some(Self::Mirrored),
            _ => None,
        }
    }
}

/// The reason why the agent may not use a group, if any.
fn refusal(name: &str, group: &Value<'_>) -> Option<String> {
    let lock = group.get("lock_type").and_then(Value::text);
    let (status, flags) = (group.texts("status"), group.texts("flags"));
    let has = |word: &str| status.iter().chain(&flags).any(|one| one == word);
    if let Some(lock) = lock.filter(|lock| !["", "none"].contains(lock)) {
        return Some(format!(
            "is shared with other hosts by lvmlockd ({lock}), which this agent does not support; use a local volume group for the class"
        ));
    }
    if has("CLUSTERED") {
        return Some(
            "is clustered, which this agent does not support; use a local volume group for the class".to_owned(),
        );
    }
    has("EXPORTED").then(|| format!("is exported; run vgimport {name}"))
}

/// Converts sectors to bytes.
fn sectors(count: u64) -> Result<u64, String> {
    let bytes = count.checked_mul(512);
    bytes.ok_or_else(|| format!("{count} sectors exceed the maximum size"))
}

/// Returns true if segments of this type are redundant.
fn is_redundant(kind: &str) -> bool {
    kind.starts_with("raid") && !kind.starts_with("raid0") || kind == "mirror"
}

impl Message {
    fn parse(message: &Value<'_>) -> Option<Self> {
        let create = message.get("create").and_then(Value::text);
        let delete = message.get("delete").and_then(Value::number);
        create
            .map(|name| Self::Create(name.to_owned()))
            .or(delete.map(Self::Delete))
    }
}

/// The message for a volume with an unknown flag.
pub fn unknown_flag(flag: &str) -> String {
    format!(
        "LVM has set the flag {flag} on it or on one of its parts, which this agent does not know; upgrade this agent"
    )
}

fn uuid(section: &Value<'_>) -> Result<String, String> {
    let id = section.get("id").and_then(Value::text);
    Ok(id.ok_or("an id is missing")?.replace('-', ""))
}

pub(super) fn segments<'a>(volume: &'a Value<'a>) -> impl Iterator<Item = &'a Value<'a>> {
    let segments = volume
        .entries()
        .filter(|(name, _)| name.starts_with("segment"));
    segments.filter_map(|(_, value)| matches!(value, Value::Section(_)).then_some(value))
}

/// The names in a list of names and numbers.
fn area_names<'a>(list: &'a Value<'a>) -> Vec<&'a str> {
    list.items().iter().filter_map(Value::text).collect()
}

/// The extents of disks that a segment uses: one after the other, or, while `pvmove` copies them, all on both disks.
fn areas(segment: &Value<'_>) -> Vec<Area> {
    let list = |name| segment.get(name).map(Value::items).unwrap_or_default();
    let number = |name| segment.get(name).and_then(Value::number).unwrap_or(0);
    let (stripes, copies) = (list("stripes"), list("mirrors"));
    let all = number("extent_count");
    let each = all / u64::try_from(stripes.len() / 2).unwrap_or(1).max(1);
    let stripes = stripes.chunks_exact(2).map(|pair| (pair, each));
    stripes
        .chain(copies.chunks_exact(2).map(|pair| (pair, all)))
        .filter_map(|(pair, count)| {
            let [disk, start] = pair else { return None };
            Some(Area {
                disk: disk.text()?.to_owned(),
                start: start.number()?,
                count: Extents(count),
            })
        })
        .collect()
}

/// All disks and volumes that a segment is made of.
pub(super) fn parts<'a>(segment: &'a Value<'a>) -> impl Iterator<Item = &'a str> {
    let lists = ["stripes", "raids", "raid0_lvs", "mirrors"];
    let listed = lists
        .into_iter()
        .filter_map(|name| segment.get(name))
        .flat_map(area_names);
    let named = ["thin_pool", "pool", "metadata"]
        .into_iter()
        .filter_map(|name| segment.get(name).and_then(Value::text));
    listed.chain(named)
}

/// Parses a text and runs every query on it, and `also` on each volume: an entry point for fuzzers.
#[doc(hidden)]
pub fn read_all(text: &str, also: impl Fn(&LogicalVolume)) {
    let Ok(group) = GroupMetadata::parse(text, |uuid| uuid.len() % 2 == 0) else {
        return;
    };
    let _ = group.free();
    for volume in group.volumes.values() {
        let _ = (group.areas(volume, |_| true), group.layer_of(volume));
        let _ = (group.bytes(volume), group.merged_into(volume));
        let _ = (group.pool(&volume.name), group.snapshots_of(volume).count());
        also(volume);
    }
}
