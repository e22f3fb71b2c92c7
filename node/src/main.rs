//! The binary `skein`: hands the command line over and turns the result into an exit code.

use skein_node::{cli, mesh, process};

fn main() {
    process::tune_allocator();
    let exit = cli::main(std::env::args_os(), std::env::vars_os(), mesh::run_up);
    process::end(exit as u8)
}
