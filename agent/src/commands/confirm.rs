//! Asking before something is destroyed.

use std::io::{self, BufRead, IsTerminal};

use anyhow::bail;

use super::print::note;
use crate::cli::Confirmation;

/// Asks for confirmation, unless it was given before.
///
/// # Errors
/// If there is none, or nobody to ask.
pub(super) fn confirm(confirmation: &Confirmation) -> anyhow::Result<()> {
    if confirmation.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!(
            "nothing was deleted: standard input is not a terminal; pass --yes to delete without confirmation"
        );
    }
    note("type yes to delete it:");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        bail!("nothing was deleted");
    }
    Ok(())
}
