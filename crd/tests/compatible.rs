//! What a release had is kept by every later one: objects that its server took are taken, and mean the same.
//!
//! `released/` has the definitions of the last release; `DRUMLIN_RELEASE=1 cargo test -p drumlin-crd` writes them anew, as a
//! part of a release and never else. Until the first one they are those of its day.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::{collections::BTreeSet, fs, path::Path};

use drumlin_crd::{crds, to_yaml};
use serde_json::{Map, Value, json};

/// The bounds that only may become wider: up, and down.
const UPPER: [&str; 4] = ["maximum", "maxLength", "maxItems", "maxProperties"];
const LOWER: [&str; 4] = ["minimum", "minLength", "minItems", "minProperties"];
/// What must stay as it is.
const SAME: [&str; 7] = [
    "type",
    "format",
    "pattern",
    "default",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
];

/// What of a schema an object that was valid before may break at.
fn breaks(at: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    for key in SAME {
        if old.get(key) != new.get(key) {
            found.push(format!("{at}: {key} is not {} any more", old[key]));
        }
    }
    for (keys, grows) in [(UPPER, true), (LOWER, false)] {
        for key in keys {
            let (old, new) = (old[key].as_f64(), new[key].as_f64());
            let is_tighter = match (old, new) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(old), Some(new)) => (new < old) == grows && new.to_bits() != old.to_bits(),
            };
            if is_tighter {
                found.push(format!("{at}: {key} is tighter"));
            }
        }
    }
    let texts = |value: &Value, key: &str| -> BTreeSet<String> {
        let all = value[key].as_array().into_iter().flatten();
        all.map(Value::to_string).collect()
    };
    if new.get("enum").is_some() {
        let has_all =
            old.get("enum").is_some() && texts(old, "enum").is_subset(&texts(new, "enum"));
        if !has_all {
            found.push(format!("{at}: enum has lost values"));
        }
    }
    for added in texts(new, "required").difference(&texts(old, "required")) {
        found.push(format!("{at}: {added} is required now"));
    }
    let rules = |value: &Value| -> BTreeSet<String> {
        let all = value["x-kubernetes-validations"].as_array();
        all.into_iter()
            .flatten()
            .map(|rule| rule["rule"].to_string())
            .collect()
    };
    for added in rules(new).difference(&rules(old)) {
        found.push(format!("{at}: there is a new rule {added}"));
    }
    let none = Map::new();
    let properties = |value: &Value| value["properties"].as_object().unwrap_or(&none).clone();
    let now = properties(new);
    for (name, old) in properties(old) {
        let at = format!("{at}.{name}");
        match now.get(&name) {
            None => found.push(format!("{at} is gone")),
            Some(new) => breaks(&at, &old, new, found),
        }
    }
    for key in ["items", "additionalProperties"] {
        match (old.get(key), new.get(key)) {
            (Some(old), Some(new)) => breaks(&format!("{at}[]"), old, new, found),
            (None, None) => {}
            _ => found.push(format!("{at}: {key} has come or gone")),
        }
    }
}

/// What of a definition clients of the former one would miss.
fn broken(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let set = |value: &Value, path: &str| -> BTreeSet<String> {
        let all = value.pointer(path).and_then(Value::as_array);
        all.into_iter().flatten().map(Value::to_string).collect()
    };
    for path in ["/spec/names/shortNames", "/spec/names/categories"] {
        for lost in set(old, path).difference(&set(new, path)) {
            found.push(format!("{path} has lost {lost}"));
        }
    }
    for path in [
        "/spec/group",
        "/spec/names/kind",
        "/spec/names/plural",
        "/spec/scope",
    ] {
        if old.pointer(path) != new.pointer(path) {
            found.push(format!("{path} is another"));
        }
    }
    let versions = |value: &Value| value["spec"]["versions"].as_array().unwrap().clone();
    for old in versions(old) {
        let name = &old["name"];
        let Some(new) = versions(new).into_iter().find(|new| new["name"] == *name) else {
            found.push(format!("version {name} is gone"));
            continue;
        };
        if old["served"] != new["served"] || old["subresources"] != new["subresources"] {
            found.push(format!("version {name} is served in another way"));
        }
        for path in ["/selectableFields", "/additionalPrinterColumns"] {
            for lost in set(&old, path).difference(&set(&new, path)) {
                found.push(format!("{path} has lost {lost}"));
            }
        }
        let schema = |value: &Value| value["schema"]["openAPIV3Schema"].clone();
        breaks("", &schema(&old), &schema(&new), &mut found);
    }
    found
}

#[test]
fn nothing_of_the_last_release_is_taken_away() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/released");
    for (file, new) in crds() {
        let path = directory.join(&file);
        if std::env::var_os("DRUMLIN_RELEASE").is_some() {
            fs::create_dir_all(&directory).unwrap();
            fs::write(&path, to_yaml(&new)).unwrap();
        }
        // A kind that is new has nothing to keep.
        if let Ok(text) = fs::read_to_string(&path) {
            let old: Value = serde_yaml::from_str(&text).unwrap();
            assert_eq!(broken(&old, &new), Vec::<String>::new(), "{file}");
        }
    }
    let kinds: BTreeSet<String> = crds().into_iter().map(|(file, _)| file).collect();
    for entry in fs::read_dir(directory).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        assert!(kinds.contains(&file), "{file} is gone");
    }
}

#[test]
fn whatever_is_taken_away_or_made_tighter_is_seen() {
    let (_, old) = crds().remove(0);
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let field = |name: &str| format!("{spec}/properties/{name}");
    let mut taken = 0;
    let mut check = |path: &str, change: &dyn Fn(&mut Value), is_seen: bool| {
        let mut new = old.clone();
        change(new.pointer_mut(path).unwrap());
        assert_ne!(new, old, "{path}");
        assert_eq!(!broken(&old, &new).is_empty(), is_seen, "{path}: {new}");
        taken += usize::from(is_seen);
    };
    let without = |key: &'static str| {
        move |value: &mut Value| {
            value.as_object_mut().unwrap().remove(key);
        }
    };
    let with = |key: &'static str, to: Value| {
        move |value: &mut Value| {
            value[key] = to.clone();
        }
    };
    check(&format!("{spec}/properties"), &without("mount"), true);
    check(spec, &with("required", json!(["capacity", "fsType"])), true);
    check(&field("capacity"), &with("maxLength", json!(8)), true);
    check(&field("capacity"), &with("maxLength", json!(128)), false);
    check(&field("capacity"), &without("maxLength"), false);
    check(&field("capacity"), &with("type", json!("integer")), true);
    check(&field("capacity"), &with("pattern", json!("^1")), true);
    check(&field("fsType"), &with("enum", json!(["ext4"])), true);
    check(
        &field("fsType"),
        &with("enum", json!(["ext4", "xfs", "btrfs", "f2fs"])),
        false,
    );
    check(&field("volumeMode"), &without("default"), true);
    check(
        &field("capacity"),
        &without("x-kubernetes-validations"),
        false,
    );
    check(
        spec,
        &with("x-kubernetes-validations", json!([{"rule": "false"}])),
        true,
    );
    check(
        &format!("{spec}/properties"),
        &with("another", json!({"type": "string"})),
        false,
    );
    check(
        &field("mount/properties/options"),
        &with("maxItems", json!(1)),
        true,
    );
    check(
        &field("mount/properties/options/items"),
        &with("maxLength", json!(1)),
        true,
    );
    check("/spec/names", &without("shortNames"), true);
    check("/spec/versions/0", &without("selectableFields"), true);
    check(
        "/spec/versions/0",
        &without("additionalPrinterColumns"),
        true,
    );
    check("/spec/versions/0", &with("name", json!("v1")), true);
    assert!(taken > 12, "{taken}");
}
