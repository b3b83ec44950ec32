//! Volumes that are handed back to the host.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use drumlin_crd::ObjectKey;
use drumlin_proto::drumlin::v1::{ObjectKind, ReleaseVolumeRequest, ReleaseVolumeResponse};
use serde::Serialize;
use tonic::Code;

use super::{BothSides, failed};
use crate::{
    Error,
    record::Record,
    requests::{AdminRequest, Requests},
    staging, store,
};

/// The handover of a volume to the host, checked and not made yet.
pub struct Release {
    both: BothSides,
    request: ReleaseVolumeRequest,
    orphan: Option<ObjectKey>,
    released: Option<ReleaseVolumeResponse>,
    state_dir: PathBuf,
}

/// A volume that is, or would be, handed back to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// Its handle.
    pub handle: String,
    /// Where the host has it: `GROUP/NAME` of a logical volume, or the path of an image file; not there if it was handed
    /// over before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Where it stays mounted.
    pub mount_paths: Vec<String>,
    /// False after a check alone.
    pub changed: bool,
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Release")
            .field("handle", &self.request.volume_id)
            .finish_non_exhaustive()
    }
}

impl Release {
    /// Checks the handover of the volume with this handle; an image file comes to `path`, or to where it was adopted.
    /// Nothing is changed yet.
    ///
    /// # Errors
    /// When it belongs to an object with a manifest, is no volume, or the agent refuses it.
    pub async fn of(
        socket: &Path,
        state_dir: &Path,
        handle: &str,
        path: Option<&Path>,
    ) -> Result<Self, Error> {
        let both = BothSides::new(socket, state_dir).await?;
        both.check_all_is_known()?;
        if let Some(holder) = both.live(handle) {
            return Err(Error::Kept(format!(
                "{handle} belongs to {}, whose manifest is in {}; remove the object from there first, without deleting its data",
                holder.key(),
                holder.drumlin.file
            )));
        }
        let orphan = both.holder(handle).map(Record::key);
        let object = both.inventory.get(handle);
        let path = path.map(std::path::absolute).transpose();
        let path = path.map_err(|error| Error::Kept(format!("--path: {error}")))?;
        let staging = object.map(|object| staging::directory(state_dir, &object.name, handle));
        let text = |path: Option<PathBuf>| {
            path.map(|path| path.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        let request = ReleaseVolumeRequest {
            volume_id: handle.to_owned(),
            path: text(path),
            staging_target_path: text(staging),
            dry_run: true,
        };
        // After an interruption only the record of the orphan may be left.
        let released = match object {
            None if orphan.is_some() && both.inventory.first_unreadable().is_none() => None,
            None => Some(
                both.find(handle)
                    .map(|_| ReleaseVolumeResponse::default())?,
            ),
            Some(object) if object.kind() != ObjectKind::Volume => {
                return Err(Error::Kept(format!("{handle} is not a volume")));
            }
            Some(_) => {
                let answer = both.client.release_volume(request.clone()).await;
                Some(answer.map_err(failed)?)
            }
        };
        Ok(Self {
            both,
            request,
            orphan,
            released,
            state_dir: state_dir.to_owned(),
        })
    }

    /// The same for the volume of an orphan.
    ///
    /// # Errors
    /// When there is no such object, or it has no volume; and as those of [`Release::of`].
    pub async fn of_orphan(
        socket: &Path,
        state_dir: &Path,
        key: &ObjectKey,
        path: Option<&Path>,
    ) -> Result<Self, Error> {
        let record = store::find(&state_dir.join(store::DIRECTORY), key)?;
        let record = record.ok_or_else(|| store::missing(key))?;
        match record.handle() {
            Some(handle) => Self::of(socket, state_dir, handle, path).await,
            None => Err(Error::Kept(format!(
                "{key}: nothing was created for it yet"
            ))),
        }
    }

    /// Describes what happens.
    pub fn shown(&self) -> String {
        let handle = &self.request.volume_id;
        let Some(released) = &self.released else {
            return format!("{handle} is handed over already\n");
        };
        let source = &released.source;
        let how = if source.starts_with('/') {
            "its image file is moved there by a rename"
        } else {
            "the tags of Drumlin are removed from it"
        };
        let mut text =
            format!("{handle} becomes {source} of this host again: {how}; no data is written\n");
        for path in &released.mount_paths {
            let _ = writeln!(text, "  it stays mounted at {path}");
        }
        text
    }

    /// What happens, for programs.
    pub fn released(&self) -> Released {
        let released = self.released.clone();
        let mount_paths = released.iter().flat_map(|one| one.mount_paths.clone());
        Released {
            handle: self.request.volume_id.clone(),
            mount_paths: mount_paths.collect(),
            source: released.map(|released| released.source),
            changed: false,
        }
    }

    /// Hands it over. Returns its location, unless it was handed over before.
    ///
    /// # Errors
    /// Those of the agent.
    pub async fn run(self) -> Result<Option<String>, Error> {
        let request = ReleaseVolumeRequest {
            dry_run: false,
            ..self.request.clone()
        };
        let source = match self.both.client.release_volume(request).await {
            Ok(released) => Some(released.source),
            // By an earlier call.
            Err(failure) if failure.code == Code::NotFound && self.released.is_none() => None,
            Err(failure) => return Err(failed(failure)),
        };
        let staging = &self.request.staging_target_path;
        if !staging.is_empty() {
            // Only an empty directory is removed.
            let _ = fs::remove_dir(staging);
        }
        if let Some(key) = self.orphan {
            let request = AdminRequest::adopt(&key, &self.request.volume_id);
            Requests::new(&self.state_dir).write(&request)?;
        }
        Ok(source)
    }
}
