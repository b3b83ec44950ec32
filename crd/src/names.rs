//! Names that manifests and state share.

use sha2::{Digest, Sha256};

/// The API group of all kinds.
pub const GROUP: &str = "drumlin.dev";
/// The version of all kinds.
pub const VERSION: &str = "v1alpha1";
/// What `apiVersion` must say.
pub const API_VERSION: &str = "drumlin.dev/v1alpha1";

/// `absent` destroys what the object stands for, by its `deletionPolicy`, and keeps the object.
pub const STATE: &str = "drumlin.dev/state";
/// Any new value makes the object be looked at now.
pub const RECONCILE_AT: &str = "drumlin.dev/reconcile-at";
/// `true` leaves the object alone.
pub const PAUSED: &str = "drumlin.dev/paused";
/// The name of a node that is gone for ever: nothing that it had is waited for.
pub const ABANDON: &str = "drumlin.dev/abandon";
/// Keeps an object at the API server until the agent has nothing of it any more.
pub const FINALIZER: &str = "drumlin.dev/agent";
/// The handle of what the object shall have instead of something new: an administrator's word.
pub const ADOPT: &str = "drumlin.dev/adopt";

/// The policy that keeps it to administrators.
pub const ADOPT_POLICY: &str = "drumlin-adopt";

/// Where the object comes from that something was made for, with what the agent keeps of it: [`OF_DIRECTORY`] or
/// [`OF_CLUSTER`].
pub const OWNER: &str = "drumlin.dev/owner";
/// It comes from a file.
pub const OF_DIRECTORY: &str = "dir";
/// It comes from an API server.
pub const OF_CLUSTER: &str = "kube";
/// Its kind.
pub const OWNER_KIND: &str = "drumlin.dev/kind";
/// Its namespace.
pub const OWNER_NAMESPACE: &str = "drumlin.dev/namespace";
/// Its name.
pub const OWNER_NAME: &str = "drumlin.dev/name";
/// What makes an object that is made again another one.
pub const INCARNATION: &str = "drumlin.dev/incarnation";
/// The id of its namespace.
pub const TENANT: &str = "drumlin.dev/namespace-uid";
/// `true` when the object has let go of it.
pub const RELEASED: &str = "drumlin.dev/released";
/// So many members a group can have.
pub const MOST_MEMBERS: usize = 1024;
/// The claim that a provisioner has made a volume for.
pub const CLAIM: &str = "csi.storage.k8s.io/pvc/name";
/// The namespace of that claim.
pub const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
/// The handle of a lost volume that shall be made anew, empty.
pub const RECREATE: &str = "drumlin.dev/recreate";

/// The name under which the agent knows an object: `<prefix>-` and 32 hexadecimal digits of its identity.
///
/// An incarnation makes an object that is made again another one; without it, it is the same.
pub fn csi_name(
    prefix: &str,
    kind: &str,
    object: (&str, &str),
    incarnation: Option<&str>,
) -> String {
    use std::fmt::Write;
    let (namespace, name) = object;
    let mut hash = Sha256::new();
    for part in [kind, namespace, name].into_iter().chain(incarnation) {
        // No part can hold a zero byte, so two different lists never read the same.
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut text = format!("{prefix}-");
    for byte in hash.finalize().iter().take(16) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn is_part(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a DNS label (RFC 1123): 1–63 lower-case letters, digits and `-`.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether a text is what Kubernetes calls a DNS subdomain: parts of lower-case letters, digits and `-`, joined by dots,
/// at most 253 bytes. A part may be longer than a label.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// The class that an id of the agent's names (`<node>/<class>/<key>`).
pub fn class_of(handle: &str) -> Option<&str> {
    let class = handle.rsplit('/').nth(1)?;
    is_label(class).then_some(class)
}

/// The node that an id of the agent's names (`<node>/<class>/<key>`).
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
