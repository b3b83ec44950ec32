//! Ranges that are kept until somebody takes them: the metadata of a pool is held for as long as it is read, not for as
//! long as a slow client needs.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    ops::Range,
    os::unix::fs::OpenOptionsExt,
};

use crate::{Error, Result, backend::RangeSink};

/// So many ranges are kept in memory, 1 MiB of them; the rest is in a file without a name.
const IN_MEMORY: usize = 1 << 16;

/// Ranges in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct RangeSpool {
    ranges: Vec<Range<u64>>,
    rest: Option<BufWriter<File>>,
}

impl RangeSpool {
    /// Keeps a range.
    ///
    /// # Errors
    /// `NoSpace`, `Io` for the file.
    pub(super) fn push(&mut self, range: Range<u64>) -> Result<()> {
        if self.ranges.len() < IN_MEMORY {
            self.ranges.push(range);
            return Ok(());
        }
        let rest = match &mut self.rest {
            Some(rest) => rest,
            none => none.insert(BufWriter::new(unnamed().map_err(failed)?)),
        };
        let mut bytes = range.start.to_ne_bytes().to_vec();
        bytes.extend(range.end.to_ne_bytes());
        rest.write_all(&bytes).map_err(failed)
    }

    /// Gives all of them to a sink, until it stops.
    ///
    /// # Errors
    /// `Io` for the file.
    pub(super) fn drain(self, sink: &mut dyn RangeSink) -> Result<()> {
        for range in self.ranges {
            if sink.found(range).is_break() {
                return Ok(());
            }
        }
        let Some(rest) = self.rest else {
            return Ok(());
        };
        let mut rest = rest
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        rest.rewind().map_err(failed)?;
        let mut rest = BufReader::new(rest);
        loop {
            let (mut start, mut end) = ([0; 8], [0; 8]);
            match rest.read_exact(&mut start) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other.map_err(failed)?,
            }
            rest.read_exact(&mut end).map_err(failed)?;
            let range = u64::from_ne_bytes(start)..u64::from_ne_bytes(end);
            if sink.found(range).is_break() {
                return Ok(());
            }
        }
    }
}

/// A file without a name, which is gone when it is closed.
fn unnamed() -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(std::env::temp_dir())
}

fn failed(error: io::Error) -> Error {
    let directory = std::env::temp_dir();
    let directory = directory.display();
    Error::io(
        format!("could not spool ranges of a snapshot in a file in {directory}"),
        error,
    )
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    /// Takes so many ranges, each ten bytes behind the one before.
    struct Counting {
        seen: u64,
        wanted: u64,
    }

    impl RangeSink for Counting {
        fn found(&mut self, range: Range<u64>) -> ControlFlow<()> {
            assert_eq!(range, self.seen * 10..self.seen * 10 + 5);
            self.seen += 1;
            if self.is_gone() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        }

        fn is_gone(&self) -> bool {
            self.seen == self.wanted
        }
    }

    #[test]
    fn ranges_come_back_in_their_order_from_memory_and_file() {
        let count = u64::try_from(IN_MEMORY).unwrap() + 1000;
        for wanted in [10, count] {
            let mut spool = RangeSpool::default();
            for number in 0..count {
                spool.push(number * 10..number * 10 + 5).unwrap();
            }
            let mut sink = Counting { seen: 0, wanted };
            spool.drain(&mut sink).unwrap();
            assert_eq!(sink.seen, wanted);
        }
    }
}
