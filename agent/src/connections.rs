//! Connection limits: a maximum number of connections, and timeouts for clients that send no request or do not read.
//!
//! A connection with at least one request is kept as long as its client wants: the standard sidecars exit when their
//! connection is lost.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, stream, task::AtomicWaker};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    task::yield_now,
    time::{Instant, Sleep, sleep},
};
use tonic::transport::server::{Connected, UdsConnectInfo};

use crate::authority::ValidAuthority;

/// Maximum number of connections of a socket.
const MOST: usize = 512;
/// Timeout for the first request of a new connection.
const SILENT: Duration = Duration::from_secs(10);
/// Timeout for a client that does not read its responses.
const UNREAD: Duration = Duration::from_secs(30);
/// Pause after a failed accept: the process or the host is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the first request within which a connection is not displaced by a new one; it begins when all that its client
/// has sent is read, so that an agent that gets little processor time does not count its own delay.
const FIRST_REQUEST: Duration = Duration::from_millis(250);
/// Timeout for a free slot at the limit; after it, the oldest connection without a request is displaced.
const FREE_SLOT: Duration = Duration::from_secs(1);
/// Interval of the checks for a free slot, after the first few.
const LOOK: Duration = Duration::from_millis(5);
/// Number of times to yield to other tasks before an idle connection is closed for a new one.
const LOOKS: usize = 8;
/// Minimum interval between log lines about refused connections.
const SAID: Duration = Duration::from_mins(1);

/// The connections of a socket.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<ConnectionTable>>);

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    count: usize,
    /// The connections without a request so far, oldest first.
    silent: BTreeMap<u64, Arc<SilentSlot>>,
    said: Option<Instant>,
}

/// State of a connection until its first request.
#[derive(Debug)]
struct SilentSlot {
    /// Set at the first read that found nothing more.
    idle_since: OnceLock<Instant>,
    is_taken: AtomicBool,
    waker: AtomicWaker,
}

impl SilentSlot {
    fn has_had_its_time(&self) -> bool {
        self.idle_since
            .get()
            .is_some_and(|since| since.elapsed() >= FIRST_REQUEST)
    }
}

impl Connections {
    /// The stream of accepted connections.
    pub(crate) fn of(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
        let all = (listener, Self::default());
        stream::unfold(all, async |(listener, connections)| {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        connections.make_room().await;
                        if let Some(connection) = connections.admit(stream) {
                            return Some((Ok(connection), (listener, connections)));
                        }
                    }
                    Err(error) => {
                        if connections.lock().is_news() {
                            tracing::warn!(error = %error, "could not accept a connection");
                        }
                        sleep(PAUSE).await;
                    }
                }
            }
        })
    }

    /// At the limit, waits until a connection has ended, or the oldest one without a request has had its time; at most
    /// [`FREE_SLOT`]. The next clients wait in the socket's backlog meanwhile.
    async fn make_room(&self) {
        let deadline = Instant::now() + FREE_SLOT;
        for look in 0.. {
            if self.lock().has_room() || Instant::now() >= deadline {
                return;
            }
            if look < LOOKS {
                yield_now().await;
            } else {
                sleep(LOOK).await;
            }
        }
    }

    fn admit(&self, stream: UnixStream) -> Option<Connection> {
        let mut inside = self.lock();
        if inside.count >= MOST {
            let Some((_, place)) = inside.silent.pop_first() else {
                if inside.is_news() {
                    tracing::warn!(
                        limit = MOST,
                        "connection limit reached, new connection closed"
                    );
                }
                return None;
            };
            // It no longer counts, although its task may notice later.
            inside.count -= 1;
            place.is_taken.store(true, Ordering::Release);
            place.waker.wake();
        }
        let number = inside.next;
        inside.next += 1;
        inside.count += 1;
        let place = Arc::new(SilentSlot {
            idle_since: OnceLock::new(),
            is_taken: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        inside.silent.insert(number, Arc::clone(&place));
        drop(inside);
        Some(Connection {
            stream: ValidAuthority::new(stream),
            connections: self.clone(),
            number,
            silent: Some((place, Box::pin(sleep(SILENT)))),
            is_taken: false,
            unread: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Returns true if a new connection displaces nobody who may be about to send a request.
    fn has_room(&self) -> bool {
        let oldest = self.silent.values().next();
        self.count < MOST || oldest.is_some_and(|slot| slot.has_had_its_time())
    }

    /// Returns true if nothing was logged for a while.
    fn is_news(&mut self) -> bool {
        let is_news = self.said.is_none_or(|said| said.elapsed() >= SAID);
        if is_news {
            self.said = Some(Instant::now());
        }
        is_news
    }
}

/// A connection within the limits.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: ValidAuthority,
    connections: Connections,
    number: u64,
    /// Present until the first request.
    silent: Option<(Arc<SilentSlot>, Pin<Box<Sleep>>)>,
    /// True if another connection took its slot.
    is_taken: bool,
    /// Timer while its client does not read.
    unread: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// Checks that a connection without a request may stay open.
    fn may_stay(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some((place, deadline)) = &mut self.silent else {
            return Ok(());
        };
        place.waker.register(context.waker());
        if place.is_taken.load(Ordering::Acquire) {
            self.is_taken = true;
            return Err(io::Error::other(
                "idle connection closed for a new one at the connection limit",
            ));
        }
        if deadline.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn has_asked(&mut self) {
        if self.stream.has_asked() && self.silent.take().is_some() {
            // If its slot was taken at the same time, it continues without one.
            let was_there = self.connections.lock().silent.remove(&self.number);
            self.is_taken = was_there.is_none();
        }
    }

    /// The result of a write, or a timeout if the client did not read for too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        let deadline = self.unread.get_or_insert_with(|| Box::pin(sleep(UNREAD)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut inside = self.connections.lock();
        inside.silent.remove(&self.number);
        let is_taken = self.is_taken
            || self
                .silent
                .as_ref()
                .is_some_and(|(place, _)| place.is_taken.load(Ordering::Acquire));
        if !is_taken {
            inside.count -= 1;
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.may_stay(context)?;
        let read = Pin::new(&mut self.stream).poll_read(context, out);
        self.has_asked();
        if read.is_pending()
            && let Some((place, _)) = &self.silent
        {
            place.idle_since.get_or_init(Instant::now);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A socket, and those who are let in.
    fn socket() -> (
        tempfile::TempDir,
        std::path::PathBuf,
        Pin<Box<impl Stream<Item = io::Result<Connection>>>>,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        (directory, path, Box::pin(Connections::of(listener)))
    }

    /// As many clients as there may be, and their connections.
    async fn filled(
        path: &std::path::Path,
        all: &mut (impl Stream<Item = io::Result<Connection>> + Unpin),
    ) -> (Vec<UnixStream>, Vec<Connection>) {
        let (mut clients, mut inside) = (Vec::new(), Vec::new());
        for _ in 0..MOST {
            clients.push(UnixStream::connect(path).await.unwrap());
            inside.push(all.next().await.unwrap().unwrap());
        }
        (clients, inside)
    }

    /// What a client sends that asks something.
    fn request() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, 1, 1, 4, 0, 0, 0, 1, 0x82]);
        bytes
    }

    async fn asks(connection: &mut Connection, client: &mut UnixStream) {
        client.write_all(&request()).await.unwrap();
        let mut read = vec![0; request().len()];
        connection.read_exact(&mut read).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_goes_and_who_has_asked_stays() {
        let (_directory, path, mut all) = socket();
        let _silent = UnixStream::connect(&path).await.unwrap();
        let mut first = all.next().await.unwrap().unwrap();
        let mut client = UnixStream::connect(&path).await.unwrap();
        let mut second = all.next().await.unwrap().unwrap();
        asks(&mut second, &mut client).await;
        let begun = Instant::now();
        let error = first.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() <= SILENT);
        let waited = tokio::time::timeout(1000 * SILENT, second.read_u8()).await;
        waited.unwrap_err();
    }

    #[tokio::test]
    async fn a_new_one_has_the_place_of_the_oldest_that_asked_nothing_and_of_no_other() {
        let (_directory, path, mut all) = socket();
        let (mut clients, mut inside) = filled(&path, &mut all).await;
        asks(&mut inside[0], &mut clients[0]).await;
        let connections = inside[0].connections.clone();
        let more = UnixStream::connect(&path).await.unwrap();
        let mut newest = all.next().await.unwrap().unwrap();
        inside[1].read_u8().await.unwrap_err();
        assert_eq!(connections.lock().count, MOST);
        drop(inside.remove(1));
        drop(clients.remove(1));
        assert_eq!(connections.lock().count, MOST);
        // All have asked.
        clients.push(more);
        for (connection, client) in inside[1..].iter_mut().zip(&mut clients[1..]) {
            asks(connection, client).await;
        }
        asks(&mut newest, clients.last_mut().unwrap()).await;
        let mut refused = UnixStream::connect(&path).await.unwrap();
        let nobody = tokio::time::timeout(2 * FREE_SLOT, all.next()).await;
        assert!(nobody.is_err());
        assert_eq!(refused.read(&mut [0]).await.unwrap(), 0);
        // One that goes makes room.
        drop(newest);
        let _more = UnixStream::connect(&path).await.unwrap();
        all.next().await.unwrap().unwrap();
        drop(inside);
        assert_eq!(connections.lock().count, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_nobody_has_read_from_yet_has_not_had_its_time() {
        let (_directory, path, mut all) = socket();
        let (mut clients, mut inside) = filled(&path, &mut all).await;
        sleep(2 * FIRST_REQUEST).await;
        clients.push(UnixStream::connect(&path).await.unwrap());
        let nobody = tokio::time::timeout(FIRST_REQUEST, all.next()).await;
        assert!(nobody.is_err());
        // From here on it has.
        let nothing = tokio::time::timeout(FIRST_REQUEST, inside[0].read_u8()).await;
        assert!(nothing.is_err());
        let begun = Instant::now();
        all.next().await.unwrap().unwrap();
        assert!(begun.elapsed() < FREE_SLOT / 2);
        inside[0].read_u8().await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_goes() {
        let (_directory, path, mut all) = socket();
        let _client = UnixStream::connect(&path).await.unwrap();
        let mut connection = all.next().await.unwrap().unwrap();
        let begun = Instant::now();
        let error = connection.write_all(&vec![0; 16 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= UNREAD);
    }
}
