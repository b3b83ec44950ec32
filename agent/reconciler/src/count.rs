//! Numbers of things, for people.

use std::fmt::Display;

/// The number with its noun, in the plural unless it is one.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let end = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{end}")
}

/// What belongs to other nodes, as a line.
pub(crate) fn elsewhere(objects: usize) -> String {
    match objects {
        1 => "1 object belongs to another node\n".to_owned(),
        objects => format!("{objects} objects belong to other nodes\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let counted = [0, 1, 2].map(|number| counted(number, "file"));
        assert_eq!(counted, ["0 files", "1 file", "2 files"]);
    }
}
