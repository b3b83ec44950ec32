//! The connection to an API server: its files are replaced at run time when certificates are rotated.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig},
};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tonic::codegen::http::{Request, Response};

use super::watch_rate_limit;
use crate::{Error, blocking::blocking, state::lock};

/// Maximum silence of a watch: the server sends a bookmark every minute.
const SILENCE: Duration = Duration::from_mins(5);
/// Minimum interval between two checks of the files for changes.
const ROUND: Duration = Duration::from_secs(1);
/// The CA certificate of the API server within a pod.
const OF_THE_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// The contents of files, as far as they can be read.
type Contents = BTreeMap<PathBuf, Option<[u8; 32]>>;

/// A client that is rebuilt when its files have changed.
struct ReloadingClient {
    kubeconfig: Option<PathBuf>,
    made: Mutex<BuiltClient>,
}

struct BuiltClient {
    client: Client,
    from: Contents,
    /// The time of the last check of the files; `None` if a request has failed since.
    looked: Option<Instant>,
}

/// Creates a client from a kubeconfig file, or from the in-cluster configuration of this pod.
///
/// # Errors
/// When there is no configuration, or it cannot be read. The server is not contacted yet.
pub(super) async fn client(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let made = make(kubeconfig).await;
    let made =
        made.map_err(|error| Error::Cluster(format!("could not find the API server: {error}")))?;
    let namespace = made.client.default_namespace().to_owned();
    let reach = Arc::new(ReloadingClient {
        kubeconfig: kubeconfig.map(Path::to_owned),
        made: Mutex::new(made),
    });
    let service = tower::service_fn(move |request| {
        let reach = Arc::clone(&reach);
        async move { reach.send(request).await }
    });
    let client = ClientBuilder::new(service, namespace);
    Ok(client.with_layer(&watch_rate_limit::layer()).build())
}

impl ReloadingClient {
    async fn send(&self, request: Request<Body>) -> kube::Result<Response<Body>> {
        let answer = self.client().await.send(request).await;
        if answer.is_err() {
            lock(&self.made).looked = None;
        }
        answer
    }

    /// The client for the present files. An older one ends with its last watch.
    async fn client(&self) -> Client {
        let (client, from) = {
            let mut made = lock(&self.made);
            let client = made.client.clone();
            if made.looked.is_some_and(|looked| looked.elapsed() < ROUND) {
                return client;
            }
            // Concurrent callers need not check, too.
            made.looked = Some(Instant::now());
            (client, made.from.clone())
        };
        if blocking(|| contents(from.keys().cloned())) == from {
            return client;
        }
        match make(self.kubeconfig.as_deref()).await {
            Ok(next) => {
                tracing::info!("API server connection settings reloaded");
                let client = next.client.clone();
                *lock(&self.made) = next;
                client
            }
            // The replacement of several files may be incomplete.
            Err(error) => {
                tracing::warn!(error = %error, "changed API server connection settings could not be loaded; the previous ones still apply");
                client
            }
        }
    }
}

async fn make(kubeconfig: Option<&Path>) -> Result<BuiltClient, String> {
    // Read before the files are used: a change during the use is found by the next check.
    let from = blocking(|| contents(files(kubeconfig)));
    let mut config = match kubeconfig {
        Some(path) => {
            let told = Kubeconfig::read_from(path).map_err(|error| error.to_string())?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(told, &options).await;
            config.map_err(|error| error.to_string())?
        }
        None => Config::infer().await.map_err(|error| error.to_string())?,
    };
    config.read_timeout = Some(SILENCE);
    // Callers retry their requests themselves: a retry layer below them would sleep for minutes, unnoticed.
    config.default_retry = false;
    let client = ClientBuilder::try_from(config).map_err(|error| error.to_string())?;
    Ok(BuiltClient {
        client: client.build(),
        from,
        looked: Some(Instant::now()),
    })
}

/// The files of the connection settings, without those of tokens, which are read again for every request.
fn files(kubeconfig: Option<&Path>) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = kubeconfig.map(Path::to_owned).into_iter().collect();
    let told = if let Some(path) = kubeconfig {
        Kubeconfig::read_from(path)
    } else {
        files.push(OF_THE_POD.into());
        Kubeconfig::read()
    };
    let Ok(told) = told else {
        return files;
    };
    for cluster in told.clusters.into_iter().filter_map(|one| one.cluster) {
        files.extend(cluster.certificate_authority.map(PathBuf::from));
    }
    for user in told.auth_infos.into_iter().filter_map(|one| one.auth_info) {
        let of_the_user = [user.client_certificate, user.client_key];
        files.extend(of_the_user.into_iter().flatten().map(PathBuf::from));
    }
    files
}

fn contents(files: impl IntoIterator<Item = PathBuf>) -> Contents {
    let read = |path: &PathBuf| std::fs::read(path).ok();
    let digest = |content: Vec<u8>| Sha256::digest(content).into();
    files
        .into_iter()
        .map(|path| {
            let content = read(&path).map(digest);
            (path, content)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Starts a server that answers with its name, and keeps watches open for a while; returns its address.
    async fn server(name: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut caller, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut asked = vec![0; 4096];
                    let read = caller.read(&mut asked).await.unwrap();
                    let asked = String::from_utf8_lossy(&asked[..read]).into_owned();
                    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                    let said = format!("{head}{name}");
                    caller.write_all(said.as_bytes()).await.unwrap();
                    if asked.contains("/watch") {
                        tokio::time::sleep(4 * ROUND).await;
                        caller.write_all(b" ends").await.unwrap();
                    }
                });
            }
        });
        place
    }

    fn write(directory: &Path, place: &str) -> PathBuf {
        let path = directory.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: one\nclusters: [{{name: one, cluster: {{server: \"{place}\"}}}}]\nusers: [{{name: one, user: {{}}}}]\ncontexts: [{{name: one, context: {{cluster: one, user: one}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    async fn ask(client: &Client, path: &str) -> String {
        let request = Request::get(path).body(Vec::new()).unwrap();
        client.request_text(request).await.unwrap()
    }

    #[tokio::test]
    async fn files_that_change_are_read_again_and_watches_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (server("first").await, server("second").await);
        let path = write(directory.path(), &first);
        let client = client(Some(&path)).await.unwrap();
        assert_eq!(ask(&client, "/").await, "first");
        let watching = client.clone();
        let watch = tokio::spawn(async move { ask(&watching, "/watch").await });
        // Half of it.
        std::fs::write(&path, "apiVersion: v1\nkind: [").unwrap();
        tokio::time::sleep(ROUND).await;
        assert_eq!(ask(&client, "/").await, "first");
        write(directory.path(), &second);
        let changed = async {
            while ask(&client, "/").await != "second" {
                tokio::time::sleep(ROUND / 10).await;
            }
        };
        let changed = tokio::time::timeout(10 * ROUND, changed).await;
        assert!(changed.is_ok());
        assert_eq!(watch.await.unwrap(), "first ends");
    }

    #[test]
    fn certificates_and_keys_are_among_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: one\nclusters: [{name: one, cluster: {server: \"https://127.0.0.1\", certificate-authority: ca.crt}}]\nusers: [{name: one, user: {client-certificate: one.crt, client-key: one.key, tokenFile: token}}]\n";
        std::fs::write(&path, text).unwrap();
        let names = ["kubeconfig", "ca.crt", "one.crt", "one.key"];
        let expected = names.map(|name| directory.path().join(name));
        assert_eq!(files(Some(&path)), expected);
        let before = contents(expected.clone());
        std::fs::write(&expected[1], "another").unwrap();
        assert_ne!(contents(expected), before);
    }
}
