//! The binary `skein`: hands the command line over and turns the result into an exit code.

use std::io::Write;

use skein_node::{cli, mesh};

fn main() -> ! {
    let exit = cli::main(std::env::args_os(), std::env::vars_os(), mesh::run_up);
    // A reader that has gone is no reason to end otherwise.
    let _ = std::io::stdout().flush();
    end(exit)
}

/// Ends the process without the destructors of C++ libraries. A training thread may still be in the middle of a step, and
/// libtorch's destructors would take away what it works on: a crash instead of an exit code.
#[expect(
    unsafe_code,
    reason = "the standard library has no exit that leaves destructors out"
)]
fn end(exit: cli::Exit) -> ! {
    unsafe extern "C" {
        safe fn _exit(status: std::ffi::c_int) -> !;
    }
    _exit(exit as std::ffi::c_int)
}
