//! Tests that have nothing to do where they run say so: the runner then does not count them as passed there.

use std::io::Write;

/// How the line begins that says so.
pub const MARK: &str = "tests/run: does not apply: ";

/// Says that the test in which it stands does not apply where it runs, and why: `return does_not_apply!("why")`.
#[macro_export]
macro_rules! does_not_apply {
    ($why:literal) => {{
        fn here() {}
        $crate::applies::say(std::any::type_name_of_val(&here), $why)
    }};
}

/// Writes that line; `within` is the path of something within the test.
pub fn say(within: &str, why: &str) {
    // What the runner captures are the macros that print, not what is written.
    let line = format!("\n{MARK}{}: {why}\n", test_of(within));
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// `binary::module::function`, by the path of something within that function.
fn test_of(within: &str) -> String {
    let within = within.strip_suffix("::here").unwrap_or(within);
    within.replace("::{{closure}}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_name_of_a_test_is_known_within_it() {
        fn here() {}
        let name = test_of(std::any::type_name_of_val(&here));
        assert_eq!(
            name,
            "drumlin_tests::applies::tests::the_name_of_a_test_is_known_within_it"
        );
    }
}
