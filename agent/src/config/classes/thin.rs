//! Classes of thin volumes.

use anyhow::{Context, bail};
use drumlin_core::{
    backend::lvm::{
        LvmSettings, NewPool, POOL_METADATA, PoolLimits, PoolSize, Provisioning, ThinPool,
    },
    types::ClassName,
};
use drumlin_crd::Quantity;
use serde::{Deserialize, Serialize};

use super::{
    super::key::{AtKey, refused},
    values::{FileBytes, FileFreeze, FileNodes, Nodes, check_lvm_name, file_system, percent},
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {volumeGroup: vg0, pool: pool0}"
)]
pub(super) struct FileThin {
    volume_group: String,
    pool: String,
    #[serde(default)]
    adopt_node: FileNodes,
    #[serde(default)]
    create: Option<FileCreate>,
    #[serde(default = "nothing_twice")]
    overcommit: f64,
    #[serde(default)]
    data_limit: Option<String>,
    #[serde(default)]
    metadata_limit: Option<String>,
    #[serde(default)]
    warn_at: Option<String>,
    #[serde(default)]
    fs_type: Option<String>,
    #[serde(default)]
    longest_freeze: FileFreeze,
}

/// A thin pool that is created on first use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {size: 80%VG}"
)]
struct FileCreate {
    size: FileSize,
    #[serde(default)]
    chunk: Option<FileBytes>,
    #[serde(default)]
    metadata: Option<FileSize>,
}

/// The size of a pool, `80%VG`, `100%FREE` or `400Gi`, or that of its metadata, which may be `auto`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
struct FileSize(FileBytes);

impl From<String> for FileSize {
    fn from(text: String) -> Self {
        Self(FileBytes::of(&text))
    }
}

impl From<FileSize> for String {
    fn from(FileSize(size): FileSize) -> Self {
        size.text().to_owned()
    }
}

fn nothing_twice() -> f64 {
    1.0
}

impl FileThin {
    pub(super) fn settings(&self, class: &ClassName, nodes: &Nodes) -> anyhow::Result<LvmSettings> {
        if !(1.0..=1000.0).contains(&self.overcommit) {
            let overcommit = self.overcommit;
            return refused(
                "thin.overcommit",
                format!("{overcommit} must be between 1 (no overcommit) and 1000"),
            );
        }
        let settings = LvmSettings {
            volume_group: self.volume_group.clone(),
            provisioning: Provisioning::Thin(ThinPool {
                name: self.pool.clone(),
                overcommit: format!("{:.0}", self.overcommit * 100.0).parse()?,
                create: self.create.as_ref().map(FileCreate::pool).transpose()?,
                limits: self.limits()?,
            }),
            class: class.clone(),
            node: nodes.here.clone(),
            file_system: file_system(self.fs_type.as_deref()).at_key("thin.fsType")?,
            longest_freeze: self.longest_freeze.limit().at_key("thin.longestFreeze")?,
            adoption: self.adopt_node.adoption(nodes).at_key("thin.adoptNode")?,
        };
        // Last, since they cannot be left out: whatever else is wrong is told, too.
        check_lvm_name(&self.volume_group).at_key("thin.volumeGroup")?;
        check_lvm_name(&self.pool).at_key("thin.pool")?;
        Ok(settings)
    }

    fn limits(&self) -> anyhow::Result<PoolLimits> {
        let usual = PoolLimits::default();
        let read = |text: &Option<String>, usual: u32| {
            let read = text.as_deref().map(|text| percent(text, 1..=100));
            read.unwrap_or(Ok(usual))
        };
        let data_limit = read(&self.data_limit, usual.data_limit).at_key("thin.dataLimit")?;
        let limits = PoolLimits {
            data_limit,
            metadata_limit: read(&self.metadata_limit, usual.metadata_limit)
                .at_key("thin.metadataLimit")?,
            warn_at: read(&self.warn_at, usual.warn_at.min(data_limit)).at_key("thin.warnAt")?,
        };
        if limits.warn_at > limits.data_limit {
            let (warn_at, limit) = (limits.warn_at, limits.data_limit);
            return refused(
                "thin.warnAt",
                format!(
                    "{warn_at}% must not exceed thin.dataLimit {limit}%: the warning would come too late"
                ),
            );
        }
        Ok(limits)
    }
}

impl FileCreate {
    fn pool(&self) -> anyhow::Result<NewPool> {
        const CHUNKS: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 30);
        let chunk = match &self.chunk {
            Some(chunk) => chunk.bytes().at_key("thin.create.chunk")?,
            None => *CHUNKS.start(),
        };
        if !CHUNKS.contains(&chunk) || !chunk.is_power_of_two() {
            return refused(
                "thin.create.chunk",
                format!(
                    "{} must be a power of two from 64Ki to 1Gi",
                    Quantity::from_bytes(chunk)
                ),
            );
        }
        let metadata = match &self.metadata {
            None => None,
            Some(FileSize(auto)) if auto.text() == "auto" => None,
            Some(FileSize(metadata)) => Some(metadata.bytes().at_key("thin.create.metadata")?),
        };
        if let Some(wrong) = metadata.filter(|metadata| !POOL_METADATA.contains(metadata)) {
            let [wrong, least, most] =
                [wrong, *POOL_METADATA.start(), *POOL_METADATA.end()].map(Quantity::from_bytes);
            return refused(
                "thin.create.metadata",
                format!("{wrong} must be `auto`, or from {least} to {most}"),
            );
        }
        Ok(NewPool {
            size: self.size.pool().at_key("thin.create.size")?,
            chunk,
            metadata,
        })
    }
}

impl FileSize {
    fn pool(&self) -> anyhow::Result<PoolSize> {
        let part = |text: &str| percent(&format!("{text}%"), 1..=100);
        let Self(size) = self;
        if let Some(number) = size.text().strip_suffix("%VG") {
            return Ok(PoolSize::OfGroup(part(number)?));
        }
        if let Some(number) = size.text().strip_suffix("%FREE") {
            return Ok(PoolSize::OfFree(part(number)?));
        }
        let bytes = size.bytes();
        let bytes = bytes.context("must be a size such as 80%VG, 100%FREE or 400Gi")?;
        if bytes == 0 {
            bail!("must be greater than 0");
        }
        Ok(PoolSize::Data(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(options: &str) -> anyhow::Result<PoolLimits> {
        let text = format!("{{volumeGroup: vg0, pool: pool0{options}}}");
        drumlin_crd::yaml::from_str::<FileThin>(&text)?.limits()
    }

    #[test]
    fn a_pool_is_full_when_its_class_says_so() {
        assert_eq!(limits("").unwrap(), PoolLimits::default());
        let asked = PoolLimits {
            data_limit: 90,
            metadata_limit: 50,
            warn_at: 70,
        };
        let options = ", dataLimit: 90%, metadataLimit: 50%, warnAt: 70%";
        assert_eq!(limits(options).unwrap(), asked);
        // The usual warning must not come too late.
        assert_eq!(limits(", dataLimit: 60%").unwrap().warn_at, 60);
        for wrong in [
            ", dataLimit: 0%",
            ", metadataLimit: 101%",
            ", warnAt: 80",
            ", dataLimit: 70%, warnAt: 71%",
        ] {
            assert!(limits(wrong).is_err(), "{wrong}");
        }
    }
}
