//! The names of objects, as a person gives them.

use anyhow::bail;
use drumlin_crd::ObjectKey;

use crate::cli::{NamespaceArguments, ObjectKind, ObjectWord};

/// The namespace and the name of an object: `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("default", name))
}

/// The same in the namespace that `--namespace` names, if it does.
///
/// # Errors
/// If the name has another one.
fn split_in<'a>(name: &'a str, namespace: Option<&'a str>) -> anyhow::Result<(&'a str, &'a str)> {
    match (name.split_once('/'), namespace) {
        (Some((own, _)), Some(asked)) if own != asked => {
            bail!(
                "{name:?} is not in namespace {asked:?}, which --namespace names; give one of them"
            )
        }
        (Some(both), _) => Ok(both),
        (None, namespace) => Ok((namespace.unwrap_or("default"), name)),
    }
}

/// The object that is named behind its kind or by a word of its own; none if only a kind is.
///
/// # Errors
/// If both name one, or two namespaces are named.
pub(super) fn of(
    word: &ObjectWord,
    name: Option<&str>,
    namespace: &NamespaceArguments,
) -> anyhow::Result<Option<ObjectKey>> {
    let kind = word.kind.as_str();
    match (word.name.as_deref(), name) {
        (Some(one), Some(other)) => bail!("{kind}/{one} and {other} are two names; give one"),
        (one, other) => {
            let name = one.or(other);
            name.map(|name| in_namespace(kind, name, namespace))
                .transpose()
        }
    }
}

/// The object of a kind with such a name, in the namespace that is asked for.
///
/// # Errors
/// If the name has another one.
pub(super) fn in_namespace(
    kind: &str,
    name: &str,
    namespace: &NamespaceArguments,
) -> anyhow::Result<ObjectKey> {
    let (namespace, name) = split_in(name, namespace.namespace.as_deref())?;
    Ok(key(kind, (namespace, name)))
}

fn key(kind: &str, (namespace, name): (&str, &str)) -> ObjectKey {
    ObjectKey {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// The object `KIND/NAMESPACE/NAME`, or `KIND/NAME` in the namespace `default`.
///
/// # Errors
/// If the text is neither, or there is no such kind.
pub(super) fn with_kind(text: &str) -> anyhow::Result<ObjectKey> {
    with_kind_in(text, &NamespaceArguments::default())
}

/// The same in the namespace that is asked for.
///
/// # Errors
/// As those of [`with_kind`], and if two namespaces are named.
pub(super) fn with_kind_in(
    text: &str,
    namespace: &NamespaceArguments,
) -> anyhow::Result<ObjectKey> {
    let Some((kind, name)) = text.split_once('/') else {
        bail!(
            "{text:?} names no object; write KIND/NAMESPACE/NAME, or KIND/NAME, such as dv/db/data"
        );
    };
    match ObjectKind::parse(kind) {
        Some(kind) => in_namespace(kind.as_str(), name, namespace),
        None => bail!(
            "{text:?}: there is no kind {kind:?}; kinds are dv (Volume), dvg (VolumeGroup), dsnap (Snapshot), dgsnap \
             (GroupSnapshot) and dsched (SnapshotSchedule)"
        ),
    }
}
