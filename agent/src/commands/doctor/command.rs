//! Runs the parts, and prints what they found.

use std::{ffi::OsString, process::ExitCode, thread, time::Duration};

use clap::ValueEnum;
use drumlin_core::host::isolated::{self, Ran};

use super::{
    finding::Finding,
    part::Part,
    processes::holder,
    report::{Colour, Report},
    subject::Subject,
};
use crate::{
    cli::{DataOutput, DoctorArguments},
    commands::print::print,
};

/// Time for one part; all run at once. A busy host takes some seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Looks at everything, or at one part in this process. The exit code is 2 with errors, 1 with warnings, else 0.
pub(crate) async fn run(arguments: &DoctorArguments) -> ExitCode {
    if let Some(part) = arguments.part {
        let report = look(part, &Subject::of(arguments)).await;
        print(&(serde_json::to_string(&report).unwrap_or_default() + "\n"));
        return ExitCode::SUCCESS;
    }
    let parts = Part::value_variants().iter().map(|part| {
        let part = *part;
        thread::spawn(move || isolate(part))
    });
    let parts: Vec<_> = parts.collect();
    let parts = parts.into_iter().filter_map(|part| part.join().ok());
    let report = Report::of_parts(parts);
    let data = DataOutput::form(arguments.output).data(&report);
    print(&data.unwrap_or_else(|| report.text(Colour::of_output())));
    ExitCode::from(report.exit_code())
}

/// Makes the checks of a part.
async fn look(part: Part, subject: &Subject) -> Report {
    let mut findings = part.check(subject).await;
    let lock = subject.state_dir().join("LOCK");
    let node = subject.node().map(|node| node.as_str().to_owned());
    match holder(&lock) {
        Ok(agent) => Report::new(node, agent, findings),
        Err(why) => {
            findings.push(Finding::not_checked(lock.display().to_string(), why));
            Report::new(node, None, findings).of_unknown_agent()
        }
    }
}

/// Makes the checks of a part in a process of its own. This one looks at no file: it could never end.
fn isolate(part: Part) -> Report {
    let name = part.name();
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    words.extend([format!("--part={name}").into()]);
    let not_checked = |why: &str| {
        let findings = vec![Finding::not_checked(&name, why)];
        Report::new(None, None, findings)
    };
    match isolated::run(&words, PATIENCE) {
        Ok(Ran::Line(line)) => match serde_json::from_str(&line) {
            Ok(report) => report,
            Err(error) => not_checked(&format!("its findings cannot be read: {error}")),
        },
        Ok(Ran::Nothing) => not_checked("its process ended early"),
        Ok(Ran::Silent) => not_checked(&format!(
            "not done within {} s; something that it looks at does not answer",
            PATIENCE.as_secs()
        )),
        Err(error) => not_checked(&format!("its process could not be started: {error}")),
    }
}
