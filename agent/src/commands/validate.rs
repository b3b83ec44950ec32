//! `drumlin validate`: validates manifests without an agent.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use drumlin_crd::{ObjectKey, Problem, quote, yaml::Location};

use super::print::print;
use crate::cli::ValidateArguments;

/// Exit code if a manifest is invalid.
const INVALID: u8 = 4;

/// Prints all problems: `file:line:column: field: message`, and below each the line of the file with the place marked.
pub(crate) fn run(arguments: &ValidateArguments) -> anyhow::Result<ExitCode> {
    let mut problems = Vec::new();
    let mut places: HashMap<ObjectKey, String> = HashMap::new();
    let (mut files, mut objects) = (0, 0);
    for path in &arguments.paths {
        let found = manifests(path)?;
        if found.is_empty() {
            problems.push(format!(
                "{}: contains no manifests; subdirectories are not read",
                path.display()
            ));
        }
        for file in found {
            let text =
                fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
            files += 1;
            let Ok(text) = String::from_utf8(text) else {
                problems.push(format!("{}:1:1: is not UTF-8 text", file.display()));
                continue;
            };
            match drumlin_crd::read(&text) {
                Err(wrong) => problems.extend(wrong.into_iter().map(|problem| {
                    let Problem {
                        line,
                        column,
                        message,
                        ..
                    } = problem;
                    let quoted = quote(&text, Location { line, column });
                    format!("{}:{line}:{column}: {message}\n{quoted}", file.display())
                })),
                Ok(manifest) => {
                    for document in manifest.documents {
                        objects += 1;
                        let place = format!("{}:{}", file.display(), document.line);
                        let key = document.object.key();
                        if let Some(first) = places.insert(key.clone(), place.clone()) {
                            problems.push(format!(
                                "{place}: duplicate object {key}, first defined at {first}"
                            ));
                        }
                    }
                }
            }
        }
    }
    if problems.is_empty() {
        print(&format!("{files} files, {objects} objects: valid\n"));
        return Ok(ExitCode::SUCCESS);
    }
    print(&(problems.join("\n") + "\n"));
    Ok(ExitCode::from(INVALID))
}

/// The file itself, or the manifests of a directory.
fn manifests(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let reading = || format!("could not read {}", path.display());
    if !fs::metadata(path).with_context(reading)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(reading)? {
        let entry = entry.with_context(reading)?;
        if entry
            .file_name()
            .to_str()
            .is_some_and(drumlin_reconciler::is_manifest)
        {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}
