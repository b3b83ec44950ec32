//! Reads on after a problem, to find all problems of a value at once.

use serde::de::DeserializeOwned;
use serde_yaml::Value;

use super::{YamlError, document::try_read};

/// A value of which parts may be wrong.
#[derive(Debug)]
pub struct Leniently<T> {
    /// What it says without the parts that are wrong; none where a part is missing that must be there.
    pub value: Option<T>,
    /// The value without the parts that are wrong.
    pub rest: Value,
    /// The problems, in the order in which they were found.
    pub problems: Vec<YamlError>,
    /// The paths of the parts that are wrong.
    left_out: Vec<Vec<String>>,
}

impl<T> Leniently<T> {
    /// Returns true if a field such as `spec.source`, or a part of it, is wrong already.
    pub fn is_wrong(&self, field: &str) -> bool {
        let mut left_out = self.left_out.iter().map(|path| path.join("."));
        left_out.any(|path| {
            let rest = path.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }
}

/// Deserializes a value at the path `within` of `text`, with at most so many problems. What is wrong is left out, and the
/// rest is read again.
pub fn leniently<T: DeserializeOwned>(
    value: Value,
    text: &str,
    within: &[String],
    most: usize,
) -> Leniently<T> {
    let mut read = Leniently {
        value: None,
        rest: value,
        problems: Vec::new(),
        left_out: Vec::new(),
    };
    while read.problems.len() < most {
        let mistake = match try_read(read.rest.clone()) {
            Ok(value) => {
                read.value = Some(value);
                break;
            }
            Err(mistake) => mistake,
        };
        // That it is missing follows from leaving it out.
        let follows = mistake.missing().is_some_and(|field| {
            let mut path = mistake.path.clone();
            path.push(field.to_owned());
            read.left_out.contains(&path)
        });
        if !follows {
            read.problems.push(mistake.at(text, within));
        }
        let Some(path) = leave_out(&mut read.rest, &mistake.path) else {
            break;
        };
        read.left_out.push(path);
    }
    read
}

/// Takes the field at a path out of a value; of a list all of it, since its other items would be counted anew. Returns the
/// path of what was taken; none for the whole value.
fn leave_out(value: &mut Value, path: &[String]) -> Option<Vec<String>> {
    let (mut at, mut place) = (&*value, 0);
    // The last field of a map on the way.
    for (depth, step) in path.iter().enumerate() {
        at = match at {
            Value::Mapping(map) => {
                place = depth + 1;
                map.get(step.as_str())?
            }
            Value::Sequence(items) => items.get(step.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    let path = path.get(..place)?;
    let (last, parents) = path.split_last()?;
    let mut at = value;
    for step in parents {
        at = match at {
            Value::Mapping(map) => map.get_mut(step.as_str())?,
            Value::Sequence(items) => items.get_mut(step.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    at.as_mapping_mut()?.shift_remove(last.as_str())?;
    Some(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Thing {
        name: String,
        #[serde(default)]
        size: u8,
        #[serde(default)]
        parts: Vec<Thing>,
    }

    fn read(text: &str, most: usize) -> Leniently<Thing> {
        leniently(parse(text).unwrap().value, text, &[], most)
    }

    fn lines<T>(read: &Leniently<T>) -> Vec<usize> {
        read.problems.iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn all_problems_are_found_and_none_that_follows_from_another() {
        let text = "nmae: x\nname: [1]\nsize: big\nparts:\n- {name: a, sie: 1}\n- {name: b, size: 2}\n- {size: 3}\nmore: 1\n";
        let found = read(text, 100);
        assert_eq!(lines(&found), [1, 2, 3, 5, 7, 8]);
        assert!(found.value.is_none());
        assert!(found.is_wrong("name") && found.is_wrong("parts") && !found.is_wrong("par"));
    }

    #[test]
    fn the_rest_is_read_without_what_is_wrong() {
        let found = read(
            "name: a\nsize: 300\nparts: [{name: b, size: x}, {name: c}]\n",
            100,
        );
        assert_eq!(lines(&found), [2, 3]);
        let thing = found.value.unwrap();
        let names: Vec<_> = thing.parts.iter().map(|part| &part.name).collect();
        assert_eq!((thing.name.as_str(), thing.size), ("a", 0));
        assert_eq!(names, ["b", "c"]);
    }

    #[test]
    fn it_ends_after_so_many_and_where_nothing_is_left() {
        let many: Vec<String> = (0..50).map(|number| format!("f{number}: 1\n")).collect();
        let many = many.concat();
        assert_eq!(read(&many, 7).problems.len(), 7);
        assert_eq!(read(&many, 100).problems.len(), 51);
        assert_eq!(lines(&read("- 1\n", 100)), [1]);
        assert_eq!(lines(&read("name: a\nparts: [1, 2]\n", 100)), [2]);
    }
}
