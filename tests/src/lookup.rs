//! Requests to an API server without a program: tests send many, and `kubectl` takes a fifth of a second of a processor for
//! each.

use std::sync::{LazyLock, OnceLock, mpsc};

use kube::{Client, core::Status};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::agent::PATIENCE;

/// Where requests run, whatever the test runs on.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("a runtime can be made")
});

/// The server did not say whether there is such an object.
#[derive(Debug)]
pub(crate) struct Unanswered;

/// A client of an API server, made when it is first used.
#[derive(Default)]
pub(crate) struct Lookup(OnceLock<Client>);

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
    }
}

/// Runs something to its end.
pub(crate) fn wait_for<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    RUNTIME.spawn(async move {
        let _ = tell.send(task.await);
    });
    told.recv().expect("the task ends")
}

impl Lookup {
    /// An object at a path of the API, as `kubectl` prints it; none if it is not there.
    ///
    /// # Errors
    /// When the server refuses, or does not answer; why, `kubectl` tells.
    pub(crate) fn get(
        &self,
        make: impl FnOnce() -> Client,
        path: &str,
    ) -> Result<Option<Value>, Unanswered> {
        let request = http::Request::get(path).body(Vec::new());
        match self.send(make, request.expect("it is a path")) {
            Ok(mut object) => {
                let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
                metadata.map(|metadata| metadata.remove("managedFields"));
                Ok(Some(object))
            }
            Err(Some(status)) if status.code == 404 => Ok(None),
            Err(_) => Err(Unanswered),
        }
    }

    /// Posts an object, as JSON, to a path of the API.
    ///
    /// # Errors
    /// What the server says that refuses it, or nothing where it does not answer.
    pub(crate) fn post(
        &self,
        make: impl FnOnce() -> Client,
        path: &str,
        object: &Value,
    ) -> Result<Value, Option<Box<Status>>> {
        let request = http::Request::post(path).header("Content-Type", "application/json");
        let request = request.body(object.to_string().into_bytes());
        self.send(make, request.expect("it is a path"))
    }

    /// Sends a request, and waits for its answer.
    fn send(
        &self,
        make: impl FnOnce() -> Client,
        request: http::Request<Vec<u8>>,
    ) -> Result<Value, Option<Box<Status>>> {
        let client = self.0.get_or_init(make).clone();
        let asked = async move {
            let asked = client.request::<Value>(request);
            tokio::time::timeout(PATIENCE, asked).await
        };
        match wait_for(asked) {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(kube::Error::Api(status))) => Err(Some(status)),
            Ok(Err(_)) | Err(_) => Err(None),
        }
    }
}

/// The path of an object such as `dv/data`, if its kind is one of those that tests wait for.
pub(crate) fn path(namespace: &str, object: &str) -> Option<String> {
    let (kind, name) = object.split_once('/')?;
    let (api, plural) = match kind {
        "dv" => ("/apis/drumlin.dev/v1alpha1", "volumes"),
        "dvg" => ("/apis/drumlin.dev/v1alpha1", "volumegroups"),
        "dsnap" => ("/apis/drumlin.dev/v1alpha1", "snapshots"),
        "dgsnap" => ("/apis/drumlin.dev/v1alpha1", "groupsnapshots"),
        "dsched" => ("/apis/drumlin.dev/v1alpha1", "snapshotschedules"),
        "pvc" => ("/api/v1", "persistentvolumeclaims"),
        "pod" => ("/api/v1", "pods"),
        "pv" => return Some(format!("/api/v1/persistentvolumes/{name}")),
        _ => return None,
    };
    Some(format!("{api}/namespaces/{namespace}/{plural}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_known_by_its_path_or_not_at_all() {
        let of = |object| path("ns", object);
        let volume = "/apis/drumlin.dev/v1alpha1/namespaces/ns/volumes/data";
        assert_eq!(of("dv/data").as_deref(), Some(volume));
        let claim = "/api/v1/namespaces/ns/persistentvolumeclaims/data";
        assert_eq!(of("pvc/data").as_deref(), Some(claim));
        let global = "/api/v1/persistentvolumes/pvc-1";
        assert_eq!(of("pv/pvc-1").as_deref(), Some(global));
        assert_eq!(of("volumesnapshot/one"), None);
        assert_eq!(of("data"), None);
    }
}
