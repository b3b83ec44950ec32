//! The socket, and the agent that serves it.

use std::{
    fs, io,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::Path,
    time::Duration,
};

use drumlin_core::host::file_locks;
use drumlin_proto::csi::v1::{ProbeRequest, identity_client::IdentityClient};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::{
    check::Check,
    finding::{Finding, shell},
    processes::holder,
    report::AgentProcess,
    subject::Subject,
};

/// Time for one call of the agent.
const PATIENCE: Duration = Duration::from_secs(8);

/// What is at the path of the socket.
enum Served {
    /// Nothing.
    Missing,
    /// A process with this id, 0 if it is in another container.
    By(u32),
    /// No process; an agent that was killed left it.
    ByNobody,
    /// It cannot be found out.
    Unknown(String),
}

/// Looks at the socket, calls the agent, and compares it with who holds the state directory.
pub(super) async fn check(subject: &Subject) -> Vec<Finding> {
    let socket = subject.socket();
    let mut found = Vec::new();
    let lock = subject.state_dir().join("LOCK");
    let holder = holder(&lock);
    // It may be, where that cannot be seen.
    let is_held = !matches!(holder, Ok(None));
    let down = || {
        Finding::at(
            Check::AgentDown,
            &socket,
            "no agent serves this socket; what is mounted stays mounted, and nothing new is",
        )
        .advice("start the agent, for example with `systemctl start drumlin`")
    };
    match served(&socket) {
        Served::Missing if !is_held => found.push(down()),
        Served::Missing => {}
        Served::ByNobody => {
            found.push(
                Finding::at(
                    Check::StaleSocket,
                    &socket,
                    "no process serves this socket; an agent that was killed left it, and the next one replaces it",
                )
                .command(format!("rm {}", shell(&socket))),
            );
            found.extend((!is_held).then(down));
        }
        Served::Unknown(why) => {
            found.push(Finding::not_checked(socket.display().to_string(), why));
        }
        Served::By(server) => {
            found.extend(call(&socket).await);
            let is_another = |holder: &Option<AgentProcess>| {
                holder.as_ref().is_none_or(|holder| holder.pid != server)
            };
            if holder.as_ref().is_ok_and(is_another) && server != 0 {
                let state = subject.state_dir();
                found.push(
                    Finding::at(
                        Check::OtherConfiguration,
                        &socket,
                        format!(
                            "process {server} serves this socket, and does not hold the state directory {}",
                            state.display()
                        ),
                    )
                    .advice("name the socket and the state directory of one agent: --endpoint, --state-dir, or --config"),
                );
            }
        }
    }
    if let (Served::Missing, Ok(Some(holder))) = (served(&socket), &holder) {
        found.push(
            Finding::at(
                Check::OtherConfiguration,
                &socket,
                format!(
                    "there is no such socket, but process {} holds the state directory ({})",
                    holder.pid, holder.command
                ),
            )
            .advice("name the socket of that process: --endpoint, or --config"),
        );
    }
    found.extend(reconciler(subject));
    found
}

fn served(socket: &Path) -> Served {
    match fs::symlink_metadata(socket) {
        Ok(file) if file.file_type().is_socket() => {}
        Ok(_) => return Served::Unknown("it exists and is not a socket".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Served::Missing,
        Err(error) => return Served::Unknown(error.to_string()),
    }
    match UnixStream::connect(socket) {
        Ok(stream) => {
            let pid = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
            Served::By(u32::try_from(pid).unwrap_or(0))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Served::ByNobody,
        Err(error) => Served::Unknown(error.to_string()),
    }
}

/// Asks the agent whether its classes can be used.
async fn call(socket: &Path) -> Option<Finding> {
    let mut client = match drumlin_proto::connect(socket) {
        Ok(channel) => IdentityClient::new(channel),
        Err(error) => {
            let object = socket.display().to_string();
            return Some(Finding::not_checked(object, error));
        }
    };
    let asked = client.probe(ProbeRequest {});
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(_)) => None,
        Ok(Err(status)) => Some(
            Finding::at(Check::ClassUnavailable, socket, status.message())
                .advice("`drumlin explain` has what to do about a message"),
        ),
        Err(_) => Some(
            Finding::at(
                Check::AgentSilent,
                socket,
                format!("the agent has not answered for {} s", PATIENCE.as_secs()),
            )
            .advice("look at its log and at the kernel's; if it does not go on, restart it"),
        ),
    }
}

/// Whether the manifests are reconciled.
fn reconciler(subject: &Subject) -> Option<Finding> {
    let manifests = subject.manifests()?;
    let lock = subject.state_dir().join("reconciler/LOCK");
    match file_locks::holder(&lock) {
        Ok(Some(_)) => None,
        Ok(None) => Some(
            Finding::at(
                Check::NoReconciler,
                manifests,
                format!(
                    "no process reconciles these manifests: {} is not locked",
                    lock.display()
                ),
            )
            .advice("start the agent with --manifests, or `drumlin reconcile` beside it"),
        ),
        Err(error) => Some(Finding::not_checked(
            lock.display().to_string(),
            error.chain(),
        )),
    }
}
