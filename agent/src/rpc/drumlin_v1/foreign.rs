//! Volumes of others in `drumlin.v1.Inventory`: conversion of their messages.

use drumlin_core::{
    Error, Result,
    ops::{AdoptVolume, Foreign, ReleaseVolume, Run},
    types::{AbsolutePath, Name, Reference},
};
use drumlin_proto::drumlin::v1;

/// The request to adopt a volume.
pub(super) fn adoption(request: v1::AdoptVolumeRequest) -> Result<AdoptVolume> {
    if request.source.is_empty() {
        return Err(Error::invalid("source is missing"));
    }
    let class = (!request.class.is_empty()).then(|| request.class.parse());
    let class = class.transpose();
    Ok(AdoptVolume {
        source: request.source,
        class: class.map_err(|error: Error| Error::invalid(format!("class: {error}")))?,
        name: Name::parse("name", &request.name)?,
        owner: request.owner,
        run: if request.dry_run { Run::Dry } else { Run::Real },
    })
}

/// The request to hand a volume back.
pub(super) fn release(request: &v1::ReleaseVolumeRequest) -> Result<ReleaseVolume> {
    let path = |field, path: &str| {
        let path = (!path.is_empty()).then(|| AbsolutePath::parse(field, path));
        path.transpose()
    };
    Ok(ReleaseVolume {
        volume: Reference::parse("volume_id", &request.volume_id)?,
        to: path("path", &request.path)?.map(|path| path.to_path_buf()),
        staging: path("staging_target_path", &request.staging_target_path)?,
        run: if request.dry_run { Run::Dry } else { Run::Real },
    })
}

/// The message about a volume of others.
pub(super) fn message(foreign: Foreign) -> v1::ForeignVolume {
    let volume = foreign.volume;
    let device = volume
        .device
        .map(|path| path.to_string_lossy().into_owned());
    let fs_type = foreign.file_system.map(|kind| kind.to_string());
    v1::ForeignVolume {
        source: volume.source,
        class: foreign
            .class
            .map(|class| class.to_string())
            .unwrap_or_default(),
        size_bytes: volume.size.to_wire(),
        maker: volume.maker.to_string(),
        device: device.unwrap_or_default(),
        fs_type: fs_type.unwrap_or_default(),
        mount: foreign.mount.map(|mount| v1::ForeignMount {
            path: mount.path,
            options: mount.options,
            read_only: mount.read_only,
        }),
        refusals: volume.refusals,
        warnings: volume.warnings,
    }
}
