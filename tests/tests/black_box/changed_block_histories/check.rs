//! What an answer must be, computed from all bytes of both snapshots.

use std::ops::Range;

use drumlin_proto::csi::v1::BlockMetadata;

/// What may be told beside what differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Surplus {
    /// Nothing: bytes are compared, in blocks.
    Nothing,
    /// The blocks that a write touched.
    Written,
    /// Whatever the file system has allocated.
    Anything,
}

/// What is known of two snapshots.
pub(super) struct Pair<'a> {
    /// The bytes of the base; zeros for what is allocated.
    pub(super) base: &'a [u8],
    pub(super) target: &'a [u8],
    /// What was written, discarded or written again between them.
    pub(super) written: Vec<Range<usize>>,
    pub(super) surplus: Surplus,
    /// The unit of the answer, in bytes.
    pub(super) block: usize,
}

/// An answer, as ranges of bytes.
pub(super) fn ranges(told: &[BlockMetadata]) -> Vec<Range<usize>> {
    let number = |bytes: i64| usize::try_from(bytes).unwrap();
    let range =
        |told: &BlockMetadata| number(told.byte_offset)..number(told.byte_offset + told.size_bytes);
    told.iter().map(range).collect()
}

impl Pair<'_> {
    /// Refuses an answer that does not make the target of the base, that tells too much, or that has another form than
    /// is promised.
    pub(super) fn check(&self, told: &[Range<usize>]) -> Result<(), String> {
        self.check_form(told)?;
        self.check_missing(told)?;
        self.check_surplus(told)
    }

    /// What both snapshots have.
    fn common(&self) -> usize {
        self.base.len().min(self.target.len())
    }

    /// In ascending order, merged, of whole blocks, and within the target.
    fn check_form(&self, told: &[Range<usize>]) -> Result<(), String> {
        let end = self.target.len();
        let mut before = None;
        for range in told {
            let is_behind = before.is_none_or(|before| range.start > before);
            let is_whole = |at: usize| at.is_multiple_of(self.block) || at == end;
            if !is_behind || range.is_empty() || range.end > end {
                return Err(format!("{range:?} is not in order, of {end} bytes"));
            }
            if !is_whole(range.start) || !is_whole(range.end) {
                return Err(format!("{range:?} is not of whole blocks"));
            }
            before = Some(range.end);
        }
        Ok(())
    }

    /// Applied to the base, it makes the target, and what lies behind the end of the base is told.
    fn check_missing(&self, told: &[Range<usize>]) -> Result<(), String> {
        let mut made = self.base.to_vec();
        made.resize(self.target.len(), 0);
        for range in told {
            made[range.clone()].copy_from_slice(&self.target[range.clone()]);
        }
        if made != self.target {
            let mut bytes = made.iter().zip(self.target);
            let first = bytes.position(|(made, wanted)| made != wanted);
            return Err(format!("byte {first:?} differs and is not told"));
        }
        let behind = self.common()..self.target.len();
        let is_told = |range: &Range<usize>| range.start <= behind.start && range.end == behind.end;
        if !behind.is_empty() && !told.last().is_some_and(is_told) {
            return Err(format!("{behind:?} lies behind the base and is not told"));
        }
        Ok(())
    }

    fn check_surplus(&self, told: &[Range<usize>]) -> Result<(), String> {
        for range in told {
            let end = range.end.min(self.common());
            for start in (range.start..end).step_by(self.block) {
                let block = start..(start + self.block).min(end);
                if !self.is_due(&block) {
                    return Err(format!("{block:?} is told without a reason"));
                }
            }
        }
        Ok(())
    }

    fn is_due(&self, block: &Range<usize>) -> bool {
        let touches =
            |written: &Range<usize>| written.start < block.end && written.end > block.start;
        match self.surplus {
            Surplus::Nothing => self.base[block.clone()] != self.target[block.clone()],
            Surplus::Written => self.written.iter().any(touches),
            Surplus::Anything => true,
        }
    }
}
