//! Numbers that a seed gives, the same each time (`SplitMix64`).

/// A source of numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The source that a seed gives.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Yes, so many times of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    ///
    /// # Panics
    /// When there are none.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        let count = u64::try_from(of.len()).unwrap_or(u64::MAX);
        let at = usize::try_from(self.below(count)).unwrap_or(usize::MAX);
        of.get(at).cloned().expect("it is below their number")
    }
}

/// The number that a variable of the environment has, if it is set.
///
/// # Panics
/// When it is no number.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}
