//! Bars of what the agent copies or wipes, on a terminal.

use std::{collections::BTreeMap, fmt::Write, path::Path};

use drumlin_crd::Progress;
use drumlin_reconciler::objects;
use indicatif::{BinaryBytes, MultiProgress, ProgressBar, ProgressStyle};

/// The parts of a bar: what it is about, the bar, and how far it is.
const TEMPLATE: &str = "{prefix} [{bar:30}] {pos:>3} % {msg}";

/// The bars, below what else is printed. On standard error; where that is no terminal there are none.
#[derive(Debug, Default)]
pub(super) struct ProgressBars {
    all: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
}

impl ProgressBars {
    /// Returns true if there is nobody to see them.
    pub(super) fn is_hidden(&self) -> bool {
        self.all.is_hidden()
    }

    /// Shows how far the operations for the objects in a state directory are. One that cannot be read shows nothing: the
    /// command says why.
    pub(super) fn show_objects(&mut self, state_dir: &Path) {
        if self.is_hidden() {
            return;
        }
        let found = objects::in_progress(state_dir).unwrap_or_default();
        let found = found.into_iter();
        self.show(
            found
                .map(|(key, progress)| (key.to_string(), progress))
                .collect(),
        );
    }

    /// Shows these operations, and no others any more.
    pub(super) fn show(&mut self, operations: BTreeMap<String, Progress>) {
        let all = &self.all;
        self.bars.retain(|name, bar| {
            let goes_on = operations.contains_key(name);
            if !goes_on {
                bar.finish_and_clear();
                all.remove(bar);
            }
            goes_on
        });
        for (name, progress) in operations {
            let bar = self.bars.entry(name).or_insert_with_key(|name| {
                let style = ProgressStyle::with_template(TEMPLATE);
                let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
                let bar = ProgressBar::new(100).with_style(style.progress_chars("=> "));
                all.add(bar.with_prefix(name.clone()))
            });
            bar.set_message(text(&progress));
            bar.set_position(progress.percent.into());
        }
    }
}

/// What is done, the rate and the time that is left.
fn text(progress: &Progress) -> String {
    let mut text = progress.operation.clone();
    if let (Some(rate), Some(left)) = (progress.bytes_per_second, progress.seconds_left) {
        let rate = BinaryBytes(rate.unsigned_abs());
        let _ = write!(text, ", {rate}/s, {left} s left");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_told_when_it_is_known() {
        let mut progress = Progress {
            operation: "copying".to_owned(),
            percent: 40,
            bytes_per_second: None,
            seconds_left: None,
        };
        assert_eq!(text(&progress), "copying");
        progress.bytes_per_second = Some(120 << 20);
        progress.seconds_left = Some(30);
        assert_eq!(text(&progress), "copying, 120.00 MiB/s, 30 s left");
    }
}
