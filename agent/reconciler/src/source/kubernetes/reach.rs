//! How an API server is reached: by files that are replaced while this runs, when certificates are rotated.

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

/// The longest that a watch may be silent: it is told something every minute.
const SILENCE: Duration = Duration::from_mins(5);
/// It is looked at most this often whether the files are still the same.
const ROUND: Duration = Duration::from_secs(1);
/// Where a pod finds by whom the certificate of its API server is signed.
const OF_THE_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// What there is in files, as far as they can be read.
type Contents = BTreeMap<PathBuf, Option<[u8; 32]>>;

/// A client that is made anew when the files have changed that it was made from.
struct ReloadingClient {
    kubeconfig: Option<PathBuf>,
    made: Mutex<BuiltClient>,
}

struct BuiltClient {
    client: Client,
    from: Contents,
    /// When it was looked whether the files are still the same; never where a request has failed since.
    looked: Option<Instant>,
}

/// A client of the server that a file names, or the environment: the one whose pod this is.
///
/// # Errors
/// When there is none, or its configuration cannot be read. Whether it answers is seen later.
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

    /// The client by what the files say now. One that was made before ends with its last watch.
    async fn client(&self) -> Client {
        let (client, from) = {
            let mut made = lock(&self.made);
            let client = made.client.clone();
            if made.looked.is_some_and(|looked| looked.elapsed() < ROUND) {
                return client;
            }
            // Who asks meanwhile need not look, too.
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
            // One file may be written already, and the other not yet.
            Err(error) => {
                tracing::warn!(error = %error, "changed API server connection settings could not be loaded; the previous ones still apply");
                client
            }
        }
    }
}

async fn make(kubeconfig: Option<&Path>) -> Result<BuiltClient, String> {
    // Before they are used: what changes while they are is seen at the next look.
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
    // Every request is tried again by who needs it: what retries below would sleep for minutes, and hear nothing.
    config.default_retry = false;
    let client = ClientBuilder::try_from(config).map_err(|error| error.to_string())?;
    Ok(BuiltClient {
        client: client.build(),
        from,
        looked: Some(Instant::now()),
    })
}

/// The files that say how a server is reached. Those of tokens are not among them: they are read again all the time.
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

    /// A server that says its name to whoever asks, and lets watches last for a while; where it is.
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
