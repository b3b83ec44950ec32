//! The text format of LVM's metadata: sections, and values that are numbers, strings and lists.

use std::{borrow::Cow, iter::Peekable};

/// A value, or a section of values in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(i64),
    Text(Cow<'a, str>),
    List(Vec<Value<'a>>),
    Section(Vec<(Cow<'a, str>, Value<'a>)>),
}

/// Maximum nesting depth of sections; real ones have four levels.
const DEPTH: usize = 16;

impl<'a> Value<'a> {
    /// Parses a whole text as one section.
    ///
    /// # Errors
    /// The problem, with the line number.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let mut tokens = Tokens {
            rest: text.char_indices().peekable(),
            text,
            line: 1,
        };
        let section = tokens.section(DEPTH)?;
        match tokens.next()? {
            None => Ok(section),
            Some(_) => Err(tokens.wrong("unexpected text after the end")),
        }
    }

    /// The value of this name in a section.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Section(entries) = self else {
            return None;
        };
        let found = entries.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value)
    }

    /// The entries of a section.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Self)> {
        let entries = match self {
            Self::Section(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The items of a list.
    pub(super) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// A string.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number that is not negative.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The strings of a list with this name; empty if there is none.
    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let list = self.get(name).map(Self::items).unwrap_or_default();
        list.iter()
            .filter_map(|item| item.text().map(str::to_owned))
            .collect()
    }
}

#[derive(Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Text(Cow<'a, str>),
    Mark(char),
}

struct Tokens<'a> {
    text: &'a str,
    rest: Peekable<std::str::CharIndices<'a>>,
    line: usize,
}

impl<'a> Tokens<'a> {
    fn wrong(&self, what: &str) -> String {
        format!("line {}: {what}", self.line)
    }

    fn next(&mut self) -> Result<Option<Token<'a>>, String> {
        loop {
            let Some((at, first)) = self.rest.next() else {
                return Ok(None);
            };
            match first {
                '\n' => self.line += 1,
                _ if first.is_whitespace() || first == '\0' => {}
                '#' => while self.rest.next_if(|(_, next)| *next != '\n').is_some() {},
                '{' | '}' | '[' | ']' | '=' | ',' => return Ok(Some(Token::Mark(first))),
                '"' => return self.quoted(at + 1).map(Some),
                _ => {
                    let mut end = at + first.len_utf8();
                    let goes_on = |next: char| !next.is_whitespace() && !"{}[]=,\"#".contains(next);
                    while let Some((at, next)) = self.rest.next_if(|(_, next)| goes_on(*next)) {
                        end = at + next.len_utf8();
                    }
                    let word = self.text.get(at..end).unwrap_or_default();
                    return Ok(Some(Token::Word(word)));
                }
            }
        }
    }

    /// A string that begins at `start`; one without escapes, as nearly all are, is not copied.
    fn quoted(&mut self, start: usize) -> Result<Token<'a>, String> {
        let mut unescaped: Option<String> = None;
        while let Some((at, next)) = self.rest.next() {
            let before = || self.text.get(start..at).unwrap_or_default();
            match next {
                '"' => {
                    let text = match unescaped {
                        Some(text) => Cow::Owned(text),
                        None => Cow::Borrowed(before()),
                    };
                    return Ok(Token::Text(text));
                }
                '\\' => {
                    let mut text = unescaped.take().unwrap_or_else(|| before().to_owned());
                    text.extend(self.rest.next().map(|(_, escaped)| escaped));
                    unescaped = Some(text);
                }
                _ => {
                    if let Some(text) = &mut unescaped {
                        text.push(next);
                    }
                }
            }
        }
        Err(self.wrong("unterminated string"))
    }

    /// The contents of braces, or the whole text. Ends after the closing brace.
    fn section(&mut self, depth: usize) -> Result<Value<'a>, String> {
        let mut entries = Vec::new();
        loop {
            let name = match self.next()? {
                Some(Token::Word(word)) => Cow::Borrowed(word),
                Some(Token::Text(text)) => text,
                Some(Token::Mark('}')) if depth < DEPTH => return Ok(Value::Section(entries)),
                None if depth == DEPTH => return Ok(Value::Section(entries)),
                _ => return Err(self.wrong("expected a name")),
            };
            let value = match self.next()? {
                Some(Token::Mark('{')) if depth > 1 => self.section(depth - 1)?,
                Some(Token::Mark('=')) => self.value()?,
                _ => return Err(self.wrong("expected = or {")),
            };
            entries.push((name, value));
        }
    }

    fn value(&mut self) -> Result<Value<'a>, String> {
        match self.next()? {
            Some(Token::Mark('[')) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Some(Token::Mark(']')) => return Ok(Value::List(items)),
                        Some(Token::Mark(',')) => {}
                        Some(token) => items.push(self.single(token)?),
                        None => return Err(self.wrong("unterminated list")),
                    }
                }
            }
            Some(token) => self.single(token),
            None => Err(self.wrong("expected a value")),
        }
    }

    fn single(&self, token: Token<'a>) -> Result<Value<'a>, String> {
        match token {
            Token::Text(text) => Ok(Value::Text(text)),
            // LVM's own settings contain fractions; the metadata of a volume group does not.
            Token::Word(word) => word
                .parse()
                .map(Value::Number)
                .map_err(|_| self.wrong(&format!("{word} is not a number"))),
            Token::Mark(mark) => Err(self.wrong(&format!("{mark} is not a value"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sections_values_lists_and_escapes_are_read() {
        let text = "vg0 {\nid = \"a-b\"\nseqno = 5 # five\nstatus = [\"READ\", \"WRITE\"]\nflags = []\n\
                    inner {\nstripes = [\n\"pv0\", 0,\n\"pv1\", 12\n]\nwhy = \"a \\\"b\\\" \\\\ c\"\n}\n}\ntime = -1\n\0";
        let value = Value::parse(text).unwrap();
        let group = value.get("vg0").unwrap();
        assert_eq!(group.get("id").unwrap().text(), Some("a-b"));
        assert_eq!(group.get("seqno").unwrap().number(), Some(5));
        assert_eq!(group.texts("status"), ["READ", "WRITE"]);
        assert_eq!(group.get("flags").unwrap().items(), []);
        let inner = group.get("inner").unwrap();
        assert_eq!(inner.get("why").unwrap().text(), Some("a \"b\" \\ c"));
        assert_eq!(inner.get("stripes").unwrap().items().len(), 4);
        assert_eq!(value.get("time").unwrap(), &Value::Number(-1));
    }

    #[test]
    fn what_is_cut_off_is_an_error_with_its_line() {
        for text in [
            "a {",
            "a {\nb = ",
            "a",
            "a = [1",
            "a = \"x",
            "}",
            "a = x",
            "a = }",
            "= 1",
        ] {
            let error = Value::parse(text).unwrap_err();
            assert!(error.starts_with("line "), "{error}");
        }
        assert!(
            Value::parse("a {\nb = ]\n}")
                .unwrap_err()
                .starts_with("line 2")
        );
        assert!(Value::parse(&"a {".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a{}\\[\\]=,\"\\\\#0 \n]{0,60}|.{0,60}") {
            let _ = Value::parse(&text);
        }
    }
}
