//! Reading classes with a deadline: one that does not answer holds up no other, and no caller.

use std::{future::Future, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tracing::Instrument as _;

use crate::ops::{Class, Operations};
use crate::{Error, Kind, Result};

/// Timeout for reading all classes at once: shorter than the usual deadlines of callers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Begins to read in a task of its own, which is not cancelled: a command may be running.
pub(crate) fn begin<T: Send + 'static>(
    read: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(read.in_current_span())
}

/// What was read.
///
/// # Errors
/// `Busy` at the deadline; those of the reading.
pub(crate) async fn answer<T>(reading: JoinHandle<Result<T>>, deadline: Instant) -> Result<T> {
    match timeout_at(deadline, reading).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => Err(Error::new(Kind::Bug, error.to_string())),
        Err(_) => Err(Error::new(
            Kind::Busy,
            format!("no answer within {} s", PATIENCE.as_secs()),
        )),
    }
}

impl Operations {
    /// Reads every class, all at once.
    pub(crate) async fn of_each_class<T: Send + 'static, F>(
        &self,
        read: impl Fn(Class) -> F,
    ) -> Vec<(Class, Result<T>)>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let deadline = Instant::now() + PATIENCE;
        let classes = self.classes.iter();
        let reading: Vec<_> = classes
            .map(|class| {
                let reading = begin(read(class.clone()));
                (class, reading)
            })
            .collect();
        let mut answers = Vec::with_capacity(reading.len());
        for (class, reading) in reading {
            answers.push((class, answer(reading, deadline).await));
        }
        answers
    }
}
