//! Times, medians, and the table.

use std::{
    fmt::Write,
    future::Future,
    time::{Duration, Instant},
};

/// What was measured, beside what is wanted.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<(String, String, String, bool)>);

impl Table {
    /// A ratio that shall be at most `wanted`.
    pub(crate) fn ratio(
        &mut self,
        figure: &str,
        (ours, theirs): (Duration, Duration),
        wanted: f64,
    ) {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        self.beside(figure, (millis(ours), millis(theirs)), wanted, "ms");
    }

    /// The ratio of two numbers, which shall be at most `wanted`.
    pub(crate) fn beside(
        &mut self,
        figure: &str,
        (ours, theirs): (f64, f64),
        wanted: f64,
        unit: &str,
    ) {
        let ratio = ours / theirs;
        let measured = format!("{ratio:.2}× ({ours:.2} {unit} beside {theirs:.2} {unit})");
        self.row(figure, &format!("≤ {wanted}×"), &measured, ratio <= wanted);
    }

    /// A number that shall be at most `wanted`.
    pub(crate) fn most(&mut self, figure: &str, measured: f64, wanted: f64, unit: &str) {
        self.row(
            figure,
            &format!("≤ {wanted} {unit}"),
            &format!("{measured:.1} {unit}"),
            measured <= wanted,
        );
    }

    fn row(&mut self, figure: &str, wanted: &str, measured: &str, holds: bool) {
        println!("{figure}: {measured}, wanted {wanted}");
        self.0.push((
            figure.to_owned(),
            wanted.to_owned(),
            measured.to_owned(),
            holds,
        ));
    }

    /// As Markdown.
    pub(crate) fn render(&self) -> String {
        let mut text = String::from("| figure | wanted | measured | |\n|---|---|---|---|\n");
        for (figure, wanted, measured, holds) in &self.0 {
            let _ = writeln!(
                text,
                "| {figure} | {wanted} | {measured} | {} |",
                if *holds { "met" } else { "missed" }
            );
        }
        text
    }
}

/// How long something takes.
pub(crate) async fn timed<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let result = what.await;
    (result, begun.elapsed())
}

/// How many of everything: fewer where `DRUMLIN_BENCH_SMALL` is set to see whether it works.
pub(crate) fn sized<T>(all: T, few: T) -> T {
    if std::env::var_os("DRUMLIN_BENCH_SMALL").is_some() {
        few
    } else {
        all
    }
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
