//! The output: ranges as they arrive, as a table, as JSON or as YAML. Only the last range is kept in memory.

use std::{
    io::{self, Write},
    ops::Range,
};

use drumlin_reconciler::counted;
use serde::Serialize;
use serde_json::json;

use crate::cli::DataOutput;

/// A snapshot that is compared.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Named {
    /// Its name as the caller gave it.
    pub(super) name: String,
    /// Its handle.
    pub(super) handle: String,
    /// Its UUID; empty until the agent has told it.
    pub(super) uuid: String,
}

/// The output of a comparison: a beginning, ranges and an end. Without the end it is neither a complete table nor valid
/// JSON, and YAML without `changedBytes`.
#[derive(Debug)]
pub(super) struct Report<W> {
    output: W,
    form: Option<DataOutput>,
    /// The base and the target.
    pub(super) snapshots: [Named; 2],
    /// The size of the target in bytes, once the output has begun.
    capacity: Option<u64>,
    /// The last range: what follows may belong to it, after a break of the stream.
    last: Option<Range<u64>>,
    ranges: u64,
    bytes: u64,
}

impl<W: Write> Report<W> {
    /// An output that has not begun.
    pub(super) fn new(output: W, form: Option<DataOutput>, snapshots: [Named; 2]) -> Self {
        Self {
            output,
            form,
            snapshots,
            capacity: None,
            last: None,
            ranges: 0,
            bytes: 0,
        }
    }

    /// Returns true if anything was printed.
    pub(super) fn has_begun(&self) -> bool {
        self.capacity.is_some()
    }

    /// The end of the last range: where a broken stream goes on.
    pub(super) fn position(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.end)
    }

    /// Prints the beginning, once.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn begin(&mut self, capacity: u64) -> io::Result<()> {
        if self.has_begun() {
            return Ok(());
        }
        self.capacity = Some(capacity);
        let [base, target] = &self.snapshots;
        match self.form {
            None => {
                let width = column(capacity);
                writeln!(self.output, "{:>width$}  {:>width$}", "OFFSET", "SIZE")
            }
            Some(DataOutput::Json) => write!(
                self.output,
                "{{\n  \"base\": {},\n  \"target\": {},\n  \"capacityBytes\": {capacity},\n  \"ranges\": [",
                serde_json::to_string(base)?,
                serde_json::to_string(target)?
            ),
            Some(DataOutput::Yaml) => {
                let head = json!({"base": base, "target": target, "capacityBytes": capacity});
                self.output
                    .write_all(drumlin_crd::to_yaml(&head).as_bytes())
            }
        }
    }

    /// Adds the next range; what lies before [`Self::position`] was printed already.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn add(&mut self, range: Range<u64>) -> io::Result<()> {
        let range = range.start.max(self.position())..range.end;
        if range.is_empty() {
            return Ok(());
        }
        match &mut self.last {
            Some(last) if last.end == range.start => {
                last.end = range.end;
                Ok(())
            }
            last => match last.replace(range) {
                Some(before) => self.print(&before),
                None => Ok(()),
            },
        }
    }

    /// Prints what is buffered, except the last range.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Prints the last range and the end.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if let Some(last) = self.last.take() {
            self.print(&last)?;
        }
        let (ranges, bytes) = (self.ranges, self.bytes);
        let capacity = self.capacity.unwrap_or(0);
        match self.form {
            None => writeln!(
                self.output,
                "{bytes} bytes in {} differ; the volume has {capacity} bytes",
                counted(ranges, "range")
            )?,
            Some(DataOutput::Json) => {
                let close = if ranges == 0 { "]" } else { "\n  ]" };
                writeln!(self.output, "{close},\n  \"changedBytes\": {bytes}\n}}")?;
            }
            Some(DataOutput::Yaml) => {
                let none = if ranges == 0 { "ranges: []\n" } else { "" };
                writeln!(self.output, "{none}changedBytes: {bytes}")?;
            }
        }
        self.output.flush()
    }

    fn print(&mut self, range: &Range<u64>) -> io::Result<()> {
        let (offset, size) = (range.start, range.end - range.start);
        match self.form {
            None => {
                let width = column(self.capacity.unwrap_or(0));
                writeln!(self.output, "{offset:>width$}  {size:>width$}")?;
            }
            Some(DataOutput::Json) => {
                let comma = if self.ranges == 0 { "" } else { "," };
                write!(
                    self.output,
                    "{comma}\n    {{\"offset\": {offset}, \"size\": {size}}}"
                )?;
            }
            Some(DataOutput::Yaml) => {
                let head = if self.ranges == 0 { "ranges:\n" } else { "" };
                write!(self.output, "{head}- offset: {offset}\n  size: {size}\n")?;
            }
        }
        self.ranges += 1;
        self.bytes += size;
        Ok(())
    }
}

/// The width of a column: no offset or size has more digits than the size of the volume.
fn column(capacity: u64) -> usize {
    capacity.to_string().len().max("OFFSET".len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn report(form: Option<DataOutput>) -> Report<Vec<u8>> {
        let named = |name: &str| Named {
            name: name.to_owned(),
            handle: format!("node/default/{name}"),
            uuid: format!("uuid-{name}"),
        };
        let mut report = Report::new(Vec::new(), form, [named("a\"b"), named("c")]);
        report.begin(1 << 20).unwrap();
        report
    }

    fn text(report: &Report<Vec<u8>>) -> String {
        String::from_utf8(report.output.clone()).unwrap()
    }

    #[test]
    fn a_table_has_a_line_for_each_range_and_the_total() {
        let mut report = report(None);
        for range in [0..4096, 8192..16384] {
            report.add(range).unwrap();
        }
        report.end().unwrap();
        assert_eq!(
            text(&report),
            " OFFSET     SIZE\n      0     4096\n   8192     8192\n12288 bytes in 2 ranges differ; the volume has 1048576 bytes\n"
        );
    }

    #[test]
    fn json_is_valid_only_after_its_end_and_yaml_is_of_the_same_shape() {
        for ranges in [&[][..], &[(0, 4096)], &[(0, 4096), (8192, 16384)]] {
            let mut report = report(Some(DataOutput::Json));
            for (start, end) in ranges {
                report.add(*start..*end).unwrap();
                assert!(serde_json::from_str::<Value>(&text(&report)).is_err());
            }
            report.end().unwrap();
            let shown: Value = serde_json::from_str(&text(&report)).unwrap();
            let mut yaml = self::report(Some(DataOutput::Yaml));
            for (start, end) in ranges {
                yaml.add(*start..*end).unwrap();
                let unfinished: Value = serde_yaml::from_str(&text(&yaml)).unwrap();
                assert_eq!(unfinished.get("changedBytes"), None);
            }
            yaml.end().unwrap();
            let yaml: Value = serde_yaml::from_str(&text(&yaml)).unwrap();
            assert_eq!(yaml, shown);
            let wanted: Vec<Value> = ranges
                .iter()
                .map(|(start, end)| json!({"offset": start, "size": end - start}))
                .collect();
            let bytes: u64 = ranges.iter().map(|(start, end)| end - start).sum();
            assert_eq!(
                shown,
                json!({
                    "base": {"name": "a\"b", "handle": "node/default/a\"b", "uuid": "uuid-a\"b"},
                    "target": {"name": "c", "handle": "node/default/c", "uuid": "uuid-c"},
                    "capacityBytes": 1 << 20,
                    "ranges": wanted,
                    "changedBytes": bytes,
                })
            );
        }
    }

    #[test]
    fn a_break_of_the_stream_is_not_visible_in_the_output() {
        let shown = |parts: &[&[(u64, u64)]]| {
            let mut report = report(None);
            for part in parts {
                report.begin(1 << 20).unwrap();
                for (start, end) in *part {
                    report.add(*start..*end).unwrap();
                }
            }
            report.end().unwrap();
            text(&report)
        };
        let whole = shown(&[&[(0, 8192), (16384, 20480)]]);
        // The stream goes on at the end of the last range: within a range, between two, with a part told again.
        assert_eq!(
            shown(&[&[(0, 4096)], &[(4096, 8192), (16384, 20480)]]),
            whole
        );
        assert_eq!(shown(&[&[(0, 8192)], &[(16384, 20480)]]), whole);
        assert_eq!(shown(&[&[(0, 4096)], &[(0, 8192), (16384, 20480)]]), whole);
        assert_eq!(shown(&[&[(0, 8192)], &[(0, 8192), (16384, 20480)]]), whole);
    }
}
