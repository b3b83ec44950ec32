//! Reads on after a problem, to find all problems of a value at once.

use serde::de::DeserializeOwned;
use serde_yaml::Value;

use super::{YamlError, document::try_read, location::steps};

/// A value of which parts may be wrong.
#[derive(Debug)]
pub struct Leniently<T> {
    /// What it says without the parts that are wrong; none where a part is missing that must be there.
    pub value: Option<T>,
    /// The value without the parts that are wrong.
    pub rest: Value,
    /// The problems, in the order in which they were found.
    pub problems: Vec<YamlError>,
    left_out: LeftOut,
}

impl<T> Leniently<T> {
    /// Returns true if a field such as `spec.source`, or a part of it, is wrong already.
    pub fn is_wrong(&self, field: &str) -> bool {
        let mut left_out = self.left_out.paths.iter().map(|path| path.join("."));
        left_out.any(|path| {
            let rest = path.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    /// The field of the value as it was, of a field of the value without the parts that are wrong.
    pub fn original(&self, field: &str) -> String {
        let path: Vec<String> = field.split('.').map(str::to_owned).collect();
        self.left_out.original(&path).join(".")
    }
}

impl<T: DeserializeOwned> Leniently<T> {
    /// Leaves out a field of what is left, which whoever reads the value has refused, and reads the rest again. Returns false
    /// if there is nothing to be left out.
    ///
    /// `text` is that of the value, which may have so many problems at most.
    pub fn leave_out(&mut self, field: &str, text: &str, most: usize) -> bool {
        let path = steps(Some(&self.rest), field);
        let original = self.left_out.original(&path);
        let Some(part) = leave_out(&mut self.rest, &path) else {
            return false;
        };
        self.left_out.add(&original, part);
        self.value = None;
        self.read_on(text, &[], most);
        true
    }

    /// Reads the value; what is wrong is left out, and the rest is read again.
    fn read_on(&mut self, text: &str, within: &[String], most: usize) {
        while self.problems.len() < most {
            let mut mistake = match try_read(self.rest.clone()) {
                Ok(value) => {
                    self.value = Some(value);
                    break;
                }
                Err(mistake) => mistake,
            };
            let original = self.left_out.original(&mistake.path);
            let path = std::mem::replace(&mut mistake.path, original);
            // That it is missing follows from leaving it out.
            let follows = mistake.missing().is_some_and(|field| {
                let mut path = mistake.path.clone();
                path.push(field.to_owned());
                self.left_out.paths.contains(&path)
            });
            let follows = follows || self.is_emptied(&mistake.path, &path);
            if !follows {
                self.problems.push(mistake.at(text, within));
            }
            let Some(part) = leave_out(&mut self.rest, &path) else {
                break;
            };
            self.left_out.add(&mistake.path, part);
        }
    }
}

impl<T> Leniently<T> {
    /// Returns true for a list that has nothing any more because all of it was left out.
    fn is_emptied(&self, original: &[String], path: &[String]) -> bool {
        let mut items = self.left_out.items.iter();
        let found = path.iter().try_fold(&self.rest, |value, step| match value {
            Value::Mapping(fields) => fields.get(step.as_str()),
            Value::Sequence(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        });
        let list = found.and_then(Value::as_sequence);
        items.any(|(list, _)| list == original) && list.is_some_and(Vec::is_empty)
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
        left_out: LeftOut::default(),
    };
    read.read_on(text, within, most);
    read
}

/// What was taken out of a value, by paths in the value as it was.
#[derive(Debug, Default)]
struct LeftOut {
    paths: Vec<Vec<String>>,
    /// Those that are items of lists: the path of the list, and the index.
    items: Vec<(Vec<String>, usize)>,
}

/// What was taken out: as many steps of a path, to a field or to an item of a list.
enum Part {
    Field(usize),
    Item(usize),
}

impl LeftOut {
    fn add(&mut self, path: &[String], part: Part) {
        let (Part::Field(steps) | Part::Item(steps)) = part;
        let path = path.get(..steps).unwrap_or(path);
        self.paths.push(path.to_vec());
        if let (Part::Item(_), Some((last, list))) = (part, path.split_last()) {
            let index = last.parse().ok();
            self.items.extend(index.map(|index| (list.to_vec(), index)));
            // In the order in which they move what comes after them.
            self.items.sort();
        }
    }

    /// The path in the value as it was, of a path in what is left of it: the items of a list that come after one that was
    /// taken out have moved.
    fn original(&self, path: &[String]) -> Vec<String> {
        let mut original: Vec<String> = Vec::new();
        for step in path {
            let taken = self.items.iter().filter(|(list, _)| *list == original);
            let mut taken = taken.map(|(_, index)| *index).peekable();
            let step = match step.parse::<usize>() {
                Ok(index) if taken.peek().is_some() => {
                    let was = taken.fold(index, |at, taken| at + usize::from(taken <= at));
                    was.to_string()
                }
                _ => step.clone(),
            };
            original.push(step);
        }
        original
    }
}

/// Takes the field, or the item of a list, at a path out of a value; none for the whole value.
fn leave_out(value: &mut Value, path: &[String]) -> Option<Part> {
    // What is at the end may not be there to be taken out.
    (1..=path.len()).rev().find_map(|steps| {
        let (last, parents) = path.get(..steps)?.split_last()?;
        let mut at = &mut *value;
        for step in parents {
            at = match at {
                Value::Mapping(map) => map.get_mut(step.as_str())?,
                Value::Sequence(items) => items.get_mut(step.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        match at {
            Value::Mapping(map) => {
                map.shift_remove(last.as_str())?;
                Some(Part::Field(steps))
            }
            Value::Sequence(items) => {
                let index = last.parse().ok()?;
                (index < items.len()).then(|| items.remove(index))?;
                Some(Part::Item(steps))
            }
            _ => None,
        }
    })
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
    fn what_a_reader_refuses_is_left_out_as_well() {
        let text = "name: a\nsize: 1\nparts: [{name: b}, {name: 5}, {name: c, size: 2}]\n";
        let mut found = read(text, 100);
        assert!(found.leave_out("parts.0", text, 100) && found.leave_out("size", text, 100));
        assert_eq!(found.original("parts.0.size"), "parts.2.size");
        assert!(found.is_wrong("parts.0") && found.is_wrong("size"));
        let thing = found.value.as_ref().unwrap();
        assert_eq!((thing.size, thing.parts.len()), (0, 1));
        assert!(!found.leave_out("size", text, 100));
        assert!(
            found.leave_out("parts.0.name", text, 100),
            "and so the part is none"
        );
        assert_eq!(found.value.as_ref().unwrap().parts.len(), 0);
        assert_eq!(lines(&found), [3], "nothing follows from it");
    }

    #[test]
    fn it_ends_after_so_many_and_where_nothing_is_left() {
        let many: Vec<String> = (0..50).map(|number| format!("f{number}: 1\n")).collect();
        let many = many.concat();
        assert_eq!(read(&many, 7).problems.len(), 7);
        assert_eq!(read(&many, 100).problems.len(), 51);
        assert_eq!(lines(&read("- 1\n", 100)), [1]);
        assert_eq!(lines(&read("name: a\nparts: [1, 2]\n", 100)), [2, 2]);
    }

    #[test]
    fn each_item_of_a_list_is_read_and_has_its_own_place() {
        let text = "name: a\nparts:\n- 1\n- {name: [b]}\n- {name: c}\n- {size: 2}\n- {name: d, parts: [{}, {name: e, size: x}]}\n- {}\n";
        let found = read(text, 100);
        let told: Vec<&str> = found
            .problems
            .iter()
            .map(|problem| problem.message.split(": ").next().unwrap())
            .collect();
        assert_eq!(
            told,
            [
                "parts.0",
                "parts.1.name",
                "parts.3",
                "parts.4.parts.0",
                "parts.4.parts.1.size",
                "parts.5",
            ]
        );
        assert_eq!(lines(&found), [3, 4, 6, 7, 7, 8]);
        let names: Vec<&str> = found
            .value
            .as_ref()
            .unwrap()
            .parts
            .iter()
            .map(|part| &*part.name)
            .collect();
        assert_eq!(names, ["c", "d"]);
        assert_eq!(found.original("parts.0.name"), "parts.2.name");
        assert_eq!(found.original("parts.1.parts.0"), "parts.4.parts.1");
        assert!(found.is_wrong("parts") && !found.is_wrong("parts.2"));
    }
}
