//! A YAML document as a tree, parts of which are there on a condition.

use serde_yaml::Value;

/// A part of a document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    /// One line, as it is written.
    Scalar(String),
    /// Several lines, as they are.
    Text(String),
    Map(Vec<Member>),
    List(Vec<Member>),
    /// What a value of the chart says, by its path.
    Value(String),
}

/// A member of a map or a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    /// Empty in a list.
    pub(crate) key: String,
    pub(crate) node: Node,
    /// The value on which it is there; always without one.
    pub(crate) when: Option<String>,
}

impl Member {
    /// One that is always there.
    pub(crate) fn new(key: impl Into<String>, node: Node) -> Self {
        Self {
            key: key.into(),
            node,
            when: None,
        }
    }

    /// The same where a value is true, or not empty.
    pub(crate) fn when(mut self, value: &str) -> Self {
        self.when = Some(value.to_owned());
        self
    }
}

impl Node {
    /// A document, as the manifests have it.
    ///
    /// # Errors
    /// What a manifest should not have.
    pub(crate) fn of(value: &Value) -> Result<Self, String> {
        Ok(match value {
            Value::Mapping(members) => {
                let members = members.iter().map(|(key, value)| {
                    let key = key.as_str().ok_or("a key that is no text")?;
                    Ok(Member::new(literal(key), Self::of(value)?))
                });
                Self::Map(members.collect::<Result<_, String>>()?)
            }
            Value::Sequence(members) => {
                let members = members.iter();
                let members = members.map(|value| Ok(Member::new("", Self::of(value)?)));
                Self::List(members.collect::<Result<_, String>>()?)
            }
            Value::String(text) if is_block(text) => Self::Text(template(text)),
            Value::String(text) => Self::Scalar(literal(text)),
            Value::Null => Self::Scalar("null".to_owned()),
            Value::Bool(value) => Self::Scalar(value.to_string()),
            Value::Number(value) => Self::Scalar(value.to_string()),
            Value::Tagged(tagged) => return Err(format!("a tag: {}", tagged.tag)),
        })
    }

    /// What is at a path, such as `spec/template`.
    pub(crate) fn at(&mut self, path: &str) -> Option<&mut Self> {
        let mut node = self;
        for segment in path.split('/') {
            node = match node {
                Self::Map(members) => {
                    let mut members = members.iter_mut();
                    &mut members.find(|member| member.key == segment)?.node
                }
                Self::List(members) => &mut members.get_mut(segment.parse::<usize>().ok()?)?.node,
                _ => return None,
            };
        }
        Some(node)
    }

    /// The text at a path.
    pub(crate) fn text_at(&mut self, path: &str) -> Option<&str> {
        match self.at(path)? {
            Self::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// Its members, if it is a map.
    pub(crate) fn members(&mut self) -> Option<&mut Vec<Member>> {
        match self {
            Self::Map(members) => Some(members),
            _ => None,
        }
    }
}

/// Returns true for a text that YAML has as several lines.
fn is_block(text: &str) -> bool {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    lines.contains('\n') && !text.starts_with([' ', '\n']) && !lines.ends_with('\n')
}

/// What else helm's YAML takes for something that is no text.
const NO_TEXTS: [&str; 8] = ["y", "n", "yes", "no", "on", "off", "true", "false"];

/// A text as a scalar: quoted where YAML could take it for something else.
fn literal(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let is_word = NO_TEXTS.contains(&&*text.to_lowercase()) || text.eq_ignore_ascii_case("null");
    if begins && text.chars().all(is_plain) && !is_word {
        template(text)
    } else {
        // A text of JSON is one of YAML.
        template(&serde_json::Value::from(text).to_string())
    }
}

/// A text of the manifests as one of a template: what looks like a template is none, and what an installation may choose is
/// a value.
fn template(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}")
        .replace("drumlin-system", "{{ .Release.Namespace }}")
        .replace("/var/lib/kubelet", "{{ .Values.kubeletDir }}")
}
