//! Standard output of subcommands. If the reader has gone (`tidegate docs | head -1`), the process
//! ends silently, whereas the macros of the standard library would panic.
//!
//! These macros shadow the standard ones in all files declared after this one in `main.rs`.

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
