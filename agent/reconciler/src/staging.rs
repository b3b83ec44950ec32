//! Where volumes are staged: a directory for each below the state directory.

use std::path::{Component, Path, PathBuf};

/// The staging directory of a volume: named by its CSI name, or by the key in its handle where the name is none of a
/// directory. A client of CSI chooses the names of its volumes.
pub(crate) fn directory(state_dir: &Path, csi_name: &str, handle: &str) -> PathBuf {
    let mut parts = Path::new(csi_name).components();
    let is_plain = matches!(
        (parts.next(), parts.next()),
        (Some(Component::Normal(part)), None) if part == csi_name
    );
    let name = if is_plain {
        csi_name
    } else {
        handle.rsplit('/').next().unwrap_or_default()
    };
    state_dir.join("staging").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let handle = "node-a/default/25815182-17ba-5111-9151-c9e71b4945d7";
        let at = |name| directory(Path::new("/state"), name, handle);
        assert_eq!(at("lv-data"), Path::new("/state/staging/lv-data"));
        assert_eq!(at("pvc 1..2"), Path::new("/state/staging/pvc 1..2"));
        let key = "/state/staging/25815182-17ba-5111-9151-c9e71b4945d7";
        for name in ["../../evil", "..", ".", "a/b", "/etc", "a/", "./a", ""] {
            assert_eq!(at(name), Path::new(key), "{name}");
        }
    }
}
