//! The classes of the configuration file: each a name and a back end.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use drumlin_core::{
    backend::{
        Adoption, Backend,
        directory::{Allocation, Directory, DirectorySettings, Missing},
        lvm::{
            Layout, Lvm, LvmSettings, NewPool, POOL_METADATA, PoolLimits, PoolSize, Provisioning,
            Thick, ThinPool, Wipe,
        },
    },
    host::FileSystem,
    ops::{Class, adoption},
    types::{ClassName, NodeName},
};
use drumlin_crd::Quantity;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FileClass {
    name: String,
    #[serde(default)]
    default: bool,
    directory: Option<FileDirectory>,
    thin: Option<FileThin>,
    thick: Option<FileThick>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileDirectory {
    path: PathBuf,
    #[serde(default)]
    adopt_node: FileNodes,
    #[serde(default)]
    fs_type: Option<String>,
    #[serde(default)]
    allocation: FileAllocation,
    #[serde(default)]
    longest_freeze: FileFreeze,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileThin {
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileThick {
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

/// Maximum duration of the freeze barrier of a group snapshot, in seconds.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(transparent)]
struct FileFreeze(Option<u64>);

/// A thin pool that is created on first use.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileCreate {
    size: String,
    #[serde(default)]
    chunk: Option<String>,
    #[serde(default)]
    metadata: Option<String>,
}

/// One name, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FileNodes {
    One(String),
    Several(Vec<String>),
}

impl Default for FileNodes {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileLayout {
    #[default]
    Linear,
    Striped,
    Raid1,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileWipe {
    #[default]
    Zero,
    Discard,
    None,
}

/// Default size of an exception store, in percent of its volume.
const SNAPSHOT_SIZE: u32 = 20;

fn nothing_twice() -> f64 {
    1.0
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileAllocation {
    #[default]
    Thin,
    Thick,
}

/// This node, and the nodes whose volumes all classes adopt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nodes<'a> {
    pub(super) here: &'a NodeName,
    pub(super) former: &'a [NodeName],
}

/// The classes of the configuration file, the default first. Without any, one directory class in the state directory.
pub(super) fn classes(
    mut file: Vec<FileClass>,
    nodes: &Nodes<'_>,
    state_dir: &Path,
) -> anyhow::Result<Vec<Class>> {
    if file.is_empty() {
        let settings = DirectorySettings {
            path: state_dir.join("images"),
            allocation: Allocation::Thin,
            file_system: FileSystem::Ext4,
            missing: Missing::Create,
            longest_freeze: None,
            node: nodes.here.clone(),
            adoption: adoption(nodes.former.to_vec()),
        };
        return Ok(vec![Class {
            name: "default".parse()?,
            backend: Arc::new(Directory::new(settings)),
        }]);
    }
    let defaults: Vec<&str> = file
        .iter()
        .filter(|class| class.default)
        .map(|class| class.name.as_str())
        .collect();
    match (defaults.as_slice(), file.len()) {
        ([_], _) | ([], 1) => {}
        ([], _) => bail!("classes: no class is the default; set `default: true` on one"),
        (several, _) => bail!(
            "classes: more than one class is the default: {}; keep `default: true` on one",
            several.join(", ")
        ),
    }
    check_directories(&file)?;
    file.sort_by_key(|class| !class.default);
    file.into_iter()
        .enumerate()
        .map(|(index, class)| {
            one_class(&class, nodes).with_context(|| format!("classes[{index}] ({})", class.name))
        })
        .collect()
}

/// Each class cleans up its directory and must not share it.
fn check_directories(file: &[FileClass]) -> anyhow::Result<()> {
    let mut seen: Vec<(&str, &Path)> = Vec::new();
    for class in file {
        let Some(directory) = &class.directory else {
            continue;
        };
        for (name, path) in &seen {
            if directory.path.starts_with(path) || path.starts_with(&directory.path) {
                bail!(
                    "classes: the directories of {name} and {} are the same, or one contains the other; give each class its own directory",
                    class.name
                );
            }
        }
        seen.push((&class.name, &directory.path));
    }
    Ok(())
}

fn one_class(class: &FileClass, nodes: &Nodes<'_>) -> anyhow::Result<Class> {
    let name: ClassName = class.name.parse().context("name")?;
    let backend: Arc<dyn Backend> = match (&class.directory, &class.thin, &class.thick) {
        (Some(directory), None, None) => Arc::new(Directory::new(directory.settings(nodes)?)),
        (None, Some(thin), None) => Arc::new(Lvm::new(thin.settings(&name, nodes)?)),
        (None, None, Some(thick)) => Arc::new(Lvm::new(thick.settings(&name, nodes)?)),
        (None, None, None) => {
            bail!(
                "has no back end; add `directory: {{path: …}}`, `thin: {{volumeGroup: …, pool: …}}` or `thick: {{volumeGroup: …}}`"
            )
        }
        _ => bail!("has more than one back end; keep one of directory, thin and thick"),
    };
    Ok(Class { name, backend })
}

impl FileDirectory {
    fn settings(&self, nodes: &Nodes<'_>) -> anyhow::Result<DirectorySettings> {
        if !self.path.is_absolute() {
            bail!(
                "directory.path {} must be an absolute path",
                self.path.display()
            );
        }
        Ok(DirectorySettings {
            path: self.path.clone(),
            allocation: match self.allocation {
                FileAllocation::Thin => Allocation::Thin,
                FileAllocation::Thick => Allocation::Thick,
            },
            file_system: file_system(self.fs_type.as_deref()).context("directory.fsType")?,
            missing: Missing::Refuse,
            longest_freeze: self
                .longest_freeze
                .limit()
                .context("directory.longestFreeze")?,
            node: nodes.here.clone(),
            adoption: adoption(self.adopt_node.of(nodes).context("directory.adoptNode")?),
        })
    }
}

impl FileThin {
    fn settings(&self, class: &ClassName, nodes: &Nodes<'_>) -> anyhow::Result<LvmSettings> {
        check_lvm_name(&self.volume_group).context("thin.volumeGroup")?;
        check_lvm_name(&self.pool).context("thin.pool")?;
        if !(1.0..=1000.0).contains(&self.overcommit) {
            bail!(
                "thin.overcommit {} must be between 1 (no overcommit) and 1000",
                self.overcommit
            );
        }
        Ok(LvmSettings {
            volume_group: self.volume_group.clone(),
            provisioning: Provisioning::Thin(ThinPool {
                name: self.pool.clone(),
                overcommit: format!("{:.0}", self.overcommit * 100.0).parse()?,
                create: self.create.as_ref().map(FileCreate::pool).transpose()?,
                limits: self.limits()?,
            }),
            class: class.clone(),
            node: nodes.here.clone(),
            file_system: file_system(self.fs_type.as_deref()).context("thin.fsType")?,
            longest_freeze: self.longest_freeze.limit().context("thin.longestFreeze")?,
            adoption: self.adopt_node.adoption(nodes).context("thin.adoptNode")?,
        })
    }

    fn limits(&self) -> anyhow::Result<PoolLimits> {
        let usual = PoolLimits::default();
        let read = |text: &Option<String>, usual: u32| {
            let read = text.as_deref().map(|text| percent(text, 1..=100));
            read.unwrap_or(Ok(usual))
        };
        let data_limit = read(&self.data_limit, usual.data_limit).context("thin.dataLimit")?;
        let limits = PoolLimits {
            data_limit,
            metadata_limit: read(&self.metadata_limit, usual.metadata_limit)
                .context("thin.metadataLimit")?,
            warn_at: read(&self.warn_at, usual.warn_at.min(data_limit)).context("thin.warnAt")?,
        };
        if limits.warn_at > limits.data_limit {
            bail!(
                "thin.warnAt {}% must not exceed thin.dataLimit {}%: the warning would come too late",
                limits.warn_at,
                limits.data_limit
            );
        }
        Ok(limits)
    }
}

impl FileCreate {
    fn pool(&self) -> anyhow::Result<NewPool> {
        const CHUNKS: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 30);
        let chunk = match &self.chunk {
            Some(text) => bytes(text).context("thin.create.chunk")?,
            None => *CHUNKS.start(),
        };
        if !CHUNKS.contains(&chunk) || !chunk.is_power_of_two() {
            bail!("thin.create.chunk {chunk} bytes must be a power of two from 64KiB to 1GiB");
        }
        let metadata = match self.metadata.as_deref() {
            None | Some("auto") => None,
            Some(text) => Some(bytes(text).context("thin.create.metadata")?),
        };
        if let Some(wrong) = metadata.filter(|metadata| !POOL_METADATA.contains(metadata)) {
            bail!(
                "thin.create.metadata {wrong} bytes must be `auto`, or from {} to {} bytes",
                POOL_METADATA.start(),
                POOL_METADATA.end()
            );
        }
        Ok(NewPool {
            size: pool_size(&self.size).context("thin.create.size")?,
            chunk,
            metadata,
        })
    }
}

/// Parses `80%VG`, `100%FREE` or `400GiB`.
fn pool_size(text: &str) -> anyhow::Result<PoolSize> {
    let part = |text: &str| percent(&format!("{text}%"), 1..=100);
    if let Some(number) = text.strip_suffix("%VG") {
        return Ok(PoolSize::OfGroup(part(number)?));
    }
    if let Some(number) = text.strip_suffix("%FREE") {
        return Ok(PoolSize::OfFree(part(number)?));
    }
    let bytes = bytes(text).context("must be a size such as 80%VG, 100%FREE or 400GiB")?;
    if bytes == 0 {
        bail!("must be greater than 0");
    }
    Ok(PoolSize::Data(bytes))
}

/// Parses `64KiB`, or `64Ki` as in Kubernetes.
fn bytes(text: &str) -> anyhow::Result<u64> {
    let binary = text.strip_suffix('B').filter(|rest| rest.ends_with('i'));
    Ok(Quantity(binary.unwrap_or(text).to_owned()).bytes()?)
}

impl FileThick {
    fn settings(&self, class: &ClassName, nodes: &Nodes<'_>) -> anyhow::Result<LvmSettings> {
        check_lvm_name(&self.volume_group).context("thick.volumeGroup")?;
        let reserve = self.reserve.as_deref().map(|text| percent(text, 0..=99));
        let snapshot_size = self
            .snapshot_size
            .as_deref()
            .map(|text| percent(text, 1..=100));
        Ok(LvmSettings {
            volume_group: self.volume_group.clone(),
            provisioning: Provisioning::Thick(Thick {
                layout: self.layout()?,
                reserve: reserve.transpose().context("thick.reserve")?.unwrap_or(0),
                snapshot_size: snapshot_size
                    .transpose()
                    .context("thick.snapshotSize")?
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
            file_system: file_system(self.fs_type.as_deref()).context("thick.fsType")?,
            longest_freeze: self.longest_freeze.limit().context("thick.longestFreeze")?,
            adoption: self.adopt_node.adoption(nodes).context("thick.adoptNode")?,
        })
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
                bail!("thick.stripes: a striped volume needs 2 to {MOST} stripes")
            }
            (FileLayout::Raid1, None, _) => {
                bail!(
                    "thick.mirrors: a raid1 volume needs 1 to {MOST_MIRRORS} mirrors besides the first leg"
                )
            }
            (_, Some(_), _) => bail!("thick.stripes is only allowed with layout striped"),
            (_, None, Some(_)) => bail!("thick.mirrors is only allowed with layout raid1"),
        }
    }
}

impl FileFreeze {
    fn limit(self) -> anyhow::Result<Option<Duration>> {
        // Callers that wait longer would consider the host dead.
        const ALLOWED: std::ops::RangeInclusive<u64> = 1..=600;
        match self.0 {
            Some(seconds) if !ALLOWED.contains(&seconds) => bail!(
                "{seconds} must be between {} and {} seconds",
                ALLOWED.start(),
                ALLOWED.end()
            ),
            limit => Ok(limit.map(Duration::from_secs)),
        }
    }
}

impl FileNodes {
    /// The nodes that a class adopts: its own list, and the list for all classes.
    fn of(&self, nodes: &Nodes<'_>) -> anyhow::Result<Vec<NodeName>> {
        let names = match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names.as_slice(),
        };
        let own: Result<Vec<NodeName>, _> = names.iter().map(|name| name.parse()).collect();
        let mut all = own?;
        nodes.check(&all)?;
        all.extend_from_slice(nodes.former);
        Ok(all)
    }

    fn adoption(&self, nodes: &Nodes<'_>) -> anyhow::Result<Option<Adoption>> {
        let all = self.of(nodes)?;
        Ok((!all.is_empty()).then(|| adoption(all)))
    }
}

impl Nodes<'_> {
    /// Refuses a list of nodes to adopt that contains this node.
    pub(super) fn check(&self, named: &[NodeName]) -> anyhow::Result<()> {
        if named.contains(self.here) {
            bail!(
                "{} is this node itself; name the node that the disks came from",
                self.here
            );
        }
        Ok(())
    }
}

/// Parses `5%` as 5.
fn percent(text: &str, allowed: std::ops::RangeInclusive<u32>) -> anyhow::Result<u32> {
    let number = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let number = number.filter(|number| allowed.contains(number));
    number.with_context(|| {
        format!(
            "{text:?} must be a percentage from {}% to {}%",
            allowed.start(),
            allowed.end()
        )
    })
}

fn file_system(name: Option<&str>) -> anyhow::Result<FileSystem> {
    Ok(name
        .map(str::parse)
        .transpose()?
        .unwrap_or(FileSystem::Ext4))
}

/// Checks a name by the rules of LVM, so that it cannot be mistaken for an option or a path.
fn check_lvm_name(name: &str) -> anyhow::Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    let is_name = (1..=60).contains(&name.len()) && name.bytes().all(allowed);
    if !is_name || name.starts_with('-') || name == "." || name == ".." {
        bail!(
            "{name:?} is not a valid LVM name: it must be 1 to 60 letters, digits, '+', '_', '.' or '-', not beginning with '-'"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(node: &NodeName) -> Nodes<'_> {
        Nodes {
            here: node,
            former: &[],
        }
    }

    fn load(class: &str) -> anyhow::Result<Vec<Class>> {
        let text = format!("[{{name: a, {class}}}]");
        let file: Vec<FileClass> = drumlin_crd::yaml::from_str(&text)?;
        classes(file, &here(&"n".parse()?), Path::new("/state"))
    }

    fn thick(rest: &str) -> anyhow::Result<Thick> {
        let file: FileThick = drumlin_crd::yaml::from_str(&format!("{{volumeGroup: vg0{rest}}}"))?;
        match file
            .settings(&"a".parse()?, &here(&"n".parse()?))?
            .provisioning
        {
            Provisioning::Thick(thick) => Ok(thick),
            other @ Provisioning::Thin(_) => bail!("{other:?}"),
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
    fn a_class_has_one_back_end() {
        assert_eq!(load("thick: {volumeGroup: vg0}").unwrap().len(), 1);
        assert_eq!(load("thin: {volumeGroup: vg0, pool: p}").unwrap().len(), 1);
        for wrong in [
            "thick: {volumeGroup: vg0}, directory: {path: /a}",
            "thick: {volumeGroup: vg0}, thin: {volumeGroup: vg0, pool: p}",
            "thick: {volumeGroup: -vg0}",
            "thin: {volumeGroup: vg0, pool: a/b}",
            "thin: {volumeGroup: vg0, pool: p, overcommit: 0.5}",
        ] {
            assert!(load(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_time_that_writers_may_wait_has_bounds() {
        for (kind, class) in [
            ("thick", "volumeGroup: vg0"),
            ("thin", "volumeGroup: vg0, pool: p"),
            ("directory", "path: /a"),
        ] {
            let load =
                |seconds: &str| load(&format!("{kind}: {{{class}, longestFreeze: {seconds}}}"));
            for allowed in ["1", "60", "600"] {
                load(allowed).unwrap();
            }
            for wrong in ["0", "601", "5000000000"] {
                let error = format!("{:#}", load(wrong).unwrap_err());
                assert!(error.contains(&format!("{kind}.longestFreeze")), "{error}");
                assert!(error.contains("between 1 and 600"), "{error}");
            }
        }
        let file = "{volumeGroup: vg0, longestFreeze: 5}";
        let file: FileThick = drumlin_crd::yaml::from_str(file).unwrap();
        let node = "n".parse().unwrap();
        let settings = file.settings(&"a".parse().unwrap(), &here(&node));
        let limit = settings.unwrap().longest_freeze;
        assert_eq!(limit, Some(Duration::from_secs(5)));
    }

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
