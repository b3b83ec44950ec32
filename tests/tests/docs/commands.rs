//! The commands of the documents: each is one of ours with options that it has, one of the repository's files, or a
//! program that is known by name; what they name is there.

use std::{collections::BTreeSet, path::PathBuf};

use drumlin_tests::{
    programs::workspace,
    sources::{files, read},
};

/// Programs that are not ours, whose arguments are their own business.
const OTHERS: [&str; 36] = [
    "apt-get",
    "awk",
    "cat",
    "cd",
    "cp",
    "docker",
    "done",
    "echo",
    "export",
    "for",
    "git",
    "grep",
    "helm",
    "head",
    "install",
    "journalctl",
    "kubectl",
    "lvcreate",
    "lvs",
    "mdbook",
    "mkdir",
    "mkfs.ext4",
    "modprobe",
    "mountpoint",
    "nomad",
    "pg_createcluster",
    "pkill",
    "rm",
    "runuser",
    "sed",
    "sleep",
    "sqlite3",
    "systemctl",
    "truncate",
    "umount",
    "vgcreate",
];

/// A command of a page: its words, without redirections.
#[derive(Debug)]
struct Command {
    page: PathBuf,
    words: Vec<String>,
}

/// The lines of the blocks of a page that a shell reads; of a console, those after its prompt.
fn lines(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut block, mut here, mut open) = (None, None::<String>, false);
    for line in text.lines() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(kind) };
            (here, open) = (None, false);
            continue;
        }
        let line = match block {
            Some("sh") => line,
            Some("console") => match line.split_once(['$', '#']) {
                Some(("", line)) => line,
                _ => continue,
            },
            _ => continue,
        };
        if let Some(end) = &here {
            if line == end {
                here = None;
            }
            continue;
        }
        if let Some((_, end)) = line.split_once("<<'") {
            here = end.split('\'').next().map(str::to_owned);
        }
        // A quoted text of several lines belongs to its first one.
        match found.last_mut() {
            Some(last) if open => last.push_str(line),
            _ => found.push(line.to_owned()),
        }
        open = found
            .last()
            .is_some_and(|last| last.matches('"').count() % 2 == 1);
    }
    found
}

/// The words of a line, each with whether it is an operator that ends a command.
fn words(line: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let (mut word, mut quote) = (String::new(), None);
    let end = |word: &mut String, found: &mut Vec<(String, bool)>| {
        if !word.is_empty() {
            found.push((std::mem::take(word), false));
        }
    };
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#') if word.is_empty() => break,
            (None, '|' | ';' | '&') => {
                end(&mut word, &mut found);
                found.push((String::new(), true));
            }
            (None, letter) if letter.is_whitespace() => end(&mut word, &mut found),
            (None, letter) => word.push(letter),
        }
    }
    end(&mut word, &mut found);
    found
}

/// The simple commands of all pages.
fn commands() -> Vec<Command> {
    let mut pages = files("docs/src", ".md");
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/README.md",
    ];
    pages.extend(others.iter().map(|name| workspace().join(name)));
    let mut found = Vec::new();
    for page in pages {
        for line in lines(&read(&page)) {
            let words = words(&line);
            for words in words.split(|(_, is_operator)| *is_operator) {
                let is_assigned = |word: &&(String, bool)| {
                    let name = word.0.split_once('=').map_or("", |(name, _)| name);
                    !name.is_empty()
                        && name
                            .chars()
                            .all(|letter| letter.is_ascii_uppercase() || letter == '_')
                };
                let words = words.iter().skip_while(is_assigned);
                let words = words.map(|(word, _)| word.clone());
                let words =
                    words.skip_while(|word| ["{", "do", "sudo", "until"].contains(&word.as_str()));
                let words: Vec<String> = words
                    .take_while(|word| !word.starts_with(['>', '<']))
                    .collect();
                if !words.is_empty() && words != ["}"] {
                    found.push(Command {
                        page: page.clone(),
                        words,
                    });
                }
            }
        }
    }
    found
}

/// The options of a command of `drumlin`, if there is one of this name.
fn options(name: &str) -> Option<BTreeSet<String>> {
    let page = read("docs/src/cli.md");
    let section = page.split(&format!("\n## drumlin {name}\n")).nth(1)?;
    let section = section.split("\n## ").next()?;
    let words = section.split([' ', ',', '=', '\n', '`']);
    let options = words.filter(|word| word.starts_with('-'));
    Some(options.map(str::to_owned).collect())
}

/// What is wrong with the arguments of `drumlin`.
fn wrong_arguments(arguments: &[String]) -> Option<String> {
    let name = arguments.first()?;
    if name.starts_with('-') {
        return None;
    }
    let Some(options) = options(name) else {
        return Some(format!("there is no command {name}"));
    };
    let given = arguments
        .iter()
        .filter(|word| word.starts_with('-') && *word != "-");
    let unknown = given
        .map(|word| word.split('=').next().unwrap_or(word))
        .find(|word| !options.contains(*word));
    unknown.map(|word| format!("drumlin {name} has no option {word}"))
}

/// What is wrong with the arguments of Cargo: packages, tests and modules that are not there.
fn wrong_for_cargo(arguments: &[String]) -> Option<String> {
    let after = |option: &str| {
        let place = arguments.iter().position(|word| word == option)?;
        arguments.get(place + 1)
    };
    let homes = ["agent", "crd", "proto", "tests"];
    let manifests: Vec<PathBuf> = homes
        .iter()
        .flat_map(|home| files(home, "Cargo.toml"))
        .collect();
    if let Some(package) = after("--package") {
        let line = format!("name = \"{package}\"");
        if !manifests.iter().any(|path| read(path).contains(&line)) {
            return Some(format!("there is no package {package}"));
        }
    }
    let test = after("--test")?;
    let home = workspace().join("tests/tests").join(test);
    if !home.is_dir() {
        return Some(format!("there are no tests {test}"));
    }
    let module = arguments.iter().find_map(|word| word.split_once("::"))?.0;
    // Over LVM the tests over image files run, too.
    let shared = workspace().join("tests/tests/black_box");
    let homes = [home, shared]
        .into_iter()
        .take(if test == "lvm" { 2 } else { 1 });
    let is_there = homes
        .map(|home| home.join(format!("{module}.rs")))
        .any(|file| file.exists());
    (!is_there).then(|| format!("{test} has no module {module}"))
}

/// What is wrong with `tests/run`, whose filters are modules of some test.
fn wrong_for_run(arguments: &[String]) -> Option<String> {
    let filter = arguments.iter().find_map(|word| word.split_once("::"))?.0;
    let is_there = |test: &str| {
        let path = format!("tests/tests/{test}/{filter}.rs");
        workspace().join(path).exists()
    };
    let is_known = ["black_box", "lvm", "kubernetes", "cluster"]
        .into_iter()
        .any(is_there);
    (!is_known).then(|| format!("no test has a module {filter}"))
}

/// Paths of the repository that are not there. What is built is not looked for.
fn lost_path(words: &[String]) -> Option<String> {
    const HOMES: [&str; 7] = [
        "agent/",
        "crd/",
        "examples/",
        "manifests/",
        "packaging/",
        "proto/",
        "tests/",
    ];
    let ours = words
        .iter()
        .filter(|word| HOMES.iter().any(|home| word.starts_with(home)));
    let lost = ours
        .into_iter()
        .find(|word| !workspace().join(word).exists());
    lost.map(|word| format!("{word} is not there"))
}

fn wrong(words: &[String]) -> Option<String> {
    if let Some(lost) = lost_path(words) {
        return Some(lost);
    }
    let (program, arguments) = words.split_first()?;
    let name = program.rsplit('/').next().unwrap_or(program);
    match (program.as_str(), name) {
        (_, "drumlin") => wrong_arguments(arguments),
        ("cargo", _) if arguments.first().is_some_and(|word| word == "run") => {
            let place = arguments.iter().position(|word| word == "--")?;
            wrong_arguments(&arguments[place + 1..])
        }
        ("cargo", _) => wrong_for_cargo(arguments),
        ("just", _) => {
            let recipe = arguments.first()?;
            let justfile = read("justfile");
            let is_there = |line: &str| line.split([' ', ':']).next() == Some(recipe.as_str());
            (!justfile.lines().any(is_there)).then(|| format!("there is no recipe {recipe}"))
        }
        ("tests/run" | "$TESTS", _) => wrong_for_run(arguments),
        // It runs what follows.
        ("tests/lab/apiserver/run", _) => wrong(arguments.strip_prefix(&["--".to_owned()])?),
        (path, _) if path.starts_with("tests/") || path.starts_with("packaging/") => None,
        (program, _) if OTHERS.contains(&program) => None,
        (program, _) => Some(format!("{program} is not known here")),
    }
}

#[test]
fn every_command_of_the_documents_can_be_given() {
    let commands = commands();
    assert!(commands.len() > 40, "{}", commands.len());
    let wrong: Vec<String> = commands
        .iter()
        .filter_map(|command| {
            let why = wrong(&command.words)?;
            Some(format!(
                "{}: {why}: {:?}",
                command.page.display(),
                command.words
            ))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_cannot_be_given_is_found() {
    for (line, why) in [
        ("drumlin agnet", "there is no command agnet"),
        (
            "target/debug/drumlin agent --manifest x",
            "has no option --manifest",
        ),
        (
            "cargo test --package drumlin-test",
            "there is no package drumlin-test",
        ),
        (
            "cargo test --test black_box -- volume::",
            "has no module volume",
        ),
        (
            "tests/run --over thin volume::",
            "no test has a module volume",
        ),
        (
            "kubectl apply -f examples/lost.yaml",
            "examples/lost.yaml is not there",
        ),
        ("just brew", "there is no recipe brew"),
        ("lvmcreate vg0", "lvmcreate is not known"),
    ] {
        let words: Vec<String> = words(line).into_iter().map(|(word, _)| word).collect();
        let found = wrong(&words).unwrap_or_default();
        assert!(found.contains(why), "{line}: {found}");
    }
}
