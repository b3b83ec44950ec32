//! Classes of thick volumes.

use drumlin_core::{
    backend::lvm::{Layout, LvmSettings, Provisioning, Thick, Wipe},
    types::ClassName,
};
use serde::{Deserialize, Serialize};

use super::{
    super::key::{AtKey, refused},
    values::{FileFreeze, FileNodes, Nodes, check_lvm_name, file_system, percent},
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {volumeGroup: vg0}"
)]
pub(super) struct FileThick {
    volume_group: String,
    #[serde(default)]
    adopt_node: FileNodes,
    #[serde(default)]
    layout: FileLayout,
    #[serde(default)]
    stripes: Option<u32>,
    #[serde(default)]
    mirrors: Option<u32>,
    #[serde(default)]
    reserve: Option<String>,
    #[serde(default)]
    snapshot_size: Option<String>,
    #[serde(default)]
    wipe: FileWipe,
    #[serde(default)]
    deletes_snapshots: bool,
    #[serde(default)]
    fs_type: Option<String>,
    #[serde(default)]
    longest_freeze: FileFreeze,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileLayout {
    #[default]
    Linear,
    Striped,
    Raid1,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileWipe {
    #[default]
    Zero,
    Discard,
    None,
}

/// Default size of an exception store, in percent of its volume.
const SNAPSHOT_SIZE: u32 = 20;

impl FileThick {
    pub(super) fn settings(&self, class: &ClassName, nodes: &Nodes) -> anyhow::Result<LvmSettings> {
        let reserve = self.reserve.as_deref().map(|text| percent(text, 0..=99));
        let snapshot_size = self
            .snapshot_size
            .as_deref()
            .map(|text| percent(text, 1..=100));
        let settings = LvmSettings {
            volume_group: self.volume_group.clone(),
            provisioning: Provisioning::Thick(Thick {
                layout: self.layout()?,
                reserve: reserve.transpose().at_key("thick.reserve")?.unwrap_or(0),
                snapshot_size: snapshot_size
                    .transpose()
                    .at_key("thick.snapshotSize")?
                    .unwrap_or(SNAPSHOT_SIZE),
                wipe: match self.wipe {
                    FileWipe::Zero => Wipe::Zero,
                    FileWipe::Discard => Wipe::Discard,
                    FileWipe::None => Wipe::None,
                },
                deletes_snapshots: self.deletes_snapshots,
            }),
            class: class.clone(),
            node: nodes.here.clone(),
            file_system: file_system(self.fs_type.as_deref()).at_key("thick.fsType")?,
            longest_freeze: self.longest_freeze.limit().at_key("thick.longestFreeze")?,
            adoption: self.adopt_node.adoption(nodes).at_key("thick.adoptNode")?,
        };
        // Last, since it cannot be left out: whatever else is wrong is told, too.
        check_lvm_name(&self.volume_group).at_key("thick.volumeGroup")?;
        Ok(settings)
    }

    fn layout(&self) -> anyhow::Result<Layout> {
        // Maximum number of stripes in LVM.
        const MOST: u32 = 128;
        const MOST_MIRRORS: u32 = 9;
        // Explicit defaults are accepted: one stripe, no mirror.
        let (stripes, mirrors) = (self.stripes, self.mirrors.filter(|mirrors| *mirrors > 0));
        let stripes = stripes.filter(|stripes| *stripes != 1);
        match (self.layout, stripes, mirrors) {
            (FileLayout::Linear, None, None) => Ok(Layout::Linear),
            (FileLayout::Striped, Some(stripes @ 2..=MOST), None) => Ok(Layout::Striped(stripes)),
            (FileLayout::Raid1, None, None) => Ok(Layout::Mirrored(1)),
            (FileLayout::Raid1, None, Some(mirrors @ 1..=MOST_MIRRORS)) => {
                Ok(Layout::Mirrored(mirrors))
            }
            (FileLayout::Striped, _, None) => {
                let why = format!("a striped volume needs 2 to {MOST} stripes");
                refused("thick.stripes", why)
            }
            (FileLayout::Raid1, None, _) => {
                let why = format!(
                    "a raid1 volume needs 1 to {MOST_MIRRORS} mirrors besides the first leg"
                );
                refused("thick.mirrors", why)
            }
            (_, Some(_), _) => refused("thick.stripes", "is only allowed with layout striped"),
            (_, None, Some(_)) => refused("thick.mirrors", "is only allowed with layout raid1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use drumlin_core::types::NodeName;

    fn here(node: &NodeName) -> Nodes {
        Nodes {
            here: node.clone(),
            former: Vec::new(),
        }
    }

    fn thick(rest: &str) -> anyhow::Result<Thick> {
        let file: FileThick = drumlin_crd::yaml::from_str(&format!("{{volumeGroup: vg0{rest}}}"))?;
        match file
            .settings(&"a".parse()?, &here(&"n".parse()?))?
            .provisioning
        {
            Provisioning::Thick(thick) => Ok(thick),
            other @ Provisioning::Thin(_) => panic!("{other:?}"),
        }
    }

    #[test]
    fn thick_classes_are_read_and_their_contradictions_refused() {
        let plain = thick("").unwrap();
        assert_eq!((plain.layout, plain.wipe), (Layout::Linear, Wipe::Zero));
        assert_eq!((plain.reserve, plain.snapshot_size), (0, 20));
        let full = ", layout: striped, stripes: 3, reserve: 5%, snapshotSize: 100%, wipe: none, deletesSnapshots: true";
        let full = thick(full).unwrap();
        assert_eq!((full.layout, full.wipe), (Layout::Striped(3), Wipe::None));
        assert_eq!((full.reserve, full.snapshot_size), (5, 100));
        assert!(full.deletes_snapshots);
        let spelled_out = thick(", layout: linear, stripes: 1, mirrors: 0").unwrap();
        assert_eq!(spelled_out.layout, Layout::Linear);
        let mirrored = thick(", layout: raid1").unwrap();
        assert_eq!(mirrored.layout, Layout::Mirrored(1));
        for (rest, field) in [
            (", layout: striped", "thick.stripes"),
            (", layout: striped, stripes: 1", "thick.stripes"),
            (", layout: raid1, mirrors: 10", "thick.mirrors"),
            (", layout: raid1, stripes: 2", "thick.stripes"),
            (", mirrors: 1", "thick.mirrors"),
            (", reserve: 5", "5"),
            (", reserve: 100%", "thick.reserve"),
            (", snapshotSize: 0%", "thick.snapshotSize"),
            (", wipe: maybe", "wipe"),
            (", strips: 2", "strips"),
        ] {
            let error = format!("{:#}", thick(rest).unwrap_err());
            assert!(error.contains(field), "{rest}: {error}");
        }
    }

    #[test]
    fn the_freeze_limit_is_in_seconds() {
        let file = "{volumeGroup: vg0, longestFreeze: 5}";
        let file: FileThick = drumlin_crd::yaml::from_str(file).unwrap();
        let node = "n".parse().unwrap();
        let settings = file.settings(&"a".parse().unwrap(), &here(&node));
        let limit = settings.unwrap().longest_freeze;
        assert_eq!(limit, Some(Duration::from_secs(5)));
    }
}
