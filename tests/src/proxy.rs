//! A proxy before the API server that can do what a server cannot be made to: forget its history, refuse for load, break off.

#![allow(
    clippy::indexing_slicing,
    reason = "what was read is as long as it was said to be, or the test fails"
)]

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

use crate::{agent::eventually, cluster::Cluster, programs::program, storage::Scratch};

/// What becomes of a request instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A watch is told that its version is too old (410), as an event.
    Forgotten,
    /// A watch or a list is refused so (410).
    Expired,
    /// Whatever is asked is too much (429), for a second.
    Overloaded,
    /// A watch ends in the middle of a line, when it says something.
    BrokenOff,
}

/// What was asked, and what is done about it.
#[derive(Debug, Default)]
pub struct Seen {
    /// How many requests there were of each kind: `WATCH`, `LIST`, `PATCH` and what else HTTP has.
    pub asked: HashMap<String, usize>,
    /// How many of them met the fault.
    pub met: usize,
    fault: Option<Fault>,
}

/// The proxy.
#[derive(Debug)]
pub struct Proxy {
    seen: Arc<Mutex<Seen>>,
    /// Ends the watches that there are.
    cut: watch::Sender<()>,
    /// The same server by way of it.
    pub cluster: Cluster,
    upstream: Child,
    _scratch: Scratch,
}

impl Proxy {
    /// Starts one before a server.
    pub async fn start(cluster: &Cluster) -> Self {
        let scratch = Scratch::new();
        // Speaks TLS with the server for us, and HTTP with everybody here.
        let (socket, seen) = (scratch.path().join("upstream"), Arc::default());
        let mut kubectl: Command = program("kubectl");
        let upstream = kubectl
            .env("KUBECONFIG", cluster.kubeconfig())
            .arg("proxy")
            .arg(format!("--unix-socket={}", socket.display()))
            .args([
                "--reject-methods=^$",
                "--reject-paths=^$",
                "--accept-paths=.*",
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("a part of the proxy");
        eventually(|| socket.exists(), |there| *there).await;
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a part of the proxy");
        let port = listener.local_addr().expect("a part of the proxy").port();
        let kubeconfig = scratch.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: proxy\nclusters: [{{name: proxy, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\nusers: [{{name: nobody, user: {{}}}}]\ncontexts: [{{name: proxy, context: {{cluster: proxy, user: nobody}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).expect("a part of the proxy");
        let told: Arc<Mutex<Seen>> = Arc::clone(&seen);
        let (cut, is_cut) = watch::channel(());
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a part of the proxy");
                let (socket, told, cut) = (socket.clone(), Arc::clone(&told), is_cut.clone());
                tokio::spawn(async move {
                    // Whoever goes away ends the connection.
                    let _ = serve(client, &socket, &told, cut).await;
                });
            }
        });
        Self {
            seen,
            cut,
            cluster: Cluster::known_by(&kubeconfig),
            upstream,
            _scratch: scratch,
        }
    }

    /// From now on this is done, or nothing; says what was seen until now. With a fault the watches end that there are.
    pub fn does(&self, fault: Option<Fault>) -> Seen {
        let next = Seen {
            fault,
            ..Seen::default()
        };
        let seen = std::mem::replace(&mut *self.seen.lock().expect("a part of the proxy"), next);
        if fault.is_some() {
            self.cut.send_replace(());
        }
        seen
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.upstream.kill();
        let _ = self.upstream.wait();
    }
}

/// A request as it came.
struct Request {
    bytes: Vec<u8>,
    /// How long its head is.
    head: usize,
}

impl Request {
    /// Reads one, unless the client goes away.
    async fn read(client: &mut TcpStream) -> std::io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if client.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().expect("a part of the proxy"))
        });
        let length = head + length.unwrap_or_default();
        while bytes.len() < length {
            if client.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        }
        bytes.truncate(length);
        Ok(Some(Self { bytes, head }))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.head]).into_owned()
    }

    /// `WATCH`, `LIST` or the method of HTTP.
    fn kind(&self) -> String {
        let text = self.text();
        let line = text.lines().next().unwrap_or_default();
        let is_ours = line.contains("/apis/drumlin.dev/");
        let is_list = is_ours && line.starts_with("GET") && line.contains("fieldSelector");
        let kind = match (line.contains("watch=true"), is_list) {
            (true, _) => "WATCH",
            (_, true) => "LIST",
            _ => line.split(' ').next().unwrap_or_default(),
        };
        kind.to_owned()
    }

    /// Sends it to the server, which is to close the connection behind its answer.
    async fn pass_on(&self, server: &mut UnixStream) -> std::io::Result<()> {
        let text = self.text();
        let lines = text
            .trim_end()
            .lines()
            .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let told: Vec<&str> = lines.chain(["Connection: close", "", ""]).collect();
        server.write_all(told.join("\r\n").as_bytes()).await?;
        server.write_all(&self.bytes[self.head..]).await
    }
}

impl Seen {
    /// Counts a request, and says which fault it meets.
    fn count(&mut self, kind: &str) -> Option<Fault> {
        *self.asked.entry(kind.to_owned()).or_default() += 1;
        let meets = |fault: &Fault| match fault {
            Fault::Forgotten | Fault::BrokenOff => kind == "WATCH",
            Fault::Expired => ["WATCH", "LIST"].contains(&kind),
            Fault::Overloaded => true,
        };
        let fault = self.fault.filter(meets);
        self.met += usize::from(fault.is_some() && fault != Some(Fault::BrokenOff));
        fault
    }
}

/// What a fault has for an answer, where the server is not asked.
fn refusal(fault: Fault) -> Option<String> {
    let status = |code: u16, reason: &str| {
        format!(
            "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"made up\",\"reason\":\"{reason}\",\"code\":{code}}}"
        )
    };
    let (code, headers, body) = match fault {
        Fault::Forgotten => {
            let event = format!(
                "{{\"type\":\"ERROR\",\"object\":{}}}\n",
                status(410, "Expired")
            );
            ("200 OK", "", event)
        }
        Fault::Expired => ("410 Gone", "", status(410, "Expired")),
        Fault::Overloaded => {
            let body = status(429, "TooManyRequests");
            ("429 Too Many Requests", "Retry-After: 1\r\n", body)
        }
        Fault::BrokenOff => return None,
    };
    Some(format!(
        "HTTP/1.1 {code}\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    ))
}

/// Answers one request of a connection, which then ends.
async fn serve(
    mut client: TcpStream,
    upstream: &std::path::Path,
    seen: &Mutex<Seen>,
    mut cut: watch::Receiver<()>,
) -> std::io::Result<()> {
    let Some(request) = Request::read(&mut client).await? else {
        return Ok(());
    };
    let kind = request.kind();
    let fault = seen.lock().expect("a part of the proxy").count(&kind);
    if let Some(answer) = fault.and_then(refusal) {
        client.write_all(answer.as_bytes()).await?;
        return client.shutdown().await;
    }
    let mut server = UnixStream::connect(upstream).await?;
    request.pass_on(&mut server).await?;
    let mut buffer = vec![0; 16 << 10];
    cut.mark_unchanged();
    loop {
        let read = tokio::select! {
            read = server.read(&mut buffer) => read?,
            _ = cut.changed(), if kind == "WATCH" => return Ok(()),
            // A client that has gone, or sends more than it should.
            _ = client.readable() => {
                match client.try_read(&mut [0]) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                    _ => return Ok(()),
                }
            }
        };
        if read == 0 {
            return client.shutdown().await;
        }
        let says = |word: &[u8]| buffer[..read].windows(word.len()).any(|part| part == word);
        let is_broken = fault == Some(Fault::BrokenOff) && says(b"\"type\"");
        let kept = if is_broken { read / 2 } else { read };
        client.write_all(&buffer[..kept]).await?;
        if is_broken {
            seen.lock().expect("a part of the proxy").met += 1;
            return Ok(());
        }
    }
}
