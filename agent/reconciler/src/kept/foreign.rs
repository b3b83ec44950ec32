//! Volumes that others made: listed, and adopted with a manifest for them.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use drumlin_crd::{
    FsType, ObjectKey, Quantity, Volume, VolumeDeletionPolicy, VolumeMode, VolumeMount, VolumeSpec,
    names, to_yaml,
};
use drumlin_proto::drumlin::v1::{AdoptVolumeRequest, AdoptVolumeResponse, ForeignVolume};
use serde::Serialize;

use super::{BothSides, failed, giving::check_names, is_live};
use crate::{
    Error,
    client::Client,
    record::Record,
    requests::{AdminRequest, Requests},
    status::{Form, align, shown},
};

/// A volume that others made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// `GROUP/NAME` of a logical volume, or the path of an image file.
    pub source: String,
    /// The size, exactly.
    pub size: String,
    /// The class that it would be in; empty if no class can have it.
    pub class: String,
    /// The file system; empty if there is none that the agent mounts.
    pub fs_type: String,
    /// Where it is mounted; empty if it is not.
    pub mount_path: String,
    /// `hand`, `topolvm` or `openebs-lvm`.
    pub maker: String,
    /// Why it cannot be adopted, each with what to do; empty if it can be.
    pub refusals: Vec<String>,
    /// What should be known before it is adopted.
    pub warnings: Vec<String>,
}

/// All volumes that others made, in the storage of the classes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidates {
    /// Sorted by source.
    pub volumes: Vec<Candidate>,
    /// Classes that could not be read, with the error.
    pub unreadable: Vec<String>,
}

/// Lists the volumes that others made. Changes nothing.
///
/// # Errors
/// When the agent does not answer.
pub async fn list_foreign(socket: &Path) -> Result<Candidates, Error> {
    let answer = Client::new(socket)?
        .foreign_volumes()
        .await
        .map_err(failed)?;
    let unreadable = answer.unreadable.into_iter();
    Ok(Candidates {
        volumes: answer.volumes.into_iter().map(Candidate::from).collect(),
        unreadable: unreadable
            .map(|class| format!("class {}: {}", class.name, class.problem))
            .collect(),
    })
}

impl From<ForeignVolume> for Candidate {
    fn from(volume: ForeignVolume) -> Self {
        Self {
            size: size(&volume).to_string(),
            source: volume.source,
            class: volume.class,
            fs_type: volume.fs_type,
            mount_path: volume.mount.map(|mount| mount.path).unwrap_or_default(),
            maker: volume.maker,
            refusals: volume.refusals,
            warnings: volume.warnings,
        }
    }
}

impl Candidates {
    /// The table as text, with the reasons of refusals below it.
    pub fn render(&self, form: Form) -> String {
        if let Some(data) = form.data(self) {
            return data;
        }
        let heads = [
            "SOURCE",
            "SIZE",
            "CLASS",
            "FS",
            "MOUNT",
            "MAKER",
            "ADOPTABLE",
        ];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(self.volumes.iter().map(|volume| {
            let adoptable = if volume.refusals.is_empty() {
                "yes"
            } else {
                "no"
            };
            let cells = [
                &volume.source,
                &volume.size,
                &volume.class,
                &volume.fs_type,
                &volume.mount_path,
                &volume.maker,
                adoptable,
            ];
            cells.map(shown).to_vec()
        }));
        let mut text = String::new();
        if self.volumes.is_empty() {
            text.push_str("no volumes of others in the storage of the classes\n");
        } else {
            align(&mut text, &lines);
        }
        for volume in &self.volumes {
            for refusal in &volume.refusals {
                let _ = writeln!(text, "{}: {refusal}", volume.source);
            }
        }
        for one in &self.unreadable {
            let _ = writeln!(text, "UNREADABLE {one}");
        }
        text
    }
}

/// Which volume is adopted, and as what.
#[derive(Debug, Clone)]
pub struct AdoptionOf {
    /// `GROUP/NAME` or the path of a logical volume, or the path of an image file.
    pub source: String,
    /// Namespace and name of its object; without them they are chosen by the source.
    pub object: Option<(String, String)>,
    /// The class that it comes to; none for the first one that can have it.
    pub class: Option<String>,
}

/// The adoption of a volume that others made, checked and not made yet.
pub struct ForeignAdoption {
    both: BothSides,
    request: AdoptVolumeRequest,
    key: ObjectKey,
    handle: String,
    volume: ForeignVolume,
    state_dir: PathBuf,
}

impl std::fmt::Debug for ForeignAdoption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForeignAdoption")
            .field("source", &self.request.source)
            .finish_non_exhaustive()
    }
}

impl ForeignAdoption {
    /// Checks the adoption. Nothing is changed yet.
    ///
    /// # Errors
    /// With every reason of the agent why the volume cannot be adopted; when the object has another resource; when the
    /// agent does not answer.
    pub async fn of(socket: &Path, state_dir: &Path, adoption: AdoptionOf) -> Result<Self, Error> {
        let both = BothSides::new(socket, state_dir).await?;
        let (namespace, name) = adoption
            .object
            .unwrap_or_else(|| ("default".to_owned(), proposed_name(&adoption.source)));
        let key = ObjectKey {
            kind: "Volume".to_owned(),
            namespace,
            name,
        };
        check_names(&key)?;
        both.check_all_is_known()?;
        // Without a source, so that an object of this name from either source adopts it.
        let owner = [
            (names::OWNER_KIND, &key.kind),
            (names::OWNER_NAMESPACE, &key.namespace),
            (names::OWNER_NAME, &key.name),
        ];
        let owner = owner.map(|(word, value)| (word.to_owned(), value.clone()));
        let request = AdoptVolumeRequest {
            source: adoption.source,
            name: names::csi_name("lv", &key.kind, (&key.namespace, &key.name), None),
            class: adoption.class.unwrap_or_default(),
            owner: BTreeMap::from(owner),
            dry_run: true,
        };
        let answer = both.client.adopt_volume(request.clone()).await;
        let AdoptVolumeResponse { volume_id, volume } = answer.map_err(failed)?;
        let adoption = Self {
            volume: volume.unwrap_or_default(),
            handle: volume_id,
            state_dir: state_dir.to_owned(),
            both,
            request,
            key,
        };
        adoption.check_object()?;
        Ok(adoption)
    }

    /// Refuses an object that has another resource, or for which another one is kept.
    fn check_object(&self) -> Result<(), Error> {
        let mut records = self.both.records.iter();
        let own = records.find(|record| record.key() == self.key && is_live(record));
        let has = own.and_then(Record::handle);
        let kept = self.both.inventory.named(&self.key).iter();
        let mut kept = kept.map(|object| object.object_id.as_str());
        match has.or_else(|| kept.find(|id| *id != self.handle)) {
            Some(has) if has != self.handle => Err(Error::Kept(format!(
                "{} already has {has}; choose another name",
                self.key
            ))),
            _ => Ok(()),
        }
    }

    /// The manifest of the volume as it is now, with comments on what is written and what to know; for programs what is
    /// known as data.
    pub fn render(&self, form: Form) -> String {
        let data = serde_json::json!({
            "handle": self.handle,
            "volume": Candidate::from(self.volume.clone()),
            "manifest": self.object(),
        });
        form.data(&data).unwrap_or_else(|| self.manifest())
    }

    fn manifest(&self) -> String {
        let source = &self.volume.source;
        let mut text = String::new();
        let _ = writeln!(
            text,
            "# {source} ({}) is volume {} of {}.",
            self.volume.maker, self.handle, self.key
        );
        let written = if source.starts_with('/') {
            "its record, and its name: it is renamed within its file system"
        } else {
            "tags of the logical volume, which keeps its name"
        };
        let _ = writeln!(text, "# Adoption writes {written}. No data is written.");
        for warning in &self.volume.warnings {
            let _ = writeln!(text, "# Note: {warning}.");
        }
        if self.volume.mount.is_some() {
            text += "# It stays mounted. Once this object is Ready, remove what else mounts it at a start of the host.\n";
        }
        text + &to_yaml(&serde_json::to_value(self.object()).unwrap_or_default())
    }

    fn object(&self) -> Volume {
        let mount = self.volume.mount.clone();
        let spec = VolumeSpec {
            node_name: self.handle.split('/').next().map(str::to_owned),
            device_class: names::class_of(&self.handle).map(str::to_owned),
            capacity: size(&self.volume),
            volume_mode: VolumeMode::Filesystem,
            fs_type: fs_type(&self.volume.fs_type),
            source: None,
            mount: mount.map(|mount| VolumeMount {
                path: mount.path,
                options: mount.options,
                read_only: mount.read_only,
            }),
            parameters: BTreeMap::new(),
            deletion_policy: VolumeDeletionPolicy::Retain,
        };
        let mut volume = Volume::new(&self.key.name, spec);
        volume.metadata.namespace = Some(self.key.namespace.clone());
        // With it, a manifest that comes before the adoption waits for it, instead of creating an empty volume.
        let adopts = (names::ADOPT.to_owned(), self.handle.clone());
        volume.metadata.annotations = Some(BTreeMap::from([adopts]));
        volume
    }

    /// Adopts the volume. Returns the object and the handle.
    ///
    /// # Errors
    /// As those of [`ForeignAdoption::of`].
    pub async fn run(self) -> Result<(ObjectKey, String), Error> {
        let request = AdoptVolumeRequest {
            dry_run: false,
            ..self.request
        };
        let answer = self.both.client.adopt_volume(request).await;
        let handle = answer.map_err(failed)?.volume_id;
        if self.both.live(&handle).is_none() {
            let request = AdminRequest::adopt(&self.key, &handle);
            Requests::new(&self.state_dir).write(&request)?;
        }
        Ok((self.key, handle))
    }
}

fn size(volume: &ForeignVolume) -> Quantity {
    Quantity::from_bytes(volume.size_bytes.unsigned_abs())
}

fn fs_type(name: &str) -> Option<FsType> {
    let all = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];
    all.into_iter().find(|kind| kind.as_str() == name)
}

/// A name for the object of a volume: the last part of its location, as a valid name.
fn proposed_name(source: &str) -> String {
    let last = source.rsplit('/').next().unwrap_or_default();
    let last = last.strip_suffix(".img").unwrap_or(last);
    let character = |character: char| match character.to_ascii_lowercase() {
        character if character.is_ascii_alphanumeric() => character,
        _ => '-',
    };
    let name: String = last.chars().map(character).collect();
    match name.trim_matches('-') {
        "" => "volume".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proposed_name_of_an_object_is_valid_whatever_the_name_of_the_volume() {
        for (source, name) in [
            ("vg/data", "data"),
            ("vg/Data_1.old+", "data-1-old"),
            (
                "vg/pvc-8376b776-75f9-4786-8311-f8780adfabdb",
                "pvc-8376b776-75f9-4786-8311-f8780adfabdb",
            ),
            ("/srv/images/web.img", "web"),
            ("/srv/images/größe", "gr--e"),
            ("vg/___", "volume"),
        ] {
            assert_eq!(proposed_name(source), name);
            assert!(names::is_subdomain(name), "{name}");
        }
    }
}
