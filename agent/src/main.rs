//! The binary; see the library of its name.

use std::process::ExitCode;

fn main() -> ExitCode {
    drumlin::main()
}
