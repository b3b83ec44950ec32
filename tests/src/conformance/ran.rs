//! Which tests ran and passed, by what the test runner printed.

use std::collections::BTreeSet;

use crate::applies::MARK;

/// The kinds of logical volumes that the same tests run over.
const KINDS: [&str; 3] = ["thin", "linear", "raid1"];

/// What `tests/run` does not repeat over linear volumes on each change: what is the same over all logical volumes.
const ON_THIN_ALONE: [&str; 6] = [
    "access_modes",
    "attach",
    "concurrency",
    "device_health",
    "node",
    "volume_groups",
];

/// And what it repeats over mirrored ones: what of it depends on mirrors.
const ON_MIRRORS: [&str; 1] = ["group_snapshots"];

/// A test: over which kind of logical volumes, in which binary, by which name.
type Test = (Option<String>, String, String);

/// The tests that passed.
#[derive(Debug, Default)]
pub struct Ran {
    passed: BTreeSet<Test>,
    /// Those that said that they do not apply where they run, and have not ended yet.
    about_to_end: BTreeSet<Test>,
    idle: usize,
}

impl Ran {
    /// Reads the output of `tests/run`.
    pub fn read(output: &str) -> Self {
        let mut ran = Self::default();
        let (mut kind, mut binary) = (None, "");
        // A test that runs alone has its name on the line before what it prints itself.
        let mut begun: Option<&str> = None;
        for line in output.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix(MARK) {
                ran.does_not_apply(kind, rest);
            } else if let Some(rest) = line.strip_prefix("tests/run: over ") {
                kind = rest.split_whitespace().next();
            } else if let Some(found) = binary_of(line) {
                binary = found;
                begun = None;
            } else if let Some((name, outcome)) = test_of(line) {
                begun = Some(name).filter(|_| outcome.is_empty());
                if outcome.ends_with("ok") {
                    ran.passed(kind, binary, name);
                }
            } else if line == "ok"
                && let Some(name) = begun.take()
            {
                ran.passed(kind, binary, name);
            }
        }
        ran
    }

    fn passed(&mut self, kind: Option<&str>, binary: &str, name: &str) {
        let test = test(kind, binary, name);
        // It said so before it ended. Another run of the same test, on another host, counts.
        if !self.about_to_end.remove(&test) {
            self.passed.insert(test);
        }
    }

    /// Takes `binary::module::function: why`.
    fn does_not_apply(&mut self, kind: Option<&str>, line: &str) {
        let named = line.split_once(": ").map_or(line, |(named, _)| named);
        if let Some((binary, name)) = named.split_once("::") {
            self.about_to_end.insert(test(kind, binary, name));
            self.idle += 1;
        }
    }

    /// How many tests said that they do not apply where they ran.
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// Whether a test that is named `binary::module::function` passed, over whatever.
    pub fn has(&self, named: &str) -> bool {
        let Some((binary, name)) = named.split_once("::") else {
            return false;
        };
        let mut passed = self.passed.iter();
        passed.any(|(_, in_binary, passed)| in_binary == binary && passed == name)
    }

    /// The back ends over which a test did not pass.
    pub fn lacks(&self, named: &str) -> Vec<&'static str> {
        let name = named.split_once("::").map_or(named, |(_, name)| name);
        let over = |kind: &&str| {
            if !runs_over(kind, name) {
                return false;
            }
            !self.passed.contains(&test(Some(kind), "lvm", name))
        };
        let mut lacks: Vec<&str> = KINDS.into_iter().filter(over).collect();
        if !self.has(named) {
            lacks.push("image files");
        }
        lacks
    }
}

/// Kinds matter to the tests over logical volumes alone.
fn test(kind: Option<&str>, binary: &str, name: &str) -> Test {
    let kind = kind.filter(|_| binary == "lvm").map(str::to_owned);
    (kind, binary.to_owned(), name.to_owned())
}

/// Whether a test of the name `module::function` is run over such volumes on each change.
fn runs_over(kind: &str, name: &str) -> bool {
    let module = name.split_once("::").map_or(name, |(module, _)| module);
    match kind {
        "linear" => !ON_THIN_ALONE.contains(&module),
        "raid1" => ON_MIRRORS.contains(&module),
        _ => true,
    }
}

/// The binary whose tests follow: `Running tests/lvm/main.rs (target/debug/deps/lvm-0123456789abcdef)`.
fn binary_of(line: &str) -> Option<&str> {
    let path = line.strip_prefix("Running ")?.rsplit_once('(')?.1;
    let file = path.trim_end_matches(')').rsplit('/').next()?;
    file.rsplit_once('-').map(|(binary, _)| binary)
}

/// A line of a test: its name, and what became of it if that is on the line.
fn test_of(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ...")?;
    (!name.contains(' ')).then_some((name, outcome.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
     Running unittests src/lib.rs (target/debug/deps/drumlin_core-1f)
test types::size::tests::a ... ok
     Running tests/black_box/main.rs (target/debug/deps/black_box-2f)
test volumes::a ... ok
test volumes::b ... FAILED
test volumes::c ... ignored
tests/run: over thin volumes: volumes::
     Running tests/lvm/main.rs (target/debug/deps/lvm-3f)
test volumes::a ...\u{20}
a word of its own
ok\r
tests/run: over linear volumes: volumes::
     Running tests/lvm/main.rs (target/debug/deps/lvm-3f)
test volumes::a ... ok
test volumes::d ...
tests/run: does not apply: lvm::volumes::d: it has no pool
ok
test volumes::e ... ok
test result: ok. 3 passed; 0 failed
tests/run: over linear volumes: volumes::
     Running tests/lvm/main.rs (target/debug/deps/lvm-3f)
test volumes::e ...
tests/run: does not apply: lvm::volumes::e: there is no udevd
ok
test result: ok. 1 passed; 0 failed
";

    #[test]
    fn what_passed_is_known_by_binary_and_back_end() {
        let ran = Ran::read(OUTPUT);
        assert!(ran.has("drumlin_core::types::size::tests::a"));
        assert!(ran.has("black_box::volumes::a") && ran.has("lvm::volumes::a"));
        assert_eq!(ran.idle(), 2);
        assert!(ran.has("lvm::volumes::e"), "it passed in another lane");
        for not in [
            "black_box::volumes::b",
            "black_box::volumes::c",
            "lvm::a",
            "lvm::volumes::d",
        ] {
            assert!(!ran.has(not), "{not}");
        }
        assert_eq!(ran.lacks("black_box::volumes::a"), [""; 0]);
        assert_eq!(
            ran.lacks("black_box::group_snapshots::a"),
            ["thin", "linear", "raid1", "image files"]
        );
        let not_mirrored = "black_box::rollback::a";
        assert_eq!(ran.lacks(not_mirrored), ["thin", "linear", "image files"]);
        assert_eq!(ran.lacks("black_box::attach::a"), ["thin", "image files"]);
    }
}
