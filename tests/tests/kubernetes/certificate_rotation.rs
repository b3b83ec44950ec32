//! Certificates are rotated under an agent that runs.

use std::{fs, path::Path};

use drumlin_tests::{agent::Options, cluster::Cluster, programs::program, storage::Scratch};

use crate::node::Node;

/// Another authority, the server's certificate and an administrator's by it; then the server is started anew, which ends
/// all connections. Those that know either authority can go on.
const ROTATE: &str = r#"
set -euo pipefail
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=next -keyout next.key -out next.crt
sign() {
    printf 'extendedKeyUsage=serverAuth,clientAuth\n%s\n' "$3" > "$1.extensions"
    openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "next-$1.key" -out "$1.request"
    openssl x509 -req -in "$1.request" -CA next.crt -CAkey next.key -CAcreateserial -days 1 -extfile "$1.extensions" -out "next-$1.crt"
}
sign server /CN=kube-apiserver subjectAltName=IP:127.0.0.1
sign admin /O=system:masters/CN=admin ''
cat next.crt >> authority.crt
cp next-server.crt server.crt
cp next-server.key server.key
"#;

const RESTART: &str = r#"
set -euo pipefail
pid=$(cat kube-apiserver.pid)
kill -9 "$pid"
while kill -0 "$pid" 2> /dev/null; do sleep 0.1; done
bash kube-apiserver.command
until kubectl get --raw /readyz > /dev/null 2>&1; do sleep 0.1; done
"#;

fn run(script: &str, directory: &Path, kubeconfig: &Path) {
    let mut bash = program("bash");
    bash.args(["-c", script])
        .env("KUBECONFIG", kubeconfig)
        .current_dir(directory);
    let output = bash.output().expect("bash can be started");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_goes_on_when_authority_and_certificate_are_rotated() {
    let cluster = Cluster::own();
    let directory = cluster.kubeconfig().parent().unwrap().to_owned();
    let scratch = Scratch::new();
    // The agent knows the server by files of its own.
    let text = fs::read_to_string(cluster.kubeconfig()).unwrap();
    let kubeconfig = scratch.path().join("kubeconfig");
    let own = text.replace(
        directory.to_str().unwrap(),
        scratch.path().to_str().unwrap(),
    );
    fs::write(&kubeconfig, own).unwrap();
    let copy = |from: &str, to: &str| {
        fs::copy(directory.join(from), scratch.path().join(to)).unwrap();
    };
    for name in ["authority.crt", "admin.crt", "admin.key"] {
        copy(name, name);
    }
    let seen = Cluster::known_by(&kubeconfig);
    let node = Node::with(&seen, Options::default()).await;
    let space = cluster.namespace();
    space.apply(&node.volume("before", "16Mi", "deletionPolicy: Delete"));
    space.until_ready("dv/before");

    run(ROTATE, &directory, cluster.kubeconfig());
    copy("next.crt", "authority.crt");
    copy("next-admin.crt", "admin.crt");
    copy("next-admin.key", "admin.key");
    run(RESTART, &directory, cluster.kubeconfig());
    space.apply(&node.volume("after", "16Mi", "deletionPolicy: Delete"));
    space.until_ready("dv/after");
    space.kubectl(&["delete", "dv", "--all", "--timeout=60s"]);
}
