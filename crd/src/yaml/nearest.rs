//! What somebody meant who wrote a word that there is not.

/// How alike two words are that are taken for each other: from 0 to 1, as Jaro measures it.
const ALIKE: f64 = 0.8;

/// The one of `known` that is most like `word`, if it is like it at all.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let known = known.into_iter();
    let likeness = known.map(|one| (strsim::jaro(&word, &one.to_lowercase()), one));
    let near = likeness.filter(|(likeness, _)| *likeness >= ALIKE);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, one)| one)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_mistyped_word_is_near_to_what_was_meant_and_others_to_none() {
        let known = ["nodeName", "capacity", "fsType", "volumeName"];
        for (word, meant) in [
            ("capacty", Some("capacity")),
            ("fstype", Some("fsType")),
            ("volume", Some("volumeName")),
            ("replicas", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }
}
