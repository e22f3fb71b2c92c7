//! The binary `skein`.
fn main() {}
