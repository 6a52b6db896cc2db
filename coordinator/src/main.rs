//! The coordinator's program; see `cipherhop_coordinator::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cipherhop_coordinator::cli::main()
}
