//! Beside a real API server: how soon an object is ready, what very many agents cost the server, and what an agent asks
//! of it that has nothing to do.

use std::{
    collections::HashMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::{Agent, Options},
    cluster::{Cluster, is_ready},
    proxy::Proxy,
    storage::Scratch,
};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
    core::Request,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    measure::{Table, median, sized},
    process::resident,
};

/// How many there are of everything.
struct Size {
    applied: usize,
    own: usize,
    agents: usize,
    objects: usize,
    writing: Duration,
    still: Duration,
}

fn size() -> Size {
    let all = Size {
        applied: 60,
        own: 1000,
        agents: 1000,
        objects: 20_000,
        writing: Duration::from_secs(15),
        still: Duration::from_mins(10),
    };
    let few = Size {
        applied: 5,
        own: 20,
        agents: 20,
        objects: 200,
        writing: Duration::from_secs(3),
        still: Duration::from_secs(10),
    };
    sized(all, few)
}

/// So many requests are under way at a time.
const BESIDE: usize = 32;
/// So many status writes a second there are.
const RATE: u32 = 50;

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("drumlin.dev", "v1alpha1", "Volume");
    ApiResource::from_gvk_with_plural(&kind, "volumes")
}

fn volumes(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource())
}

fn volume(name: &str, node: &str) -> DynamicObject {
    let object = json!({
        "apiVersion": "drumlin.dev/v1alpha1",
        "kind": "Volume",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "capacity": "8Mi", "deletionPolicy": "Delete"},
    });
    serde_json::from_value(object).unwrap()
}

async fn agent(cluster: &Cluster, node: &str) -> Agent {
    let mut arguments = vec![
        "--log-format=json".to_owned(),
        "--log-level=debug".to_owned(),
    ];
    arguments.extend(cluster.arguments());
    let options = Options {
        node: Some(node.to_owned()),
        arguments,
        ..Options::default()
    };
    Agent::with(Scratch::new(), options).await
}

/// Makes objects, many at a time.
async fn make(objects: &Api<DynamicObject>, all: impl Iterator<Item = DynamicObject>) {
    let made = stream::iter(all)
        .map(|object| async move { objects.create(&PostParams::default(), &object).await });
    let made: Vec<_> = made.buffer_unordered(BESIDE).try_collect().await.unwrap();
    drop(made);
}

/// Waits until so many objects are ready.
async fn ready(objects: &Api<DynamicObject>, count: usize) {
    loop {
        let all = objects
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        let all = all
            .items
            .iter()
            .map(|one| serde_json::to_value(one).unwrap());
        if all.filter(is_ready).count() == count {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The milliseconds of the agent's calls of a method, as it has logged them.
fn calls(agent: &Agent, method: &str) -> Vec<Duration> {
    let log = agent.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = lines.filter(|line| {
        line["rpc.method"]
            .as_str()
            .is_some_and(|own| own.ends_with(method))
    });
    of.filter_map(|line| line["elapsed_ms"].as_f64())
        .map(|ms| Duration::from_secs_f64(ms / 1000.0))
        .collect()
}

/// From the apply of an object until the server says that it is ready.
pub(crate) async fn latency(table: &mut Table) {
    let (cluster, size) = (Cluster::of_the_lab(), size());
    let (client, space) = (cluster.client().await, cluster.namespace());
    let objects = volumes(&client, &space.name);
    let node = cluster.name("node");
    let agent = agent(&cluster, &node).await;
    let mut times = Vec::new();
    let watched = objects.watch(&WatchParams::default(), "0").await.unwrap();
    let mut watched = watched.boxed();
    for number in 0..size.applied {
        let name = format!("v{number}");
        let begun = Instant::now();
        let how = PatchParams::apply("bench");
        objects
            .patch(&name, &how, &Patch::Apply(volume(&name, &node)))
            .await
            .unwrap();
        while let Some(event) = watched.try_next().await.unwrap() {
            let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
                continue;
            };
            if object.metadata.name.as_deref() == Some(&name)
                && is_ready(&serde_json::to_value(&object).unwrap())
            {
                times.push(begun.elapsed());
                break;
            }
        }
        // A person does not apply as fast as that; writes of status come at a limited rate.
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    let ms = |times| median(times).as_secs_f64() * 1000.0;
    table.most(
        "apply of a Volume until it is ready, median",
        ms(times),
        100.0,
        "ms",
    );
    table.most(
        "of which CreateVolume",
        ms(calls(&agent, "CreateVolume")),
        10.0,
        "ms",
    );
}

/// What an agent asks when it starts again, and when nothing happens.
pub(crate) async fn quiet(table: &mut Table) {
    let (cluster, size) = (Cluster::of_the_lab(), size());
    let proxy = Proxy::start(&cluster).await;
    let (client, space) = (cluster.client().await, cluster.namespace());
    let objects = volumes(&client, &space.name);
    let node = cluster.name("node");
    let count = size.own / 10;
    make(
        &objects,
        (0..count).map(|number| volume(&format!("v{number}"), &node)),
    )
    .await;
    let mut agent = agent(&proxy.cluster, &node).await;
    ready(&objects, count).await;
    // Its events are told by now, too.
    tokio::time::sleep(Duration::from_secs(5)).await;
    agent.kill();
    let before = agent.log().len();
    proxy.does(None);
    agent.restart().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let seen = proxy.does(None);
    let of = |asked: &HashMap<String, usize>, kinds: &[&str]| -> usize {
        kinds
            .iter()
            .map(|kind| asked.get(*kind).copied().unwrap_or_default())
            .sum()
    };
    println!("a restart asked: {:?}", seen.asked);
    let writes = ["PATCH", "POST", "PUT", "DELETE"];
    let figure = |what: &str| format!("restart with {count} objects: {what}");
    // Of its own, and of those that name no node.
    let lists = of(&seen.asked, &["LIST"]) as f64 / 2.0;
    table.most(&figure("lists of the four kinds"), lists, 4.0, "lists");
    table.most(
        &figure("writes"),
        of(&seen.asked, &writes) as f64,
        0.0,
        "writes",
    );
    let log = agent.log();
    let lines = log[before..]
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let changing = lines.filter(|line| {
        let method = line["rpc.method"].as_str().unwrap_or_default();
        [
            "/Create", "/Delete", "Publish", "Stage", "Expand", "/Modify",
        ]
        .iter()
        .any(|word| method.contains(word))
    });
    table.most(
        &figure("changing calls"),
        changing.count() as f64,
        0.0,
        "calls",
    );
    proxy.does(None);
    tokio::time::sleep(size.still).await;
    let seen = proxy.does(None);
    println!("in {} s it asked: {:?}", size.still.as_secs(), seen.asked);
    table.most(
        &format!("steady state for {} s: writes", size.still.as_secs()),
        of(&seen.asked, &writes) as f64,
        0.0,
        "writes",
    );
}

/// What an agent takes that has very many objects.
pub(crate) async fn memory(table: &mut Table) {
    let (cluster, size) = (Cluster::of_the_lab(), size());
    let (client, space) = (cluster.client().await, cluster.namespace());
    let objects = volumes(&client, &space.name);
    let node = cluster.name("node");
    let agent = agent(&cluster, &node).await;
    make(
        &objects,
        (0..size.own).map(|number| volume(&format!("v{number}"), &node)),
    )
    .await;
    ready(&objects, size.own).await;
    let figure = format!("resident memory with {} objects", size.own);
    table.most(&figure, resident(agent.pid()), 60.0, "MiB");
}

/// The processor time that the API server has had, in seconds.
pub(crate) fn server_time() -> f64 {
    let directory = std::env::var("CLUSTER").unwrap();
    let pid = fs::read_to_string(format!("{directory}/kube-apiserver.pid")).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap();
    let rest = stat.rsplit_once(") ").unwrap().1;
    let ticks = rest.split(' ').skip(11).take(2);
    ticks
        .map(|ticks| ticks.parse::<f64>().unwrap())
        .sum::<f64>()
        / 100.0
}

/// The status that an agent gives a volume, as it has written it.
async fn status(cluster: &Cluster) -> Value {
    let (client, space) = (cluster.client().await, cluster.namespace());
    let objects = volumes(&client, &space.name);
    let node = cluster.name("node");
    let _agent = agent(cluster, &node).await;
    make(&objects, [volume("one", &node)].into_iter()).await;
    ready(&objects, 1).await;
    objects.get("one").await.unwrap().data["status"].clone()
}

/// Applies a status to objects one after the other, at a rate and with a path that differs from round to round; says how
/// many times, and what that cost the server.
async fn write(
    objects: &Api<DynamicObject>,
    size: &Size,
    status: &Value,
    round: usize,
) -> (usize, f64) {
    let before = server_time();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    let count = usize::try_from(size.writing.as_secs()).unwrap() * usize::try_from(RATE).unwrap();
    let mut writing = Vec::new();
    for number in 0..count {
        ticks.tick().await;
        let objects = objects.clone();
        let name = format!("v{}", number * 7919 % size.objects);
        let mut body = json!({
            "apiVersion": "drumlin.dev/v1alpha1",
            "kind": "Volume",
            "metadata": {"name": name},
            "status": status,
        });
        body["status"]["mountPath"] = json!(format!("/{round}/{number}"));
        writing.push(tokio::spawn(async move {
            let how = PatchParams::apply("drumlin-agent").force();
            objects
                .patch_status(&name, &how, &Patch::Apply(body))
                .await
                .unwrap();
        }));
    }
    for one in writing {
        one.await.unwrap();
    }
    // What the writes have set off is over by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    (count, server_time() - before)
}

/// Opens watches of a kind at this version, which count what they hear.
pub(crate) async fn open_watches(
    cluster: &Cluster,
    objects: &Api<DynamicObject>,
    version: &str,
    watches: &[WatchParams],
    heard: &Arc<AtomicUsize>,
) -> Vec<JoinHandle<()>> {
    let (begun, mut open) = (Instant::now(), Vec::new());
    let mut clients = Vec::new();
    for _ in 0..watches.len().div_ceil(100) {
        clients.push(cluster.client().await);
    }
    let path = objects.resource_url();
    let mut opened = stream::iter(watches.iter().enumerate())
        .map(|(number, how)| {
            // A watch has a connection of its own, whosever client it is of.
            let client = &clients[number / 100];
            let request = Request::new(path).watch(how, version).unwrap();
            async move {
                let events = client.request_events::<DynamicObject>(request);
                events.await.unwrap().boxed()
            }
        })
        .buffer_unordered(BESIDE);
    while let Some(mut watch) = opened.next().await {
        let heard = Arc::clone(heard);
        open.push(tokio::spawn(async move {
            while let Some(Ok(event)) = watch.next().await {
                if !matches!(event, WatchEvent::Bookmark(_)) {
                    heard.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    let many = open.len();
    println!("{many} watches were opened in {:?}", begun.elapsed());
    open
}

/// The version that watches begin at.
pub(crate) async fn version(objects: &Api<DynamicObject>) -> String {
    let list = kube::api::ListParams::default().limit(1);
    let list = objects.list(&list).await.unwrap();
    list.metadata.resource_version.unwrap()
}

/// What the watches of very many agents cost the server.
pub(crate) async fn fleet(table: &mut Table) {
    let (cluster, size) = (Cluster::of_the_lab(), size());
    let (client, space) = (cluster.client().await, cluster.namespace());
    let objects = volumes(&client, &space.name);
    let fleet = cluster.name("fleet");
    let nodes: Vec<String> = (0..size.agents)
        .map(|number| format!("{fleet}-{number}"))
        .collect();
    make(
        &objects,
        (0..size.objects).map(|number| volume(&format!("v{number}"), &nodes[number % size.agents])),
    )
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    // The same objects are written to each time, and have a status the first time that counts.
    let status = status(&cluster).await;
    write(&objects, &size, &status, 0).await;
    let (_, before) = write(&objects, &size, &status, 1).await;

    let heard = Arc::new(AtomicUsize::new(0));
    let version = version(&objects).await;
    let each = |node: &String| {
        let all = WatchParams::default().timeout(290);
        all.fields(&format!("spec.nodeName={node}"))
    };
    let each: Vec<_> = nodes.iter().map(each).collect();
    let everywhere = Api::all_with(client, &resource());
    let watches = open_watches(&cluster, &everywhere, &version, &each, &heard).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    heard.store(0, Ordering::Relaxed);
    let (written, cost) = write(&objects, &size, &status, 2).await;
    let heard = heard.load(Ordering::Relaxed) as f64;
    for task in watches {
        task.abort();
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (_, after) = write(&objects, &size, &status, 3).await;
    let alone = f64::midpoint(before, after);
    let figure = |what: &str| {
        format!(
            "{} agents, {} objects, {RATE} writes a second: {what}",
            size.agents, size.objects
        )
    };
    println!(
        "{written} writes, {heard} events, {cost:.1} s of the server beside {before:.1} s before and {after:.1} s after"
    );
    let error = (heard / written as f64 - 1.0).abs() * 100.0;
    table.most(&figure("events beside changes, off by"), error, 1.0, "%");
    table.most(
        &figure("the server's processor time beside the same without watches"),
        cost / alone,
        1.6,
        "×",
    );
}
