//! The version that every request names (CSI 0.1, `GetSupportedVersions`).

use drumlin_core::{Error, Result};
use drumlin_proto::csi::v0_1::Version;

/// The supported versions.
pub(super) const SUPPORTED: [Version; 1] = [Version {
    major: 0,
    minor: 1,
    patch: 0,
}];

/// Refuses a request with another version or without one.
///
/// # Errors
/// `Invalid`, naming the supported versions.
pub(super) fn check(version: Option<&Version>) -> Result<()> {
    let text = |version: &Version| {
        let Version {
            major,
            minor,
            patch,
        } = version;
        format!("{major}.{minor}.{patch}")
    };
    let supported = SUPPORTED.iter().map(text).collect::<Vec<_>>().join(", ");
    match version {
        Some(version) if SUPPORTED.contains(version) => Ok(()),
        Some(version) => Err(Error::invalid(format!(
            "version {} is not supported; supported: {supported}",
            text(version)
        ))),
        None => Err(Error::invalid(format!(
            "version is missing; supported: {supported}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_supported_passes() {
        let version = |major, minor, patch| Version {
            major,
            minor,
            patch,
        };
        assert!(check(Some(&version(0, 1, 0))).is_ok());
        for wrong in [
            None,
            Some(version(0, 0, 0)),
            Some(version(0, 1, 1)),
            Some(version(0, 2, 0)),
            Some(version(1, 0, 0)),
        ] {
            let error = check(wrong.as_ref()).unwrap_err();
            assert_eq!(error.kind(), drumlin_core::Kind::Invalid);
            assert!(error.to_string().contains("supported: 0.1.0"), "{error}");
        }
    }
}
