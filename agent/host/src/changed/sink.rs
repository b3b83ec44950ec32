//! Where ranges go.

use std::ops::{ControlFlow, Range};

use crate::{Error, Result};

/// Receives what is found; a closure that takes a range is one.
pub trait Sink {
    /// Takes the next range, in bytes. It may stop the search, which then succeeds.
    ///
    /// # Errors
    /// Those of the receiver; they end the search.
    fn found(&mut self, range: Range<u64>) -> Result<ControlFlow<()>>;

    /// Hears of progress up to this offset, at least once for each half a MiB that is read, whether anything is found
    /// or not. It may stop the search as well, for a caller that is gone.
    fn reached(&mut self, _offset: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(Range<u64>) -> Result<ControlFlow<()>>> Sink for F {
    fn found(&mut self, range: Range<u64>) -> Result<ControlFlow<()>> {
        self(range)
    }
}

/// Why a search ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The sink wants no more.
    Asked,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Outcome of a search.
pub(super) type Walked = Result<(), Stop>;

/// Merges ranges on their way to a sink.
pub(super) struct Ranges<'a> {
    sink: &'a mut dyn Sink,
    /// Where results begin.
    start: u64,
    /// What the next range may continue.
    last: Range<u64>,
}

impl<'a> Ranges<'a> {
    /// Only what lies behind `start` goes to the sink.
    pub(super) fn new(start: u64, sink: &'a mut dyn Sink) -> Self {
        Self {
            sink,
            start,
            last: start..start,
        }
    }

    /// Where results begin.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Takes a range that begins at or behind the end of the one before.
    pub(super) fn push(&mut self, range: Range<u64>) -> Walked {
        let range = range.start.max(self.start)..range.end;
        if range.is_empty() {
            return Ok(());
        }
        if range.start == self.last.end {
            self.last.end = range.end;
            return Ok(());
        }
        self.flush()?;
        self.last = range;
        Ok(())
    }

    /// Tells the sink how far the search is.
    pub(super) fn reached(&mut self, offset: u64) -> Walked {
        continued(self.sink.reached(offset))
    }

    /// Hands out what no range will continue.
    pub(super) fn flush(&mut self) -> Walked {
        let end = self.last.end;
        let last = std::mem::replace(&mut self.last, end..end);
        if last.is_empty() {
            return Ok(());
        }
        continued(self.sink.found(last)?)
    }
}

fn continued(flow: ControlFlow<()>) -> Walked {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Stop::Asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a sink gets of these ranges, if it stops at `most` of them.
    fn received(start: u64, ranges: &[(u64, u64)], most: usize) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut sink = |range: Range<u64>| {
            all.push((range.start, range.end));
            if all.len() < most {
                return Ok(ControlFlow::Continue(()));
            }
            Ok(ControlFlow::Break(()))
        };
        let mut merged = Ranges::new(start, &mut sink);
        let mut push = || -> Walked {
            for &(from, to) in ranges {
                merged.push(from..to)?;
            }
            merged.flush()
        };
        match push() {
            Ok(()) | Err(Stop::Asked) => all,
            Err(Stop::Failed(error)) => panic!("{error:?}"),
        }
    }

    #[test]
    fn neighbours_are_one_range_and_what_lies_before_the_start_is_cut_off() {
        let ranges = [(0, 10), (10, 20), (30, 40), (40, 41), (50, 60)];
        assert_eq!(received(0, &ranges, 9), [(0, 20), (30, 41), (50, 60)]);
        assert_eq!(received(15, &ranges, 9), [(15, 20), (30, 41), (50, 60)]);
        assert_eq!(received(20, &ranges, 9), [(30, 41), (50, 60)]);
        assert_eq!(received(60, &ranges, 9), []);
        assert_eq!(received(0, &ranges, 2), [(0, 20), (30, 41)]);
        assert_eq!(received(0, &[(0, 0), (7, 7)], 9), []);
    }

    #[test]
    fn a_sink_can_stop_a_search_that_finds_nothing() {
        struct Gone;
        impl Sink for Gone {
            fn found(&mut self, _: Range<u64>) -> Result<ControlFlow<()>> {
                Ok(ControlFlow::Continue(()))
            }

            fn reached(&mut self, _: u64) -> ControlFlow<()> {
                ControlFlow::Break(())
            }
        }
        let stopped = Ranges::new(0, &mut Gone).reached(1);
        assert!(matches!(stopped, Err(Stop::Asked)));
    }
}
