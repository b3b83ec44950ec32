//! The line of a problem, with the place marked.

use crate::yaml::Location;

/// The longest part of a line that is shown, in characters.
const SHOWN: usize = 100;
/// How much of a longer line is shown before the place, in characters.
const BEFORE: usize = 40;

/// The line of a text at a place, and below it a mark at the word that begins there; nothing if there is no such line.
///
/// Characters that move a terminal's cursor are shown as spaces.
pub fn quote(text: &str, place: Location) -> String {
    // Places are told without it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(line) = text.lines().nth(place.line.saturating_sub(1)) else {
        return String::new();
    };
    let line: Vec<char> = line
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one })
        .collect();
    let at = place.column.saturating_sub(1).min(line.len());
    let begin = if line.len() > SHOWN {
        at.saturating_sub(BEFORE)
    } else {
        0
    };
    let shown: String = line.iter().skip(begin).take(SHOWN).collect();
    let word = line.iter().skip(at);
    let width = word
        .take_while(|one| !one.is_whitespace() && !":,{}[]".contains(**one))
        .count()
        .clamp(1, SHOWN - BEFORE);
    let number = place.line.to_string();
    let (margin, blank) = (" ".repeat(number.len()), " ".repeat(at - begin));
    let mark = "^".repeat(width);
    format!(
        "  {number} | {}\n  {margin} | {blank}{mark}",
        shown.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_at_the_place_is_marked() {
        let text = "kind: Volume\nspec:\n  capacty: 1Gi\n\tx: {a: 1}\n";
        let at = |line, column| quote(text, Location { line, column });
        assert_eq!(at(3, 3), "  3 |   capacty: 1Gi\n    |   ^^^^^^^");
        assert_eq!(at(4, 6), "  4 |  x: {a: 1}\n    |      ^");
        assert_eq!(at(2, 99), "  2 | spec:\n    |      ^");
        assert_eq!(at(9, 1), "");
    }

    #[test]
    fn of_a_long_line_the_part_around_the_place_is_shown() {
        let text = format!("{}here{}", "a ".repeat(500), " b".repeat(500));
        let place = Location {
            line: 1,
            column: 1001,
        };
        let shown = quote(&text, place);
        let lines: Vec<&str> = shown.lines().collect();
        let [line, mark] = lines[..] else {
            panic!("{shown}")
        };
        assert!(line.chars().count() <= SHOWN + 6);
        let from = mark.find('^').unwrap();
        assert_eq!(&line[from..from + 4], "here");
        assert!(mark.ends_with(" ^^^^"));
    }
}
