//! What subcommands print. Where the reader has gone (`tidegate docs | head -1`) they end, without
//! a word: the macros of the standard library would panic.
//!
//! These macros stand in the place of those, for all files behind this one in `main.rs`.

use std::fmt::Arguments;
use std::io::{self, Write};

macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(&mut std::io::stdout(), format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::output::write(&mut std::io::stderr(), format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { eprint!("\n") };
    ($($text:tt)*) => { eprint!("{}\n", format_args!($($text)*)) };
}

/// Writes a text, or ends the process.
pub(crate) fn write(out: &mut dyn Write, text: Arguments<'_>) {
    let Err(error) = out.write_fmt(text) else {
        return;
    };
    std::process::exit(match error.kind() {
        io::ErrorKind::BrokenPipe => 0,
        _ => 1,
    });
}
