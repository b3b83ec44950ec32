//! Reading classes: one that does not answer holds up no other, and no caller.
//!
//! A reading that takes long has its class checked, again and again: a class that answers its checks is slow, and is
//! waited for where the call is about it. One that does not is silent. Its back end remembers that, and it is not read
//! again before it answers.

use std::{future::Future, time::Duration};

use tokio::{
    task::{JoinError, JoinHandle},
    time::{Instant, timeout, timeout_at},
};
use tracing::Instrument as _;

use crate::ops::{Class, Operations};
use crate::{Error, Kind, Result, backend::Image, types::ImageKind};

/// Timeout for reading all classes at once: shorter than the usual deadlines of callers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which a class that has not been read yet is checked.
const PROMPT: Duration = Duration::from_secs(1);

/// A reading of a class.
pub(crate) type Reading<T> = JoinHandle<Result<T>>;

/// Begins to read in a task of its own, which is not cancelled: a command may be running.
pub(crate) fn begin<T: Send + 'static>(
    read: impl Future<Output = Result<T>> + Send + 'static,
) -> Reading<T> {
    tokio::spawn(read.in_current_span())
}

/// What was read.
///
/// # Errors
/// Those of the reading.
pub(crate) fn read<T>(joined: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    joined.unwrap_or_else(|error| Err(Error::new(Kind::Bug, error.to_string())))
}

/// What is read until the deadline.
///
/// # Errors
/// `Silent` at the deadline; those of the reading.
pub(crate) async fn answer<T>(reading: Reading<T>, deadline: Instant) -> Result<T> {
    timeout_at(deadline, reading).await.map_or_else(
        |_| {
            let message = format!("no answer within {} s", PATIENCE.as_secs());
            Err(Error::new(Kind::Silent, message))
        },
        read,
    )
}

impl Class {
    /// Reads the class, unless it is known to be silent; waits as long as it is not.
    ///
    /// # Errors
    /// `Silent`, naming the class; those of the reading.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        reading: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.check_not_silent()?;
        let mut reading = begin(reading);
        let read = self.until_silent(&mut reading).await;
        // What is read of disks that do not answer ends by itself, with another kind of error.
        read.map_err(|error| self.check_not_silent().err().unwrap_or(error))
    }

    /// All its images of one kind, as [`Self::read`] reads them.
    ///
    /// # Errors
    /// As those of [`Self::read`].
    pub(crate) async fn list(&self, kind: ImageKind) -> Result<Vec<Image>> {
        let backend = self.backend.clone();
        self.read(async move { backend.list(kind).await }).await
    }

    /// What is read, unless the class is found to be silent; then the reading goes on.
    ///
    /// # Errors
    /// `Silent`, naming the class; those of the reading.
    pub(crate) async fn until_silent<T>(&self, reading: &mut Reading<T>) -> Result<T> {
        loop {
            if let Ok(joined) = timeout(PROMPT, &mut *reading).await {
                return read(joined);
            }
            tokio::select! {
                joined = &mut *reading => return read(joined),
                _ = self.backend.check() => self.check_not_silent()?,
            }
        }
    }

    /// Refuses a class that is known to be silent.
    ///
    /// # Errors
    /// `Silent`, naming the class.
    fn check_not_silent(&self) -> Result<()> {
        match self.backend.known_silence() {
            None => Ok(()),
            Some(error) => Err(Error::new(
                Kind::Silent,
                format!(
                    "class {} does not answer; repeat the call once it does",
                    self.name
                ),
            )
            .because(error)),
        }
    }
}

impl Operations {
    /// Reads every class, all at once, each within [`PATIENCE`].
    pub(crate) async fn of_each_class<T: Send + 'static, F>(
        &self,
        read: impl Fn(Class) -> F,
    ) -> Vec<(Class, Result<T>)>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        in_time(begin_each(self.classes.iter(), read)).await
    }

    /// Reads every class but one, all at once, each within [`PATIENCE`].
    pub(crate) async fn of_each_class_but<T: Send + 'static, F>(
        &self,
        left_out: &Class,
        read: impl Fn(Class) -> F,
    ) -> Vec<(Class, Result<T>)>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let classes = self.classes.iter();
        let others = classes.filter(|class| class.name != left_out.name);
        in_time(begin_each(others, read)).await
    }

    /// The images of one kind of every class, all read at once, each as long as its class answers.
    pub(crate) async fn lists(&self, kind: ImageKind) -> Vec<(Class, Result<Vec<Image>>)> {
        let list = move |class: Class| async move { class.backend.list(kind).await };
        let mut lists = Vec::new();
        for (class, reading) in begin_each(self.classes.iter(), list) {
            lists.push((class, read(reading.await)));
        }
        lists
    }
}

fn begin_each<T: Send + 'static, F>(
    classes: impl Iterator<Item = Class>,
    read: impl Fn(Class) -> F,
) -> Vec<(Class, Reading<T>)>
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    let begun = classes.map(|class| {
        let (own, reading) = (class.clone(), read(class.clone()));
        (class, begin(async move { own.read(reading).await }))
    });
    begun.collect()
}

async fn in_time<T>(readings: Vec<(Class, Reading<T>)>) -> Vec<(Class, Result<T>)> {
    let deadline = Instant::now() + PATIENCE;
    let mut answers = Vec::with_capacity(readings.len());
    for (class, reading) in readings {
        answers.push((class, answer(reading, deadline).await));
    }
    answers
}
