//! The page of the tour, followed as a new user does: each block is run, and what it says is printed is.

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    time::Duration,
};

use drumlin_tests::{
    programs::{drumlin, program},
    sources::read,
    storage::Scratch,
};

use crate::helpers::text;

/// A block of the page.
#[derive(Debug)]
enum Block {
    /// Commands, all of which must succeed.
    Commands(String),
    /// A program that goes on in a shell of its own.
    Daemon(String),
    /// A command, and what it prints: each line of it has these words, in this order.
    Console(String, Vec<String>),
}

/// The blocks of a page, and the lines at which they begin.
fn blocks(page: &str) -> Vec<(usize, Block)> {
    let (mut found, mut lines) = (Vec::new(), page.lines().enumerate());
    while let Some((number, line)) = lines.next() {
        let Some(kind @ ("sh" | "console")) = line.strip_prefix("```") else {
            continue;
        };
        let body: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| *line != "```")
            .collect();
        if kind == "console" {
            let command = body[0].strip_prefix("# ").unwrap().to_owned();
            let printed = body[1..].iter().map(|line| (*line).to_owned()).collect();
            found.push((number + 1, Block::Console(command, printed)));
            continue;
        }
        // The last line of a block may be what goes on.
        let (last, rest) = body.split_last().unwrap();
        let is_daemon = ["drumlin agent ", "drumlin reconcile "].iter();
        if is_daemon.clone().any(|start| last.starts_with(start)) {
            if !rest.is_empty() {
                found.push((number + 1, Block::Commands(rest.join("\n"))));
            }
            found.push((number + 1, Block::Daemon((*last).to_owned())));
        } else {
            found.push((number + 1, Block::Commands(body.join("\n"))));
        }
    }
    found
}

/// A host on which the page is followed: its directories are below a scratch directory.
struct Guest {
    scratch: Scratch,
    path: String,
    daemons: HashMap<String, Child>,
}

impl Guest {
    fn new() -> Self {
        let scratch = Scratch::new();
        for name in ["etc", "tmp", "bin", "mnt"] {
            scratch.directory(name);
        }
        let binary = scratch.path().join("bin/drumlin");
        std::os::unix::fs::symlink(drumlin(), binary).unwrap();
        let path = format!(
            "{}:{}",
            scratch.path().join("bin").display(),
            std::env::var("PATH").unwrap()
        );
        Self {
            scratch,
            path,
            daemons: HashMap::new(),
        }
    }

    /// The text with the directories of this host.
    fn here(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // First the one that the scratch directory may be in.
        for (path, name) in [
            ("/tmp/", "tmp/"),
            ("/etc/drumlin", "etc"),
            ("/srv/drumlin", "images"),
            ("/srv/legacy", "legacy"),
            ("/mnt/shop", "mnt"),
        ] {
            let there = self.scratch.path().join(name);
            text = text.replace(path, &there.to_string_lossy());
        }
        text
    }

    fn shell(&self, script: &str) -> Command {
        let mut shell = program("bash");
        let socket = format!("unix://{}", text(self.scratch.path().join("csi.sock")));
        shell
            .args(["-eu", "-c", &self.here(script)])
            .env("PATH", &self.path)
            .env("CSI_ENDPOINT", socket)
            .env("DRUMLIN_NODE", "host-1")
            .env("DRUMLIN_STATE_DIR", self.scratch.path().join("state"));
        shell
    }

    fn start(&mut self, command: &str) {
        let log = self
            .scratch
            .path()
            .join(format!("log-{}", self.daemons.len()));
        let log = std::fs::File::create(log).unwrap();
        let child = self
            .shell(&format!("exec {command}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        if let Some(mut former) = self.daemons.insert(command.to_owned(), child.unwrap()) {
            // It was killed by the page.
            let _ = former.wait();
        }
        let answers = "for _ in $(seq 300); do drumlin ping > /dev/null 2>&1 && exit; sleep 0.1; done; exit 1";
        let answered = self.shell(answers).status().unwrap();
        assert!(answered.success(), "{command}\n{}", self.logs());
    }

    fn run(&self, line: usize, script: &str) -> String {
        let output = self.shell(script).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Plans, statuses and doctor say by their exit codes what they found.
        let said = ["drumlin plan", "drumlin doctor"];
        let is_telling = said.iter().any(|start| script.starts_with(start));
        assert!(
            output.status.success() || is_telling,
            "line {line}: {script}\n{text}{complaint}\n{}",
            self.logs()
        );
        text
    }

    /// Waits until a daemon that was killed is gone: before, it has its sockets.
    fn wait_for_killed(&mut self) {
        let mut daemons = self.daemons.values_mut();
        while !daemons.any(|daemon| daemon.try_wait().unwrap().is_some()) {
            std::thread::sleep(Duration::from_millis(10));
            daemons = self.daemons.values_mut();
        }
    }

    fn logs(&self) -> String {
        let logs = (0..3).filter_map(|number| {
            std::fs::read_to_string(self.scratch.path().join(format!("log-{number}"))).ok()
        });
        logs.collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        for daemon in self.daemons.values_mut() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Whether a line has these parts, in this order.
fn has(line: &str, wanted: &str) -> bool {
    let mut rest = line;
    wanted
        .split('…')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tour_goes_as_its_page_says() {
    let page = read("docs/src/tour.md");
    let mut guest = Guest::new();
    let blocks = blocks(&page);
    assert!(blocks.len() > 20, "{blocks:?}");
    for (line, block) in blocks {
        match block {
            Block::Commands(script) => {
                guest.run(line, &script);
                if script.contains("pkill") {
                    guest.wait_for_killed();
                }
            }
            Block::Daemon(command) => guest.start(&command),
            Block::Console(command, wanted) => {
                let text = guest.run(line, &command);
                for wanted in wanted {
                    let wanted = guest.here(&wanted);
                    assert!(
                        text.lines().any(|line| has(line, &wanted)),
                        "line {line}: {wanted:?} is not in\n{text}"
                    );
                }
            }
        }
    }
}
