//! Names of variables as directives write them.

use conf::{Fault, Word};

/// The name in a word such as `$name`.
pub fn variable_name(word: &Word) -> Result<String, Fault> {
    match word.text().strip_prefix('$') {
        Some("") => Err(Fault::at(word, "invalid variable name \"$\"")),
        Some(name) => Ok(name.to_owned()),
        None => Err(Fault::at(
            word,
            format!("invalid variable name \"{}\"", word.text()),
        )),
    }
}
