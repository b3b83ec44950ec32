//! Metrics, as a scraper sees them.

use std::{collections::BTreeSet, path::Path};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::sources::read;

/// What a scrape of a socket is answered.
///
/// # Panics
/// When nobody answers.
pub async fn scrape(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).await.expect("a listener");
    let request = b"GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n";
    stream.write_all(request).await.expect("a request is taken");
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer).await;
    read.expect("an answer");
    answer
}

/// The metrics of an answer that docs/src/metrics.md does not list for `of`: the agent or the controller.
pub fn undocumented(answer: &str, of: &str) -> BTreeSet<String> {
    let page = read("docs/src/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: BTreeSet<&str> = rows
        .filter_map(|row| row.split_once("` | "))
        .filter(|(_, rest)| rest.starts_with(of) || rest.starts_with("both "))
        .map(|(name, _)| name)
        .collect();
    let types = answer
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.map(|line| match line.split_once(' ') {
        Some((name, "counter")) => format!("{name}_total"),
        Some((name, "info")) => format!("{name}_info"),
        Some((name, _)) => name.to_owned(),
        None => line.to_owned(),
    });
    names
        .filter(|name| !listed.contains(name.as_str()))
        .collect()
}
