//! `drumlin`: the agent, the reconciler and the commands for operators in one binary.
//!
//! - [`cli`], [`config`]: command line and configuration.
//! - [`commands`]: a file per command.
//! - [`classes`]: which classes this node has, as its configuration and labels change.
//! - [`server`], [`socket`]: gRPC on a unix socket.
//! - [`quiet`]: work that is done while no call is in flight.
//! - [`registration`]: registration with kubelet.
//! - [`service_manager`]: what systemd is told.
//! - [`rpc`]: a folder per package, a file per service, a method per RPC.
#![cfg_attr(doc, doc = "", doc = include_str!("../../docs/src/architecture.md"))]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "tests fail by panicking"
    )
)]
#![allow(
    clippy::result_large_err,
    reason = "tonic's Status is what a service returns"
)]

mod arriving;
mod authority;
mod classes;
mod cli;
mod commands;
mod config;
mod connections;
mod directory_watch;
mod duration;
#[doc(hidden)]
pub mod fuzzing;
mod limits;
mod lock;
mod metrics;
#[cfg(debug_assertions)]
mod mutation;
mod quiet;
mod registration;
mod rpc;
mod server;
mod service_manager;
mod socket;
mod telemetry;
mod trash;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

/// The version, with the commit of the build if known.
pub(crate) const VERSION: &str = env!("DRUMLIN_VERSION");

/// Runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::ThawWatchdog(arguments) = &cli.command {
        return commands::thaw_watchdog::run(arguments);
    }
    // Set before a second thread exists, which would get its own heap.
    drumlin_core::host::heap::share();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(&anyhow::Error::new(error)),
    };
    let done = runtime.block_on(run(cli.command));
    // Remaining tasks are not awaited: the commands have already waited up to their own timeouts.
    runtime.shutdown_background();
    done.unwrap_or_else(|error| failed(&error))
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    if let Some(state_dir) = command.state_shown() {
        commands::last_state::note_if_last(state_dir);
    }
    match command {
        Command::Agent(arguments) => commands::agent::run(*arguments).await?,
        Command::Reconcile(arguments) => commands::reconcile::run(arguments).await?,
        Command::Controller(arguments) => Box::pin(commands::controller::run(arguments)).await?,
        Command::Ping(arguments) => commands::ping::run(arguments).await?,
        Command::Validate(arguments) => return commands::validate::run(&arguments),
        Command::Apply(arguments) => return Box::pin(commands::apply::run(*arguments)).await,
        Command::Plan(arguments) => return Box::pin(commands::plan::run(arguments)).await,
        Command::Status(arguments) => return commands::status::run(&arguments),
        Command::Get(arguments) => commands::get::run(&arguments)?,
        Command::Describe(arguments) => commands::describe::run(&arguments)?,
        Command::Events(arguments) => commands::events::run(&arguments)?,
        Command::Wait(arguments) => return commands::wait::run(&arguments).await,
        Command::Kept(arguments) => commands::kept::run(&arguments).await?,
        Command::Adopt(arguments) => commands::adopt::run(&arguments).await?,
        Command::Handover(arguments) => commands::handover::run(&arguments).await?,
        Command::Delete(arguments) => commands::delete::run(&arguments).await?,
        Command::Trash(arguments) => commands::trash::run(&arguments).await?,
        Command::Undelete(arguments) => commands::undelete::run(&arguments).await?,
        Command::Rollback(arguments) => commands::rollback::run(arguments).await?,
        Command::Diff(arguments) => commands::diff::run(arguments).await?,
        Command::Restore(arguments) => commands::restore::run(&arguments)?,
        Command::Doctor(arguments) => return Ok(commands::doctor::run(&arguments).await),
        Command::Crds => commands::crds::run(),
        Command::ThawWatchdog(_) => anyhow::bail!("the thaw watchdog is run without a runtime"),
        Command::Completions { shell } => commands::completions::run(shell),
        Command::Explain { what } => commands::explain::run(&what)?,
        Command::Man { directory } => commands::manual::run(&directory)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(
    clippy::print_stderr,
    reason = "errors of a command go where its user looks"
)]
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("drumlin: {error:#}");
    ExitCode::FAILURE
}
