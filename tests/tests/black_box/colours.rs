//! Colours are for people at a terminal, and `NO_COLOR` refuses them.

use drumlin_tests::terminal::on_terminal;

use crate::{
    helpers::text,
    host::{Host, small, volume},
};

/// Escape sequences of the colours that are used, and what ends them.
const COLOURS: [&str; 4] = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"];
const RED: &str = COLOURS[0];
const YELLOW: &str = COLOURS[2];

#[tokio::test]
async fn colours_are_on_a_terminal_alone_and_no_color_refuses_them() {
    let host = Host::start().await;
    let waiting = volume("waiting", "16Mi", "source: {snapshotName: nobody}");
    host.write("a.yaml", &[small("data"), waiting]);
    host.write("wrong.yaml", &[small("wrong").replace("16Mi", "16XB")]);
    host.until("data", &["Created"]).await;
    host.until("waiting", &["DependencyNotFound"]).await;

    let state = format!("--state-dir={}", text(host.agent.path("state")));
    let endpoint = format!("--endpoint={}", text(host.agent.socket()));
    let manifests = text(host.manifests.clone());
    // Each command with a text in colour that it has: what is wrong, or what waits.
    let commands: [(&[&str], String); 6] = [
        (&["plan", &state, &endpoint], format!("{RED}!")),
        (&["status", &state], format!("{RED}INVALID wrong.yaml")),
        (&["get", "dv", &state], format!("{YELLOW}Volume")),
        (&["events", &state], YELLOW.to_owned()),
        (
            &["describe", "dv", "waiting", &state],
            format!("Volume/default/waiting  {YELLOW}DependencyNotFound"),
        ),
        (
            &["validate", &manifests],
            format!("{RED}{manifests}/wrong.yaml"),
        ),
    ];
    for (words, coloured) in commands {
        for environment in [&[][..], &[("NO_COLOR", "")]] {
            let shown = on_terminal(words, environment);
            assert!(shown.contains(&coloured), "{words:?}: {shown:?}");
        }
        for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let shown = on_terminal(words, &[environment]);
            assert!(!shown.contains('\x1b'), "{words:?}: {shown:?}");
            assert!(shown.contains("wr") || shown.contains("waiting"), "{shown}");
        }
        let piped = String::from_utf8(host.agent.command(words).stdout).unwrap();
        assert!(!piped.contains('\x1b'), "{words:?}: {piped:?}");
        // What programs read has none.
        let data = on_terminal(&[words, &["-o", "json"]].concat(), &[]);
        assert!(!data.contains('\x1b'), "{words:?}: {data:?}");
        assert!(data.starts_with(['{', '[']), "{words:?}: {data:?}");
    }
}

#[tokio::test]
async fn what_is_as_it_shall_be_has_no_colour_and_neither_has_what_was_before() {
    let mut host = Host::start().await;
    let waiting = volume("late", "16Mi", "source: {snapshotName: nobody}");
    host.write("a.yaml", &[waiting]);
    host.until("late", &["DependencyNotFound"]).await;
    host.write("a.yaml", &[small("late"), small("data")]);
    host.until("late", &["Created"]).await;
    host.until("data", &["Created"]).await;
    host.agent.kill();
    let state = format!("--state-dir={}", text(host.agent.path("state")));
    let events = on_terminal(&["events", &state], &[]);
    assert!(events.contains("DependencyNotFound"), "{events}");
    let manifests = text(host.manifests.clone());
    let commands: [&[&str]; 4] = [
        &["status", &state],
        &["events", &state],
        &["describe", "dv", "late", &state],
        &["validate", &manifests],
    ];
    for words in commands {
        let shown = on_terminal(words, &[]);
        for colour in COLOURS {
            assert!(!shown.contains(colour), "{words:?}: {shown:?}");
        }
    }
}
