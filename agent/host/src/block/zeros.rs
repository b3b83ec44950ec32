//! Whether memory contains only zeros.

/// Returns true if all bytes are zero.
///
/// One comparison of memory with itself, shifted by a byte: an iterator over the bytes of a large buffer is several
/// times slower, and far slower in builds without optimization.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    match bytes.split_first() {
        None => true,
        Some((first, rest)) => *first == 0 && Some(rest) == bytes.get(..rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_not_zero_is_found_wherever_it_is() {
        for length in [0, 1, 2, 4096, 4099] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes));
            for at in 0..length {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{at} of {length}");
                bytes[at] = 0;
            }
        }
    }
}
