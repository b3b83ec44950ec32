//! `drumlin agent`: serves CSI until it is stopped.

use std::{path::Path, sync::Arc, time::Duration};

use drumlin_core::{
    host::exec,
    ops::{Classes, Operations},
};
use drumlin_proto::Endpoint;
use drumlin_reconciler::{Cluster, Reconciler, Settings};
use futures::future::{OptionFuture, try_join_all};
use tokio::{net::UnixListener, sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{cluster_member::ClusterMember, hooks::HOOKS, signals::Signals};
use crate::{
    classes::{ClassKeeper, ClassRecord, ClassReload, LabelSource, Reloads},
    cli::AgentArguments,
    config::{Config, Kubelet},
    limits,
    lock::StateLock,
    metrics::{AgentState, Metrics, Publisher},
    registration::{self, Registrar},
    server::{self, Offer},
    service_manager::{Service, ServiceManager},
    socket::Socket,
    telemetry::{self, Exporter},
    trash,
};

/// Timeout for in-flight operations at shutdown; a repeated call completes or undoes those that remain. Together with
/// twice the grace period below, and the half second of the last export of traces, it stays below the ten seconds that
/// service managers commonly allow.
const PATIENCE: Duration = Duration::from_secs(8);
/// Grace period for open calls and for the reconciler, after all operations have ended.
const GRACE: Duration = Duration::from_millis(500);

/// Runs the agent, and also the reconciler if a source of objects is configured.
pub(crate) async fn run(arguments: AgentArguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments)?;
    let (exporter, metrics) = observe(&config)?;
    check_host()?;
    raise_limits();
    let _lock = StateLock::take(&config.state_dir)?;
    check_classes(&config, &arguments)?;
    // Before the first operation: from here on a signal shuts the agent down in order.
    let signals = Signals::new()?.telling(ServiceManager::of_environment());
    let (sockets, listeners) = bind(&config)?;
    let publisher = Publisher::bind(&config.metrics).await?;
    let (settings, cluster) = reconciling(&config, &arguments);
    let source = match &cluster {
        None => LabelSource::Configuration,
        Some(_) => LabelSource::Cluster,
    };
    let mut keeper = ClassKeeper::new(config.classes, source, &config.state_dir);
    let operations = Operations::new(config.settings, Classes::new(keeper.start().await));
    operations.recover().await;
    let member = cluster.as_ref().map(|cluster| {
        let node = operations.settings().node.as_str();
        ClusterMember::new(cluster, config.endpoint.path(), node, &arguments.namespace)
    });
    let member = OptionFuture::from(member).await.transpose()?;
    let reconciler = OptionFuture::from(settings.map(Reconciler::new));
    let reconciler = reconciler.await.transpose()?;
    tracing::info!(
        endpoint = %config.endpoint,
        node = %operations.settings().node,
        version = crate::VERSION,
        "agent started"
    );
    let stop = CancellationToken::new();
    let requested = Arc::new(Notify::new());
    let told = tell_manager(&config.endpoint, &operations, reconciler.as_ref(), &stop)?;
    let rescan = reconciler.as_ref().and_then(Reconciler::rescan);
    let hang_up = rescan.into_iter().chain([Arc::clone(&requested)]).collect();
    tokio::spawn(signals.watch(stop.clone(), hang_up));
    let labels = member.as_ref().map(ClusterMember::labels);
    let reload = ClassReload::new(keeper, &operations, arguments, config.fixed);
    tokio::spawn(reload.run(Reloads { requested, labels }, stop.clone()));
    if let Some(member) = member {
        tokio::spawn(member.run(stop.clone()));
    }
    tokio::spawn(register(config.kubelet, stop.clone()));
    tokio::spawn(trash::watch(Arc::clone(&operations), stop.clone()));
    tokio::spawn(limits::keep(Arc::clone(&operations), stop.clone()));
    let state = AgentState::new(&operations, reconciler.as_ref().map(Reconciler::observer));
    let scraped =
        metrics.map(|metrics| tokio::spawn(publisher.publish(metrics, state, stop.clone())));
    let reconciling = reconciler.map(|reconciler| {
        // If the reconciler stops, the agent exits too, so that the service manager restarts it.
        let ending = stop.clone().drop_guard();
        let reconciling = reconciler.run(stop.clone());
        tokio::spawn(async move {
            let _ending = ending;
            reconciling.await;
        })
    });
    let served = serve_until_stopped(&operations, &config.driver, listeners, &stop).await;
    let followed = match reconciling {
        Some(reconciling) => tokio::time::timeout(GRACE, reconciling).await,
        None => Ok(Ok(())),
    };
    let _ = told.await;
    drop(sockets);
    if let Some(scraped) = scraped {
        // Its socket and its file are removed.
        let _ = scraped.await;
    }
    tracing::info!("agent stopped");
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    if let Ok(Err(error)) = followed {
        anyhow::bail!("the reconciler stopped unexpectedly: {error}");
    }
    served
}

/// Tells the service manager, if there is one, when the agent is ready, that it is alive, and that it stops.
fn tell_manager(
    endpoint: &Endpoint,
    operations: &Operations,
    reconciler: Option<&Reconciler>,
    stop: &CancellationToken,
) -> anyhow::Result<JoinHandle<()>> {
    let status = format!("serving {endpoint} on node {}", operations.settings().node);
    let service = Service::new(endpoint.path(), &status)?;
    let scanned = reconciler.and_then(Reconciler::scanned);
    Ok(tokio::spawn(service.run(scanned, stop.clone())))
}

/// Refuses a configuration file that has lost its classes. A record that cannot be read refuses nothing.
fn check_classes(config: &Config, arguments: &AgentArguments) -> anyhow::Result<()> {
    let record = ClassRecord::load(&config.state_dir).unwrap_or_default();
    record.check(&config.classes, arguments)
}

/// The settings of the reconciler, if a source of objects is configured, and the cluster, if that is one.
fn reconciling(config: &Config, arguments: &AgentArguments) -> (Option<Settings>, Option<Cluster>) {
    let cluster = arguments.cluster.cluster();
    let is_needed = config.manifests.is_some() || cluster.is_some();
    let settings = is_needed.then(|| Settings {
        socket: config.endpoint.path().to_owned(),
        manifests: config.manifests.clone(),
        prune: config.prune.clone(),
        manifest_owners: config.manifest_owners.clone(),
        cluster: cluster.clone(),
        state_dir: config.state_dir.clone(),
        hooks: HOOKS,
    });
    (settings, cluster)
}

/// What is served at each socket.
type Listeners = Vec<(UnixListener, Offer)>;

/// Starts what observes the agent: the log, the export of traces, and metrics.
fn observe(config: &Config) -> anyhow::Result<(Option<Exporter>, Option<Metrics>)> {
    let exporter = config.otlp_endpoint.as_ref();
    let exporter = exporter.map(|to| Exporter::start(to, config.settings.node.as_str()));
    let exporter = exporter.transpose()?;
    let metrics = config.metrics.is_any().then(Metrics::of_agent);
    telemetry::start(
        config.log_format,
        &config.log_filter,
        exporter.as_ref(),
        metrics.as_ref(),
    )?;
    Ok((exporter, metrics))
}

/// Binds the sockets of the agent; their files are removed when the first value is dropped.
fn bind(config: &Config) -> anyhow::Result<(Vec<Socket>, Listeners)> {
    let (socket, listener) = Socket::bind(config.endpoint.path())?;
    let (mut sockets, mut listeners) = (vec![socket], vec![(listener, Offer::All)]);
    if let Some(endpoint) = &config.addons_endpoint {
        let (socket, listener) = Socket::bind(endpoint.path())?;
        sockets.push(socket);
        listeners.push((listener, Offer::BesideCsi));
    }
    Ok((sockets, listeners))
}

/// Keeps the driver registered with kubelet until `stop`, or ends a former registration, as configured.
async fn register(kubelet: Kubelet, stop: CancellationToken) {
    match kubelet {
        Kubelet::Untouched => {}
        Kubelet::Withdrawn(path) => match registration::remove_stale(&path) {
            Ok(true) => tracing::info!(path = %path.display(), "registration socket removed"),
            Ok(false) => {}
            Err(error) => tracing::warn!(
                path = %path.display(),
                error = %format!("{error:#}"),
                "registration socket not removed"
            ),
        },
        Kubelet::Registered(target) => {
            // If it ends, the agent exits too, so that the service manager restarts it.
            let _ending = stop.clone().drop_guard();
            Registrar::new(target).run(stop).await;
        }
    }
}

/// Serves calls until `stop`, then waits for in-flight operations, including those whose callers have disconnected.
async fn serve_until_stopped(
    operations: &Arc<Operations>,
    driver: &str,
    listeners: Listeners,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let ended = CancellationToken::new();
    let serving = async {
        let serve = async |(listener, offer)| {
            let stopping = stop.clone().cancelled_owned();
            let routes = server::routes(operations, driver, offer)?;
            server::serve(routes, listener, stopping).await
        };
        let answered = try_join_all(listeners.into_iter().map(serve));
        let given_up = async {
            ended.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        let served = tokio::select! {
            served = answered => served.map(drop),
            () = given_up => Ok(()),
        };
        // If one server fails, everything else is stopped too.
        stop.cancel();
        served
    };
    let changing = async {
        stop.cancelled().await;
        let changes = operations.shut_down();
        if tokio::time::timeout(PATIENCE, changes).await.is_err() {
            tracing::warn!(
                "in-flight operations not completed before shutdown; repeating the calls completes or undoes them"
            );
        }
        ended.cancel();
    };
    let (served, ()) = tokio::join!(serving, changing);
    served
}

/// Raises the limit of open files for group snapshots of many volumes: each volume needs two images and a mount.
fn raise_limits() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const WANTED: u64 = 8192;
    let limit = Resource::RLIMIT_NOFILE;
    let raised = getrlimit(limit).and_then(|(soft, hard)| {
        let wanted = WANTED.min(hard);
        if soft < wanted {
            setrlimit(limit, wanted, hard)
        } else {
            Ok(())
        }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "open file limit not raised");
    }
}

/// Checks the requirements on this host; the error names all missing ones in one line.
fn check_host() -> anyhow::Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        anyhow::bail!(
            "the agent needs root to mount file systems; start it as root, for example with sudo"
        );
    }
    let needs = [Need::LoopDevices, Need::E2fsprogs];
    let missing: Vec<Need> = needs.into_iter().filter(|need| !need.is_met()).collect();
    match lacks(&missing) {
        Some(lacks) => anyhow::bail!(lacks),
        None => Ok(()),
    }
}

/// What the built-in class needs of this host.
#[derive(Debug, Clone, Copy)]
enum Need {
    LoopDevices,
    E2fsprogs,
}

impl Need {
    fn is_met(self) -> bool {
        match self {
            Self::LoopDevices => Path::new("/dev/loop-control").exists(),
            Self::E2fsprogs => exec::find("mkfs.ext4").is_some(),
        }
    }

    /// What is missing, and how to get it.
    fn cure(self) -> &'static str {
        match self {
            Self::LoopDevices => "loop devices (modprobe loop)",
            Self::E2fsprogs => "mkfs.ext4 (apt-get install e2fsprogs)",
        }
    }
}

fn lacks(missing: &[Need]) -> Option<String> {
    let cures: Vec<&str> = missing.iter().map(|need| need.cure()).collect();
    (!cures.is_empty()).then(|| format!("this host lacks {}", cures.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, time::Instant};

    #[test]
    fn what_the_host_lacks_is_one_line_that_says_how_to_get_it() {
        assert_eq!(lacks(&[]), None);
        let one = lacks(&[Need::E2fsprogs]).unwrap();
        assert!(one.contains("apt-get install e2fsprogs") && !one.contains("loop"));
        let both = lacks(&[Need::LoopDevices, Need::E2fsprogs]).unwrap();
        assert!(both.contains("modprobe loop") && both.contains(" and mkfs.ext4"));
        assert_eq!(both.lines().count(), 1);
    }

    #[tokio::test]
    async fn a_client_that_says_nothing_does_not_hold_up_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let operations = crate::fuzzing::operations().unwrap();
        let stop = CancellationToken::new();
        let client = UnixStream::connect(&path).unwrap();
        let serving = serve_until_stopped(
            &operations,
            "org.example.test",
            vec![(listener, Offer::All)],
            &stop,
        );
        let begun = Instant::now();
        let stopping = async {
            // The server has taken the connection when it answers the next one.
            let channel = drumlin_proto::connect(&path).unwrap();
            drumlin_proto::csi::v1::identity_client::IdentityClient::new(channel)
                .get_plugin_info(drumlin_proto::csi::v1::GetPluginInfoRequest {})
                .await
                .unwrap();
            stop.cancel();
        };
        let (served, ()) = tokio::join!(serving, stopping);
        served.unwrap();
        assert!(begun.elapsed() < 2 * GRACE + PATIENCE / 4);
        drop(client);
    }
}
