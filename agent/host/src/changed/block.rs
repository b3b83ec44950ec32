//! The unit of what is found.

/// The size of a block in bytes: the page of the kernel, and the least that file systems share.
pub const BLOCK: u64 = 4096;

/// The beginning of the block that `offset` is in.
pub(super) fn block_start(offset: u64) -> u64 {
    offset - offset % BLOCK
}

/// The first beginning of a block at or after `offset`.
pub(super) fn block_end(offset: u64) -> u64 {
    offset.div_ceil(BLOCK).saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_before_and_end_behind() {
        let all = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1].map(|at| (block_start(at), block_end(at)));
        let (one, two) = (BLOCK, 2 * BLOCK);
        assert_eq!(all, [(0, 0), (0, one), (0, one), (one, one), (one, two)]);
        assert_eq!(block_end(u64::MAX), u64::MAX);
    }
}
