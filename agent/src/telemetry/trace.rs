//! The trace of one call: its spans, as text and as JSON.

use std::{
    fmt::{self, Write},
    time::{Duration, Instant},
};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

use super::{Quoted, milliseconds};

/// Maximum number of spans of a trace: the list of a thousand volumes has several for each.
const MOST_SPANS: usize = 2_000;
/// Shorter waits are left out.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// The fields of a span.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    /// The fields that `record` passes to a visitor.
    pub(super) fn of(record: impl FnOnce(&mut dyn Visit)) -> Self {
        let mut fields = Self::default();
        record(&mut fields);
        fields
    }

    fn add(&mut self, field: &Field, value: Value) {
        // Those are for the exporter, and repeat others.
        if !field.name().starts_with("otel.") {
            self.0.push((field.name(), value));
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Quoted(&value).to_string().into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Quoted(&format_args!("{value:?}")).to_string().into());
    }
}

/// A span of a trace.
#[derive(Debug)]
struct Span {
    name: &'static str,
    fields: Fields,
    begun: Instant,
    ended: Option<Instant>,
    /// The spans below it, in the order in which they began.
    below: Vec<usize>,
}

impl Span {
    fn new(name: &'static str, fields: Fields) -> Self {
        Self {
            name,
            fields,
            begun: Instant::now(),
            ended: None,
            below: Vec::new(),
        }
    }

    fn took(&self) -> Duration {
        self.ended
            .map_or(Duration::ZERO, |ended| ended - self.begun)
    }

    fn is_short_wait(&self) -> bool {
        self.name == "wait" && self.took() < SHORT_WAIT
    }

    /// Returns true for a span that says the same as the one before it, with nothing below either.
    fn repeats(&self, before: &Self) -> bool {
        let is_leaf = self.below.is_empty() && before.below.is_empty();
        is_leaf && self.name == before.name && self.fields == before.fields
    }
}

/// The trace of one call.
#[derive(Debug)]
pub(super) struct Trace {
    /// The call first; each span after the one that it is a part of.
    spans: Vec<Span>,
    /// Number of further spans, which are not kept.
    omitted: usize,
}

impl Trace {
    /// The number of the span of the call.
    pub(super) const ROOT: usize = 0;

    /// A trace that begins now.
    pub(super) fn new(name: &'static str, fields: Fields) -> Self {
        Self {
            spans: vec![Span::new(name, fields)],
            omitted: 0,
        }
    }

    /// Adds a span that begins now, below the one with the number `above`; returns its number, unless there are too
    /// many.
    pub(super) fn add(
        &mut self,
        above: usize,
        name: &'static str,
        fields: Fields,
    ) -> Option<usize> {
        let number = self.spans.len();
        if number >= MOST_SPANS {
            self.omitted += 1;
            return None;
        }
        self.spans.get_mut(above)?.below.push(number);
        self.spans.push(Span::new(name, fields));
        Some(number)
    }

    /// Adds fields to a span, which ends at `now` unless it has already.
    pub(super) fn complete(&mut self, number: usize, fields: Fields, now: Instant) {
        if let Some(span) = self.spans.get_mut(number) {
            span.fields.0.extend(fields.0);
            span.ended.get_or_insert(now);
        }
    }

    /// The spans below one that are shown, each with the number of times that it is repeated and the time of all.
    fn shown(&self, span: &Span) -> Vec<(&Span, usize, Duration)> {
        let mut shown: Vec<(&Span, usize, Duration)> = Vec::new();
        let below = span
            .below
            .iter()
            .filter_map(|number| self.spans.get(*number));
        for span in below.filter(|span| !span.is_short_wait()) {
            match shown.last_mut() {
                Some((before, times, took)) if span.repeats(before) => {
                    *times += 1;
                    *took += span.took();
                }
                _ => shown.push((span, 1, span.took())),
            }
        }
        shown
    }

    /// As an indented tree: when each span began after the call, and how long it took, in milliseconds.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} DEBUG trace\n", timestamp());
        if let Some(root) = self.spans.first() {
            self.write_text(&mut text, 0, (root, 1, root.took()));
        }
        if self.omitted > 0 {
            let _ = writeln!(text, "and {} more spans", self.omitted);
        }
        text
    }

    fn write_text(
        &self,
        text: &mut String,
        depth: usize,
        (span, times, took): (&Span, usize, Duration),
    ) {
        let (start, took) = (milliseconds(self.since_begin(span)), milliseconds(took));
        let _ = write!(
            text,
            "{start:>12.3} {took:>12.3} ms {:depth$}{}",
            "", span.name
        );
        for (name, value) in &span.fields.0 {
            let _ = match value {
                Value::String(value) if value.is_empty() => Ok(()),
                Value::String(value) => write!(text, " {value}"),
                other => write!(text, " {name}={other}"),
            };
        }
        if times > 1 {
            let _ = write!(text, " ({times} times)");
        }
        text.push('\n');
        for below in self.shown(span) {
            self.write_text(text, depth + 2, below);
        }
    }

    /// As one line of JSON: the fields of the call, and its spans within each other.
    pub(super) fn json(&self) -> String {
        let mut all = Map::new();
        all.insert("timestamp".to_owned(), timestamp().into());
        all.insert("level".to_owned(), "DEBUG".into());
        all.insert("message".to_owned(), "trace".into());
        if self.omitted > 0 {
            all.insert("omitted".to_owned(), self.omitted.into());
        }
        if let Some(root) = self.spans.first() {
            all.append(&mut self.object((root, 1, root.took())));
        }
        format!("{}\n", Value::Object(all))
    }

    fn object(&self, (span, times, took): (&Span, usize, Duration)) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("name".to_owned(), span.name.into());
        object.insert(
            "start_ms".to_owned(),
            milliseconds(self.since_begin(span)).into(),
        );
        object.insert("elapsed_ms".to_owned(), milliseconds(took).into());
        for (name, value) in &span.fields.0 {
            object.insert((*name).to_owned(), value.clone());
        }
        if times > 1 {
            object.insert("times".to_owned(), times.into());
        }
        let below = self
            .shown(span)
            .into_iter()
            .map(|below| Value::Object(self.object(below)));
        let below: Vec<Value> = below.collect();
        if !below.is_empty() {
            object.insert("spans".to_owned(), below.into());
        }
        object
    }

    fn since_begin(&self, span: &Span) -> Duration {
        let begun = self.spans.first().map_or(span.begun, |root| root.begun);
        span.begun - begun
    }
}

/// The current time, as in all log lines.
fn timestamp() -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

#[cfg(test)]
impl Trace {
    /// The names of all spans, each indented below the one that it is a part of.
    pub(super) fn outline(&self) -> String {
        fn write(trace: &Trace, number: usize, depth: usize) -> String {
            let span = &trace.spans[number];
            let line = format!("{:depth$}{}\n", "", span.name);
            let below = span.below.iter();
            below.fold(line, |text, below| text + &write(trace, *below, depth + 1))
        }
        write(self, Self::ROOT, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&'static str, &str)]) -> Fields {
        let fields = fields.iter();
        Fields(
            fields
                .map(|(name, value)| (*name, (*value).into()))
                .collect(),
        )
    }

    /// Ends a span this long after its begin.
    fn end(trace: &mut Trace, number: usize, milliseconds: u64) {
        let ended = trace.spans[number].begun + Duration::from_millis(milliseconds);
        trace.complete(number, Fields::default(), ended);
    }

    /// A call with an operation, in which a request is made three times after a short wait.
    fn example() -> Trace {
        let mut trace = Trace::new("rpc", fields(&[("rpc.method", "p.S/M"), ("object", "")]));
        let operation = trace.add(Trace::ROOT, "operation", fields(&[("object", "volume v")]));
        let operation = operation.unwrap();
        let wait = trace
            .add(operation, "wait", fields(&[("kind", "lock")]))
            .unwrap();
        end(&mut trace, wait, 0);
        for _ in 0..3 {
            let request = trace.add(operation, "ioctl", fields(&[("request", "FITHAW")]));
            end(&mut trace, request.unwrap(), 2);
        }
        end(&mut trace, operation, 7);
        end(&mut trace, Trace::ROOT, 8);
        trace
    }

    #[test]
    fn text_is_a_tree_with_milliseconds_in_which_repeats_are_one_line() {
        let text = example().text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("Z DEBUG trace"), "{text}");
        assert_eq!(lines[1], "       0.000        8.000 ms rpc p.S/M");
        assert!(
            lines[2].ends_with("7.000 ms   operation volume v"),
            "{text}"
        );
        assert!(
            lines[3].ends_with("6.000 ms     ioctl FITHAW (3 times)"),
            "{text}"
        );
        assert_eq!(lines.len(), 4, "the short wait is left out: {text}");
    }

    #[test]
    fn json_is_one_line() {
        let json = example().json();
        assert_eq!(json.lines().count(), 1);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["message"], "trace");
        assert_eq!(json["rpc.method"], "p.S/M");
        assert_eq!(json["elapsed_ms"], 8.0);
        let operation = &json["spans"][0];
        assert_eq!(operation["object"], "volume v");
        assert_eq!(operation["spans"][0]["times"], 3);
    }

    #[test]
    fn a_call_without_end_does_not_fill_the_memory() {
        let mut trace = Trace::new("rpc", Fields::default());
        for _ in 0..MOST_SPANS + 10 {
            trace.add(Trace::ROOT, "ioctl", Fields::default());
        }
        assert_eq!(trace.spans.len(), MOST_SPANS);
        assert!(trace.text().ends_with("and 11 more spans\n"));
    }
}
