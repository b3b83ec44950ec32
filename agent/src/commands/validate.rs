//! `drumlin validate`: validates manifests without an agent.

use std::{
    collections::HashMap,
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use drumlin_crd::{Manifest, ObjectKey, Problem, quote, yaml::Location};
use drumlin_reconciler::{
    Entry,
    colours::{RED, YELLOW},
    counted,
    manifest_scan::{self, Manifests, Refusal},
    status::{FileProblem, Form, ignored},
};
use nix::unistd::Uid;
use serde::Serialize;

use super::{known_manifests::known, print::print_styled};
use crate::cli::{DataOutput, ManifestsArguments, ValidateArguments};

/// Exit code if a manifest is invalid.
const INVALID: u8 = 4;

/// Prints all problems.
pub(crate) fn run(arguments: &ValidateArguments) -> anyhow::Result<ExitCode> {
    let mut validation = Validation {
        followed: Followed::known(arguments),
        owners: arguments.owners.manifest_owners.clone(),
        ..Validation::default()
    };
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
    /// What a reconciler would refuse, if it were to follow what it does not.
    warnings: Vec<QuotedProblem>,
    /// Files and subdirectories of the directories that may be meant as manifests, and are ignored.
    ignored_files: Vec<String>,
    /// The number of documents of other API groups, which are ignored.
    ignored_documents: usize,
    /// Where each object is.
    #[serde(skip)]
    places: HashMap<ObjectKey, String>,
    /// The directory that the reconciler follows, if one is known.
    #[serde(skip)]
    followed: Option<Followed>,
    /// Users whose manifests are trusted elsewhere, besides root and the user of this command.
    #[serde(skip)]
    owners: Vec<u32>,
}

/// The directory that the reconciler of this host follows.
#[derive(Debug)]
struct Followed {
    directory: PathBuf,
    /// The user who runs it.
    user: u32,
    /// Users whose manifests it trusts, besides root and its own.
    owners: Vec<u32>,
}

impl Followed {
    fn known(arguments: &ValidateArguments) -> Option<Self> {
        let known = known(
            &ManifestsArguments {
                manifests: None,
                config: arguments.config.clone(),
                owners: arguments.owners.clone(),
            },
            &arguments.state_dir,
        );
        let Manifests { directory, owners } = known.ok()?;
        let state = fs::metadata(&arguments.state_dir);
        Some(Self {
            directory: fs::canonicalize(directory).ok()?,
            user: state.map_or_else(|_| Uid::effective().as_raw(), |state| state.uid()),
            owners,
        })
    }

    /// Returns true for the directory, and for a file directly in it.
    fn has(&self, path: &Path) -> bool {
        let is_it = |path: &Path| fs::canonicalize(path).is_ok_and(|path| path == self.directory);
        let parent = path.parent().map(|parent| {
            if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            }
        });
        is_it(path) || parent.is_some_and(is_it)
    }
}

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Checked {
    Read,
    /// It is none, or too large.
    NotRead,
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
        if path.is_dir() {
            self.check_trust(path, QuotedProblem::of_whole)?;
        }
        self.ignored_files.extend(ignored);
        if files.is_empty() {
            let message = "contains no manifests; subdirectories are not read";
            self.problems.push(QuotedProblem::of_whole(path, message));
        }
        for file in files {
            let refused = self.check_trust(&file, |file, why| {
                QuotedProblem::new(file, at_begin(1, why))
            })?;
            if refused == Checked::NotRead {
                self.files += 1;
                continue;
            }
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

    /// Notes if the reconciler would not read a file or directory, whatever is in it. Where it does not follow, as in a checkout
    /// of its user, owner and mode are those of the place, and no error.
    fn check_trust(
        &mut self,
        path: &Path,
        problem: impl Fn(&Path, &str) -> QuotedProblem,
    ) -> anyhow::Result<Checked> {
        let followed = self.followed.as_ref().filter(|followed| followed.has(path));
        // A pipe is read once.
        if followed.is_none() && !path.is_file() && !path.is_dir() {
            return Ok(Checked::Read);
        }
        let own = Uid::effective().as_raw();
        let (user, owners) = followed.map_or((own, &self.owners), |followed| {
            (followed.user, &followed.owners)
        });
        let refusal = manifest_scan::refusal(path, user, owners);
        let refusal = refusal.with_context(|| format!("could not read {}", path.display()))?;
        match refusal {
            None => {}
            Some(Refusal::Insecure(why)) if followed.is_none() => {
                self.warnings.push(problem(path, &why));
            }
            Some(Refusal::Insecure(why)) => self.problems.push(problem(path, &why)),
            Some(Refusal::Unusable(why)) => {
                self.problems.push(problem(path, &why));
                return Ok(Checked::NotRead);
            }
        }
        Ok(Checked::Read)
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
        ignored.insert_str(0, &self.render_warnings());
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

impl Validation {
    /// A line for each warning; of files with the same one only the first is named.
    fn render_warnings(&self) -> String {
        let mut of_message: Vec<(&FileProblem, usize)> = Vec::new();
        for QuotedProblem { problem, .. } in &self.warnings {
            let message = &problem.problem.message;
            let mut known = of_message.iter_mut();
            match known.find(|(first, _)| first.problem.message == *message) {
                Some((_, count)) => *count += 1,
                None => of_message.push((problem, 1)),
            }
        }
        let lines = of_message
            .into_iter()
            .map(|(FileProblem { file, problem }, count)| {
                let more = match count {
                    1 => String::new(),
                    count => format!(" and {}", counted(count - 1, "other file")),
                };
                format!(
                    "{YELLOW}WARNING {file}{more}: {}{YELLOW:#}\n",
                    problem.message
                )
            });
        lines.collect()
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
