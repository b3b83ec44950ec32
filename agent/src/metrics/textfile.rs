//! Metrics in a file, for the textfile collector of Prometheus' `node_exporter`.
//!
//! **Invariant:** who reads the file finds a whole scrape, or no file: it is replaced by a rename, and removed at the end.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::bail;
use drumlin_core::fail;
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::page::Page;

/// Interval at which the file is written: Prometheus scrapes about as often.
const INTERVAL: Duration = Duration::from_mins(1);

/// Timeout for the disk of the file: a stop of the agent waits no longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A file that is written anew each minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Textfile(PathBuf);

impl FromStr for Textfile {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let path = Path::new(text);
        if !path.is_absolute() || path.extension().is_none_or(|end| end != "prom") {
            bail!(
                "{text:?} must be an absolute path that ends in .prom, such as /var/lib/prometheus/node-exporter/drumlin.prom: the collector reads no other files"
            );
        }
        Ok(Self(path.to_owned()))
    }
}

impl Textfile {
    /// Writes `page` now and at each interval until `stop`, and then removes the file.
    pub(super) async fn keep(self, page: &Page, stop: &CancellationToken) {
        let mut ticks = interval(fail::time_lapse(INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_failing = false;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let text = stop.run_until_cancelled(page.text()).await;
            let Some(Ok(text)) = text else { continue };
            let path = self.0.clone();
            let mut writing = spawn_blocking(move || replace(&path, &prometheus_text(&text)));
            // Not cut short by the stop: it would create the file again after its removal.
            let written = timeout(PATIENCE, &mut writing).await;
            let failure = match &written {
                Ok(Ok(Ok(()))) => None,
                Ok(Ok(Err(error))) => Some(error.to_string()),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("its disk does not answer".to_owned()),
            };
            if let Some(error) = &failure
                && !is_failing
            {
                tracing::warn!(path = %self.0.display(), error, "file of metrics not written");
            }
            is_failing = failure.is_some();
            // One thread at most waits for a disk.
            if written.is_err() && stop.run_until_cancelled(writing).await.is_none() {
                return;
            }
        }
        self.remove().await;
    }

    /// Removes the file: old values would pass for new ones.
    async fn remove(self) {
        let path = self.0.clone();
        let removing = spawn_blocking(move || fs::remove_file(path));
        if let Ok(Ok(Err(error))) = timeout(PATIENCE, removing).await
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "file of metrics not removed");
        }
    }
}

/// Replaces a file, so that all users may read it. It is not flushed to the disk: after a restart of the host it is old.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let passing = path.with_extension("prom.tmp");
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o644);
    options.open(&passing)?.write_all(text.as_bytes())?;
    fs::rename(&passing, path)
}

/// A text of `OpenMetrics` in the older format of Prometheus, which alone the collector reads: the name of a family is that of
/// its series, a type of labels alone is unknown, and there are no units.
fn prometheus_text(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    // The help of a family stands before its type, by which its name ends.
    let mut help = None;
    for line in text.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ');
        } else if let Some((family, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|told| told.split_once(' '))
        {
            let (end, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            if let Some((_, words)) = help.take().filter(|(about, _)| *about == family) {
                lines.extend(["# HELP ", family, end, " ", words, "\n"]);
            }
            lines.extend(["# TYPE ", family, end, " ", kind, "\n"]);
        } else if !line.starts_with("# ") {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_collector_would_not_read_is_refused() {
        "/var/lib/drumlin.prom".parse::<Textfile>().unwrap();
        for text in ["drumlin.prom", "/var/lib/drumlin.txt", "/var/lib/", ""] {
            let error = text.parse::<Textfile>().unwrap_err().to_string();
            assert!(error.contains(".prom"), "{error}");
        }
    }

    #[test]
    fn the_older_format_has_no_types_units_and_ends_of_the_newer_one() {
        let text = "\
# HELP drumlin_build The version.
# TYPE drumlin_build info
drumlin_build_info{version=\"1\"} 1
# HELP drumlin_rpc_duration_seconds Calls.
# TYPE drumlin_rpc_duration_seconds histogram
# UNIT drumlin_rpc_duration_seconds seconds
drumlin_rpc_duration_seconds_sum{code=\"Ok\"} 0.5
# HELP drumlin_retries Passes.
# TYPE drumlin_retries counter
drumlin_retries_total{code=\"Unavailable\"} 3
# EOF
";
        let wanted = "\
# HELP drumlin_build_info The version.
# TYPE drumlin_build_info gauge
drumlin_build_info{version=\"1\"} 1
# HELP drumlin_rpc_duration_seconds Calls.
# TYPE drumlin_rpc_duration_seconds histogram
drumlin_rpc_duration_seconds_sum{code=\"Ok\"} 0.5
# HELP drumlin_retries_total Passes.
# TYPE drumlin_retries_total counter
drumlin_retries_total{code=\"Unavailable\"} 3
";
        assert_eq!(prometheus_text(text), wanted);
    }
}
