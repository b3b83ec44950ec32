//! Names that manifests and state share.

use sha2::{Digest, Sha256};

/// The API group of all kinds.
pub const GROUP: &str = "drumlin.dev";
/// The domain of the details of an error (`google.rpc.ErrorInfo`).
pub const DOMAIN: &str = GROUP;
/// The reason of an error that says how far an operation is, in its details.
pub const IN_PROGRESS: &str = "IN_PROGRESS";
/// The version of all kinds.
pub const VERSION: &str = "v1alpha1";
/// The required value of `apiVersion`.
pub const API_VERSION: &str = "drumlin.dev/v1alpha1";

/// `absent` deletes or releases the storage of the object, according to its `deletionPolicy`, and keeps the object.
pub const STATE: &str = "drumlin.dev/state";
/// Any new value triggers an immediate reconciliation.
pub const RECONCILE_AT: &str = "drumlin.dev/reconcile-at";
/// `true` pauses the reconciliation of the object.
pub const PAUSED: &str = "drumlin.dev/paused";
/// The name of a permanently lost node: its resources are not waited for.
pub const ABANDON: &str = "drumlin.dev/abandon";
/// Finalizer: keeps an object on the API server until the agent has deleted or released its storage.
pub const FINALIZER: &str = "drumlin.dev/agent";
/// The handle of a resource that the object adopts instead of creating one; set by an administrator.
pub const ADOPT: &str = "drumlin.dev/adopt";

/// Label of a snapshot that a `SnapshotSchedule` took: the name of the schedule.
pub const SCHEDULE: &str = "drumlin.dev/schedule";

/// The admission policy that restricts it to administrators.
pub const ADOPT_POLICY: &str = "drumlin-adopt";

/// Owner parameter: the source of the object, [`OF_DIRECTORY`] or [`OF_CLUSTER`].
pub const OWNER: &str = "drumlin.dev/owner";
/// The object is from a manifest file.
pub const OF_DIRECTORY: &str = "dir";
/// The object is from an API server.
pub const OF_CLUSTER: &str = "kube";
/// Owner parameter: kind of the object.
pub const OWNER_KIND: &str = "drumlin.dev/kind";
/// Owner parameter: namespace of the object.
pub const OWNER_NAMESPACE: &str = "drumlin.dev/namespace";
/// Owner parameter: name of the object.
pub const OWNER_NAME: &str = "drumlin.dev/name";
/// Owner parameter: incarnation, which distinguishes a recreated object.
pub const INCARNATION: &str = "drumlin.dev/incarnation";
/// Owner parameter: UID of the namespace.
pub const TENANT: &str = "drumlin.dev/namespace-uid";
/// Owner parameter: `true` after the object has released it.
pub const RELEASED: &str = "drumlin.dev/released";
/// Maximum number of members of a group.
pub const MOST_MEMBERS: usize = 1024;
/// The `PersistentVolumeClaim` for which a provisioner created a volume.
pub const CLAIM: &str = "csi.storage.k8s.io/pvc/name";
/// The namespace of that claim.
pub const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
/// The handle of a lost volume that is to be created again, empty.
pub const RECREATE: &str = "drumlin.dev/recreate";

/// The CSI name of an object: `<prefix>-` and 32 hexadecimal digits of a hash of its identity.
///
/// With an incarnation a recreated object has another name; without one it has the same name.
pub fn csi_name(
    prefix: &str,
    kind: &str,
    object: (&str, &str),
    incarnation: Option<&str>,
) -> String {
    let (namespace, name) = object;
    let mut hash = Sha256::new();
    for part in [kind, namespace, name].into_iter().chain(incarnation) {
        // No part can hold a zero byte, so two different lists never read the same.
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    format!("{prefix}-{}", shortened(&hash.finalize()))
}

/// The first 16 bytes of a hash, in hexadecimal digits.
pub fn shortened(hash: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for byte in hash.iter().take(16) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn is_part(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns true if `text` is a DNS label (RFC 1123): 1–63 lower-case letters, digits and `-`.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Returns true if `text` is a DNS subdomain as in Kubernetes: parts of lower-case letters, digits and `-`, joined by
/// dots, at most 253 bytes. A part may be longer than a label.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Returns true if `text` is a key of a label as in Kubernetes: a name, perhaps after the domain of its owner and a `/`.
pub fn is_label_key(text: &str) -> bool {
    match text.rsplit_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_label_name(name),
        None => is_label_name(text),
    }
}

/// Returns true if `text` is a value of a label as in Kubernetes: empty, or a name.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// 1–63 letters, digits, `-`, `_` and `.`, a letter or digit first and last.
fn is_label_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().copied().all(inner)
        && edge(bytes.first())
        && edge(bytes.last())
}

/// The class that a handle names (`<node>/<class>/<key>`).
pub fn class_of(handle: &str) -> Option<&str> {
    let class = handle.rsplit('/').nth(1)?;
    is_label(class).then_some(class)
}

/// The node that a handle names (`<node>/<class>/<key>`).
pub fn node_of(handle: &str) -> Option<&str> {
    let (node, rest) = handle.split_once('/')?;
    (!node.is_empty() && rest.contains('/')).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_object_never_changes_and_no_two_share_one() {
        let name = csi_name("lv", "Volume", ("db", "data"), None);
        assert_eq!(name, csi_name("lv", "Volume", ("db", "data"), None));
        assert_eq!(name.len(), 3 + 32);
        for other in [
            csi_name("lv", "Snapshot", ("db", "data"), None),
            csi_name("lv", "Volume", ("d", "bdata"), None),
            csi_name("lv", "Volume", ("db", "data"), Some("1")),
        ] {
            assert_ne!(name, other);
        }
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        let long = "a".repeat(253);
        for good in ["a", "a.b", "a-1.b-2", &long] {
            assert!(is_subdomain(good), "{good}");
        }
        assert!(!is_subdomain(&format!("{long}a")) && !is_label(&long));
        for bad in ["", "A", "a_b", ".a", "a.", "a..b", "../a", "a/b", "-a"] {
            assert!(!is_subdomain(bad), "{bad}");
        }
    }
}
