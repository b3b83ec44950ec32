//! Health of volumes when some of their parts are lost.

use super::{
    GroupMetadata,
    group::{parts, segments},
    segment,
    text::Value,
};

/// LVM treats the images of raid10 as mirrors of two, whatever the metadata says (`_partial_raid_lv_is_redundant` in
/// its `lib/metadata/raid_manip.c`).
const RAID10_COPIES: usize = 2;

impl GroupMetadata {
    /// Propagates incomplete and unknown parts to the volumes made of them.
    pub(super) fn spread(&mut self, volumes: Option<&Value<'_>>) {
        // Volumes are nested: a pool's data can be cached, the cached volume can be raid with integrity, and that has
        // parts.
        for _ in 0..6 {
            for (name, volume) in volumes.into_iter().flat_map(Value::entries) {
                let parts = segments(volume)
                    .flat_map(|segment| parts(segment).chain(segment::below(segment)));
                let parts: Vec<_> = parts.filter_map(|part| self.volumes.get(part)).collect();
                let has_broken = parts.iter().any(|part| !part.is_complete);
                let has_degraded = parts.iter().any(|part| part.is_degraded);
                let flag = parts.iter().find_map(|part| part.unknown_flag.clone());
                let survives = segments(volume).all(|segment| self.survives(segment));
                let Some(volume) = self.volumes.get_mut(name) else {
                    continue;
                };
                if let Some(flag) = flag {
                    volume.unknown_flag.get_or_insert(flag);
                }
                volume.is_complete &= survives;
                volume.is_degraded |= has_broken || has_degraded && volume.layer.is_some();
                volume.is_degraded &= volume.is_complete;
            }
        }
    }

    /// Returns true if a segment has all its data, by the rule by which LVM activates a volume with missing disks
    /// (`activation/activation_mode=degraded`, its default).
    fn survives(&self, segment: &Value<'_>) -> bool {
        let is_broken = |part: &&str| self.volumes.get(*part).is_some_and(|one| !one.is_complete);
        let mut all = parts(segment).chain(segment::below(segment));
        if !all.any(|part| is_broken(&part)) {
            return true;
        }
        let kind = segment::kind(segment);
        if !kind.starts_with("raid") {
            return false;
        }
        let images: Vec<&str> = parts(segment).collect();
        let has_checksums = images.iter().any(|image| {
            let layer = self
                .volumes
                .get(*image)
                .and_then(|one| one.layer.as_deref());
            layer == Some("integrity")
        });
        if has_checksums {
            return false;
        }
        // Each image is listed after its own metadata, where it has some.
        let count = segment.get("device_count").and_then(Value::number);
        let count = count.and_then(|count| usize::try_from(count).ok());
        let each = (images.len() / count.unwrap_or(1).max(1)).max(1);
        let legs = images.chunks(each).map(|leg| leg.iter().any(is_broken));
        has_enough(kind, &legs.collect::<Vec<_>>())
    }
}

/// Returns true if raid of this type has, or can compute, all its data with these legs broken.
fn has_enough(kind: &str, are_broken: &[bool]) -> bool {
    let broken = are_broken.iter().filter(|is_broken| **is_broken).count();
    match kind {
        "raid1" => broken < are_broken.len(),
        _ if kind.starts_with("raid10") => {
            let around = are_broken.iter().cycle();
            let all: Vec<bool> = around
                .take(are_broken.len() * RAID10_COPIES)
                .copied()
                .collect();
            let mut mirrors = all.chunks(RAID10_COPIES);
            !mirrors.any(|mirror| mirror.iter().all(|is_broken| *is_broken))
        }
        _ if kind.starts_with("raid4") || kind.starts_with("raid5") => broken <= 1,
        _ if kind.starts_with("raid6") => broken <= 2,
        _ => broken == 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// A volume of this type with each image on a separate disk, and a thin pool on it.
    fn text(kind: &str, images: usize) -> String {
        let (mut disks, mut volumes, mut raids) = (String::new(), String::new(), Vec::new());
        for leg in 0..images {
            writeln!(
                disks,
                "pv{leg} {{ id = \"{leg}\" status = [\"ALLOCATABLE\"] pe_start = 2048 pe_count = 10 }}"
            )
            .unwrap();
            for (part, start) in [("rmeta", 0), ("rimage", 1)] {
                writeln!(
                    volumes,
                    "pool_tdata_{part}_{leg} {{ id = \"{part}{leg}\" status = [\"READ\"] segment1 {{ extent_count = 1 \
                     type = \"striped\" stripes = [\"pv{leg}\", {start}] }} }}"
                )
                .unwrap();
                raids.push(format!("\"pool_tdata_{part}_{leg}\""));
            }
        }
        format!(
            "vg0 {{ id = \"vg\" seqno = 1 extent_size = 8192\nphysical_volumes {{\n{disks}}}\nlogical_volumes {{\n\
             thin {{ id = \"thin\" segment1 {{ extent_count = 1 type = \"thin\" thin_pool = \"pool\" device_id = 1 }} }}\n\
             pool {{ id = \"pool\" segment1 {{ extent_count = 1 type = \"thin-pool\" metadata = \"pool_tmeta\" \
             pool = \"pool_tdata\" transaction_id = 1 chunk_size = 128 }} }}\n\
             pool_tdata {{ id = \"tdata\" segment1 {{ extent_count = 1 type = \"{kind}\" device_count = {images} raids = [{}] }} }}\n\
             {volumes}}}\n}}\n",
            raids.join(", ")
        )
    }

    fn without(text: &str, lost: &[usize]) -> GroupMetadata {
        GroupMetadata::parse(text, |disk| !lost.contains(&disk.parse().unwrap())).unwrap()
    }

    #[test]
    fn raid_is_complete_while_no_more_is_lost_than_it_can_replace() {
        let cases: [(&str, usize, &[usize], bool); 18] = [
            ("raid1", 2, &[1], true),
            ("raid1", 2, &[0, 1], false),
            ("raid1", 3, &[0, 2], true),
            ("raid1", 3, &[0, 1, 2], false),
            ("raid4", 3, &[0], true),
            ("raid4", 3, &[0, 2], false),
            ("raid5_ls", 3, &[1], true),
            ("raid5_ls", 3, &[1, 2], false),
            ("raid6_zr", 5, &[1, 4], true),
            ("raid6_zr", 5, &[1, 2, 4], false),
            ("raid10", 4, &[0, 2], true),
            ("raid10", 4, &[1, 2], true),
            ("raid10", 4, &[2, 3], false),
            // The last one and the first are mirrors, too.
            ("raid10", 3, &[0, 2], false),
            ("raid0", 2, &[1], false),
            ("mirror", 2, &[1], false),
            ("mirror", 2, &[], true),
            ("raid1+RESHAPE", 2, &[0, 1], false),
        ];
        for (kind, images, lost, is_complete) in cases {
            let group = without(&text(kind, images), lost);
            for name in ["pool_tdata", "pool", "thin"] {
                assert_eq!(
                    group.volumes[name].is_complete, is_complete,
                    "{name} on {kind} without {lost:?}"
                );
            }
            assert_eq!(
                group.volumes["pool_tdata"].is_degraded,
                is_complete && !lost.is_empty(),
                "{kind} without {lost:?}"
            );
        }
    }

    #[test]
    fn an_image_is_lost_with_its_metadata_and_where_lvm_has_put_errors() {
        let text = text("raid1", 2);
        let lost = text.replace("[\"pv0\", 0]", "[\"pv1\", 0]");
        assert!(!without(&lost, &[1]).volumes["pool"].is_complete);

        let striped = "type = \"striped\" stripes = [\"pv0\", 1]";
        assert!(text.contains(striped));
        let errors = text.replace(striped, "type = \"error\"");
        let data = |lost: &[usize]| without(&errors, lost).volumes["pool_tdata"].clone();
        assert!(data(&[]).is_complete && data(&[]).is_degraded);
        assert!(!data(&[1]).is_complete);
    }

    #[test]
    fn lvm_activates_no_raid_with_checksums_in_part() {
        let image = "pool_tdata_rimage_0 {";
        let text = text("raid1", 2).replace(
            image,
            &format!(
                "{image} id = \"i\" segment1 {{ extent_count = 1 type = \"integrity\" origin = \"origin\" }} }}\norigin {{"
            ),
        );
        assert!(without(&text, &[]).volumes["pool"].is_complete);
        for lost in [0, 1] {
            assert!(!without(&text, &[lost]).volumes["pool"].is_complete);
        }
    }
}
