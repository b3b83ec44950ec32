//! `drumlin validate`: validates manifests without an agent.

use std::{
    collections::HashMap,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use drumlin_crd::{Manifest, ObjectKey, Problem, quote, yaml::Location};
use drumlin_reconciler::{
    Entry,
    colours::RED,
    counted,
    status::{FileProblem, Form, ignored},
};
use serde::Serialize;

use super::print::print_styled;
use crate::cli::{DataOutput, ValidateArguments};

/// Exit code if a manifest is invalid.
const INVALID: u8 = 4;

/// Prints all problems.
pub(crate) fn run(arguments: &ValidateArguments) -> anyhow::Result<ExitCode> {
    let mut validation = Validation::default();
    for path in &arguments.paths {
        validation.add(path)?;
    }
    print_styled(&validation.render(DataOutput::form(arguments.output)));
    Ok(if validation.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INVALID)
    })
}

/// What was found in manifests.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Validation {
    /// The number of files.
    files: usize,
    /// The number of objects in those that are valid.
    objects: usize,
    problems: Vec<QuotedProblem>,
    /// Files and subdirectories of the directories that may be meant as manifests, and are ignored.
    ignored_files: Vec<String>,
    /// The number of documents of other API groups, which are ignored.
    ignored_documents: usize,
    /// Where each object is.
    #[serde(skip)]
    places: HashMap<ObjectKey, String>,
}

/// A problem, and the line of the file with the place marked.
#[derive(Debug, Serialize)]
struct QuotedProblem {
    #[serde(flatten)]
    problem: FileProblem,
    /// Empty if there is no such line.
    #[serde(skip)]
    quoted: String,
}

impl Validation {
    /// Adds a file, or the manifests of a directory.
    fn add(&mut self, path: &Path) -> anyhow::Result<()> {
        let Found { files, ignored } = Found::at(path)?;
        self.ignored_files.extend(ignored);
        if files.is_empty() {
            let message = "contains no manifests; subdirectories are not read";
            self.problems.push(QuotedProblem::of_whole(path, message));
        }
        for file in files {
            let text =
                fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
            self.files += 1;
            let Ok(text) = String::from_utf8(text) else {
                let problem = QuotedProblem::new(&file, at_begin(1, "is not UTF-8 text"));
                self.problems.push(problem);
                continue;
            };
            match drumlin_crd::read(&text) {
                Err(wrong) => self.problems.extend(wrong.into_iter().map(|problem| {
                    let Problem { line, column, .. } = problem;
                    QuotedProblem {
                        quoted: quote(&text, Location { line, column }),
                        ..QuotedProblem::new(&file, problem)
                    }
                })),
                Ok(manifest) => self.add_objects(&file, manifest),
            }
        }
        Ok(())
    }

    /// Adds the objects of a valid file, which no other one may have.
    fn add_objects(&mut self, file: &Path, manifest: Manifest) {
        self.ignored_documents += manifest.foreign.len();
        for document in manifest.documents {
            self.objects += 1;
            let place = format!("{}:{}", file.display(), document.line);
            let key = document.object.key();
            if let Some(first) = self.places.insert(key.clone(), place) {
                let message = format!("duplicate object {key}, first defined at {first}");
                let problem = Problem {
                    object: Some(key),
                    ..at_begin(document.line, &message)
                };
                self.problems.push(QuotedProblem::new(file, problem));
            }
        }
    }

    /// For people `file:line:column: field: message`, and below it the line of the file, with colours: whoever prints it
    /// removes them where they do not belong.
    fn render(&self, form: Form) -> String {
        if let Some(data) = form.data(self) {
            return data;
        }
        let mut ignored = ignored(&self.ignored_files);
        if self.ignored_documents > 0 {
            let documents = self.ignored_documents;
            let _ = writeln!(
                ignored,
                "IGNORED documents of other API groups: {documents}"
            );
        }
        if self.problems.is_empty() {
            let files = counted(self.files, "file");
            let objects = counted(self.objects, "object");
            return format!("{files}, {objects}: valid\n{ignored}");
        }
        let mut text = String::new();
        for QuotedProblem { problem, quoted } in &self.problems {
            let FileProblem { file, problem } = problem;
            let place = match problem.line {
                0 => file.clone(),
                line => format!("{file}:{line}:{}", problem.column),
            };
            let _ = writeln!(text, "{RED}{place}: {}{RED:#}", problem.message);
            if !quoted.is_empty() {
                let _ = writeln!(text, "{quoted}");
            }
        }
        text.push_str(&ignored);
        text
    }
}

impl QuotedProblem {
    fn new(file: &Path, problem: Problem) -> Self {
        Self {
            problem: FileProblem {
                file: file.display().to_string(),
                problem,
            },
            quoted: String::new(),
        }
    }

    /// A problem of a whole directory, which is at no line.
    fn of_whole(path: &Path, message: &str) -> Self {
        let problem = Problem {
            column: 0,
            ..at_begin(0, message)
        };
        Self::new(path, problem)
    }
}

/// A problem of what begins at a line.
fn at_begin(line: usize, message: &str) -> Problem {
    Problem {
        line,
        column: 1,
        object: None,
        message: message.to_owned(),
    }
}

/// What there is at a path: the file itself, or the manifests of a directory.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    /// Entries of the directory that may be meant as manifests, and are ignored.
    ignored: Vec<String>,
}

impl Found {
    fn at(path: &Path) -> anyhow::Result<Self> {
        let reading = || format!("could not read {}", path.display());
        if !fs::metadata(path).with_context(reading)?.is_dir() {
            return Ok(Self {
                files: vec![path.to_owned()],
                ..Self::default()
            });
        }
        let mut found = Self::default();
        for entry in fs::read_dir(path).with_context(reading)? {
            let entry = entry.with_context(reading)?;
            match Entry::of(&entry) {
                Entry::Manifest(_) => found.files.push(entry.path()),
                Entry::Ignored(name) => found.ignored.push(path.join(name).display().to_string()),
                Entry::Other => {}
            }
        }
        found.files.sort_unstable();
        found.ignored.sort_unstable();
        Ok(found)
    }
}
