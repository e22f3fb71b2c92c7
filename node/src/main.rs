//! skein
fn main() {}
