//! `drumlin man`: the man pages, from what the command line knows of itself.

use std::{fs, path::Path};

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;

/// Writes a page for each command that is not hidden, into a directory that is created if it is missing.
///
/// # Errors
/// When the directory cannot be written to.
pub(crate) fn run(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("could not create {}", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("could not write man pages to {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, path::PathBuf};

    use super::*;

    /// The help of every command that is not hidden, as a page of the book.
    fn reference() -> String {
        let mut page = "# Command line\n\n\
            The help of every command, as `drumlin COMMAND --help` prints it.\n"
            .to_owned();
        let mut cli = Cli::command().term_width(100);
        // The version names a commit.
        cli = cli.version("");
        cli.build();
        for command in cli.get_subcommands().filter(|one| !one.is_hide_set()) {
            // Not what this process has in its environment.
            let mut command = command.clone().mut_args(|one| one.hide_env_values(true));
            let help = command.render_long_help().to_string();
            let lines = help.lines().map(str::trim_end);
            let help = lines.collect::<Vec<_>>().join("\n");
            let name = command.get_name();
            let _ = write!(page, "\n## drumlin {name}\n\n```text\n{help}\n```\n");
        }
        page
    }

    /// `DRUMLIN_UPDATE=1` writes it anew.
    #[test]
    fn the_book_has_the_help_of_every_command() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/src/cli.md");
        let page = reference();
        if std::env::var_os("DRUMLIN_UPDATE").is_some() {
            fs::write(&path, &page).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&path).unwrap_or_default(),
            page,
            "run DRUMLIN_UPDATE=1 cargo test -p drumlin the_book_has"
        );
    }

    #[test]
    fn there_is_a_man_page_for_each_command() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("share/man1");
        // Twice: once it is created.
        run(&directory).unwrap();
        run(&directory).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = directory.join(format!("drumlin-{}.1", command.get_name()));
            assert_eq!(page.exists(), !command.is_hide_set(), "{}", page.display());
        }
        assert!(directory.join("drumlin.1").exists());
    }
}
