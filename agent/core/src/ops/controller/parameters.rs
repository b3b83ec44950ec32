//! The opaque parameters of a request (CSI, `parameters`).

use super::labels::{LIMITS, PARAMETERS};
use crate::{
    Error, Result,
    backend::{Labels, encrypted::Tenant},
    types::{ClassName, Map},
};

/// Prefixes of parameters that are accepted without interpretation: those of the sidecars, and those that describe the
/// owner.
const FOREIGN: [&str; 2] = ["csi.storage.k8s.io/", OWNER];

/// Prefix of parameters that describe the owner.
const OWNER: &str = "drumlin.dev/";

/// The UID of the namespace for which an object was created.
const TENANT: &str = "drumlin.dev/namespace-uid";

/// `true` of an object that has an owner whose object has released it.
const RELEASED: &str = "drumlin.dev/released";

/// The namespace of the claim of a volume, as the provisioner tells it (`--extra-create-metadata`).
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";

/// Returns true if an object created with `made` belongs to a different tenant than a request with `asked`. A request
/// without a tenant, such as from a manifest file of this host, may access any object; an object without a tenant
/// belongs to no tenant.
pub(crate) fn is_of_another(made: &Map, asked: &Map) -> bool {
    let (made, asked) = (made.get(TENANT), asked.get(TENANT));
    asked.is_some() && made != asked
}

/// Like [`is_of_another`], for objects without data of their own: one without a tenant may be given to any tenant.
pub(crate) fn is_handed_to_another(made: &Map, asked: &Map) -> bool {
    made.contains_key(TENANT) && is_of_another(made, asked)
}

/// The tenant whose volume has these labels, as far as its parameters tell.
pub fn tenant(labels: &Labels) -> Tenant {
    let made = labels.get(PARAMETERS);
    let made = made.and_then(|text| serde_json::from_str::<Map>(text).ok());
    let made = made.unwrap_or_default();
    Tenant {
        namespace: made.get(CLAIM_NAMESPACE).cloned(),
        uid: made.get(TENANT).cloned(),
    }
}

/// Refuses parameters that do not describe an owner.
///
/// # Errors
/// [`crate::Kind::Invalid`] naming the parameter.
pub(crate) fn check_owner(owner: &Map) -> Result<()> {
    match owner.keys().find(|key| !key.starts_with(OWNER)) {
        None => Ok(()),
        Some(key) => Err(Error::invalid(format!(
            "owner.{key} must begin with {OWNER}"
        ))),
    }
}

/// The parameters of an object that was created with `made` and now belongs to `owner`.
pub(crate) fn owned(made: &Map, owner: Map) -> Map {
    let rest = made.iter().filter(|(key, _)| !key.starts_with(OWNER));
    let rest = rest.map(|(key, value)| (key.clone(), value.clone()));
    rest.chain(owner).collect()
}

/// The parameters of an object that comes back to its owner from the trash: a request that had it deleted does not mean it any
/// more. None if it has no owner.
pub(crate) fn released(made: Map) -> Option<Map> {
    let has_owner = made.keys().any(|key| key.starts_with(OWNER));
    let released = (RELEASED.to_owned(), "true".to_owned());
    has_owner.then(|| made.into_iter().chain([released]).collect())
}

/// The parameter that names the class.
pub(crate) const CLASS: &str = "class";

fn is_foreign(key: &str) -> bool {
    FOREIGN.iter().any(|prefix| key.starts_with(prefix))
}

/// The parameters that count for idempotency: sidecars may send different parameters of their own with a repeated call.
pub(crate) fn own(parameters: &Map) -> Map {
    let own = parameters.iter().filter(|(key, _)| !is_foreign(key));
    own.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Refuses unknown parameters.
///
/// # Errors
/// [`crate::Kind::Invalid`] naming the parameter.
pub(crate) fn check_foreign(parameters: &Map) -> Result<()> {
    match parameters.keys().find(|key| !is_foreign(key)) {
        None => Ok(()),
        Some(key) => Err(Error::invalid(format!(
            "parameters.{key} is unknown; remove it"
        ))),
    }
}

/// What a `VolumeGroupSnapshotClass` says beside its parameters. There are classes that repeat it among them, those of
/// Kubernetes' storage suites for one; the sidecar acts on it, and nothing here does.
const DELETION_POLICY: (&str, [&str; 2]) = ("deletionPolicy", ["Delete", "Retain"]);

/// Refuses unknown parameters of a group snapshot.
///
/// # Errors
/// [`crate::Kind::Invalid`] naming the parameter.
pub(crate) fn check_group_snapshot(parameters: &Map) -> Result<()> {
    let (key, policies) = DELETION_POLICY;
    let mut rest = parameters.clone();
    match rest.remove(key) {
        Some(policy) if !policies.contains(&policy.as_str()) => Err(Error::invalid(format!(
            "parameters.{key} is {policy:?}; it may be {}",
            policies.join(" or ")
        ))),
        _ => check_foreign(&rest),
    }
}

/// The class that the parameters name. Other parameters without a known prefix are refused.
///
/// # Errors
/// [`crate::Kind::Invalid`] naming the parameter.
pub(crate) fn class(parameters: &Map) -> Result<Option<ClassName>> {
    if let Some(key) = parameters
        .keys()
        .find(|key| *key != CLASS && !is_foreign(key))
    {
        return Err(Error::invalid(format!(
            "parameters.{key} is unknown; the only parameter is class{}",
            if LIMITS.contains(&key.as_str()) {
                "; limits are those of the class, or mutable parameters (a VolumeAttributesClass)"
            } else {
                ""
            }
        )));
    }
    let name = parameters.get(CLASS).map(|name| name.parse());
    name.transpose()
        .map_err(|error: Error| Error::invalid(format!("parameters.class: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn the_tenant_of_a_volume_is_in_its_parameters() {
        let labels = |text: &str| Labels::from([(PARAMETERS.to_owned(), text.to_owned())]);
        let claimed = r#"{"class": "fast", "csi.storage.k8s.io/pvc/namespace": "db"}"#;
        assert_eq!(tenant(&labels(claimed)).to_string(), "namespace db");
        let of_object = tenant(&labels(r#"{"drumlin.dev/namespace-uid": "12"}"#));
        assert_eq!(of_object.uid.as_deref(), Some("12"));
        assert_eq!(tenant(&Labels::new()), Tenant::default());
    }

    #[test]
    fn parameters_name_a_class_or_belong_to_others() {
        let map = |key: &str, value: &str| Map::from([(key.to_owned(), value.to_owned())]);
        let fast = map("class", "fast");
        assert!(is_of_another(&map(TENANT, "1"), &map(TENANT, "2")));
        assert!(!is_of_another(&map(TENANT, "1"), &map(TENANT, "1")));
        assert!(!is_of_another(&map(TENANT, "1"), &fast));
        assert!(is_of_another(&fast, &map(TENANT, "1")));
        assert!(is_handed_to_another(&map(TENANT, "1"), &map(TENANT, "2")));
        assert!(!is_handed_to_another(&fast, &map(TENANT, "1")));
        assert_eq!(class(&fast).unwrap(), Some("fast".parse().unwrap()));
        assert_eq!(own(&fast), fast);
        let foreign = map("drumlin.dev/x", "y");
        assert_eq!(class(&foreign).unwrap(), None);
        assert_eq!(own(&foreign), Map::new());
        check_foreign(&foreign).unwrap();
        for bad in [map("class", "No Class"), map("flavour", "x")] {
            assert_eq!(class(&bad).unwrap_err().kind(), Kind::Invalid);
            assert_eq!(check_foreign(&bad).unwrap_err().kind(), Kind::Invalid);
            assert_eq!(
                check_group_snapshot(&bad).unwrap_err().kind(),
                Kind::Invalid
            );
        }
        check_group_snapshot(&map("deletionPolicy", "Retain")).unwrap();
        let error = check_group_snapshot(&map("deletionPolicy", "Perhaps")).unwrap_err();
        assert!(error.to_string().contains("Delete or Retain"), "{error}");
        assert_eq!(
            check_foreign(&map("deletionPolicy", "Delete"))
                .unwrap_err()
                .kind(),
            Kind::Invalid,
            "a snapshot's class has no such parameter"
        );
    }
}
