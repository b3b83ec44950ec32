//! How long a volume's writer stands still while another one of its pool grows.

use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use drumlin_tests::{
    agent::eventually,
    requests::{expand, mounted, node_expand, raw},
    storage::lvm,
};
use nix::fcntl::OFlag;

use crate::{
    groups::{group, name_of, thin},
    helpers::{bytes_of, get, mount, ok, put, unmount, volume},
};

/// So many volumes are active in the pool.
const VOLUMES: usize = 16;
const BLOCK: usize = 4096;

/// Writes a block after the other, past the page cache, until it is dropped.
struct Writer {
    longest: Arc<Mutex<Duration>>,
    written: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn on(device: PathBuf) -> Self {
        let mut options = File::options();
        let direct = OFlag::O_DIRECT.bits();
        let file = options.write(true).custom_flags(direct).open(device);
        let file = file.unwrap();
        let mut writer = Self {
            longest: Arc::default(),
            written: Arc::default(),
            is_over: Arc::default(),
            thread: None,
        };
        let (longest, written, is_over) = (
            Arc::clone(&writer.longest),
            Arc::clone(&writer.written),
            Arc::clone(&writer.is_over),
        );
        let thread = thread::spawn(move || {
            let memory = vec![7_u8; 2 * BLOCK];
            let skip = memory.as_ptr().align_offset(BLOCK);
            let block = &memory[skip..skip + BLOCK];
            for place in (0..256_u64).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let begun = Instant::now();
                file.write_all_at(block, place << 12).unwrap();
                let mut longest = longest.lock().unwrap();
                *longest = (*longest).max(begun.elapsed());
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        writer.thread = Some(thread);
        writer
    }

    /// The longest write while something is done.
    async fn longest_during(&self, work: impl Future<Output = ()>) -> Duration {
        self.goes_on().await;
        *self.longest.lock().unwrap() = Duration::ZERO;
        work.await;
        self.goes_on().await;
        *self.longest.lock().unwrap()
    }

    /// Waits for a write that begins after this.
    async fn goes_on(&self) {
        let before = self.written.load(Ordering::Relaxed);
        let written = || self.written.load(Ordering::Relaxed);
        eventually(written, |written| *written > before + 1).await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_a_volume_does_not_stop_the_writers_of_its_pool_as_lvextend_does() {
    const ROUNDS: i64 = 5;
    let agent = thin(400, &["-L", "600M"], "overcommit: 10").await;
    let mut ids = Vec::new();
    for number in 0..VOLUMES {
        ids.push(volume(&agent, &format!("v{number}"), 16, &raw()).await);
    }
    let capability = mounted("ext4");
    let grown = volume(&agent, "grown", 64, &capability).await;
    let at = mount(&agent, "grown", &grown, &capability).await;
    put(&at.1, "file", b"precious");
    let writer = Writer::on(bytes_of(&agent, &ids[0]));
    let bare = format!("{}/{}", group(&agent), name_of(&ids[1]));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let (mut controller, mut node) = (agent.controller(), agent.node());
        let expansion = async {
            let request = expand(&grown, 64 + 16 * round);
            ok(controller.controller_expand_volume(request).await);
            let request = node_expand(&grown, &at.1);
            ok(node.node_expand_volume(request).await);
        };
        ours.push(writer.longest_during(expansion).await);
        let size = format!("{}M", 16 + 4 * round);
        let extension = async {
            lvm("lvextend", &["-L", &size, &bare]);
        };
        theirs.push(writer.longest_during(extension).await);
    }
    // The shortest of each: whatever else the machine does only makes them longer.
    let [our, their] = [&ours, &theirs].map(|all| *all.iter().min().unwrap());
    assert!(
        our * 2 < their,
        "with {VOLUMES} active volumes a writer stands still for {ours:?}, with lvextend for {theirs:?}"
    );
    assert_eq!(get(&at.1, "file"), b"precious");
    drop(writer);
    unmount(&agent, &grown, &at).await;
}
