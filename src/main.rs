//! Tidegate: the command line.
fn main() {}
