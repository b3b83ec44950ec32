//! Changed blocks of encrypted images: those of the inner image, at the offsets of the data.
//!
//! The same data at the same place has the same ciphertext, and other data another one: what differs below is what
//! differs above.

use std::ops::{ControlFlow, Range};

use crate::backend::RangeSink;

/// Hands ranges of an inner image on, at the offsets of the data.
pub(super) struct DataRanges {
    /// The offset of the data.
    pub(super) offset: u64,
    pub(super) sink: Box<dyn RangeSink>,
}

impl RangeSink for DataRanges {
    fn found(&mut self, range: Range<u64>) -> ControlFlow<()> {
        let start = range.start.saturating_sub(self.offset);
        let end = range.end.saturating_sub(self.offset);
        if start >= end {
            // The header: key slots come and go.
            return ControlFlow::Continue(());
        }
        self.sink.found(start..end)
    }

    fn is_gone(&self) -> bool {
        self.sink.is_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Noted(Arc<Mutex<Vec<Range<u64>>>>);

    impl RangeSink for Noted {
        fn found(&mut self, range: Range<u64>) -> ControlFlow<()> {
            self.0.lock().unwrap().push(range);
            ControlFlow::Continue(())
        }

        fn is_gone(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_header_is_no_data() {
        let noted = Arc::default();
        let mut ranges = DataRanges {
            offset: 100,
            sink: Box::new(Noted(Arc::clone(&noted))),
        };
        for range in [0..40, 60..100, 90..130, 200..300] {
            assert!(ranges.found(range).is_continue());
        }
        assert_eq!(*noted.lock().unwrap(), [0..30, 100..200]);
    }
}
