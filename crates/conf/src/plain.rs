//! Plain files: words and lines of the configuration language, in a file that a directive names.
//!
//! No blocks, no includes, and no known directives: the caller interprets the lines.

use std::io;
use std::path::Path;

use crate::diagnostic::Fault;
use crate::files::Files;
use crate::lexer::{Lexer, Token};
use crate::line::Line;
use crate::position;

/// Why the lines of a file could not be read.
#[derive(Debug)]
pub enum PlainFileError {
    /// The file could not be read.
    File(io::Error),
    /// The file is malformed; the position of the fault is in this file, not at the directive that
    /// names it.
    Malformed(Box<Fault>),
}

/// The lines of a file.
///
/// # Errors
/// If the file cannot be read, or contains anything but lines that end with `;`.
pub fn lines(path: &Path, files: &dyn Files) -> Result<Vec<Line>, PlainFileError> {
    let text = files.read(path).map_err(PlainFileError::File)?;
    let mut lexer = Lexer::file(&text, position::file_number(path));
    let malformed = |fault| PlainFileError::Malformed(Box::new(fault));
    let mut lines = Vec::new();
    loop {
        match lexer.next().map_err(malformed)? {
            Token::End => return Ok(lines),
            Token::BlockEnd => return Err(malformed(lexer.unexpected(b'}'))),
            Token::Directive {
                opens_block: true, ..
            } => return Err(malformed(lexer.unexpected(b'{'))),
            Token::Directive { words, .. } => {
                let mut words = words.into_iter();
                let name = words.next().unwrap_or_default();
                lines.push(Line {
                    position: name.position,
                    name,
                    args: words.collect(),
                    ..Line::default()
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{RecordedFiles, Recording};

    fn read(text: &str) -> Result<Vec<String>, String> {
        let files = RecordedFiles::new(Recording {
            files: vec![("/peers".into(), text.into())],
            ..Recording::default()
        });
        let lines = lines(Path::new("/peers"), &files).map_err(|unread| match unread {
            PlainFileError::File(error) => error.to_string(),
            PlainFileError::Malformed(fault) => fault.to_string(),
        })?;
        let shown = lines.iter().map(|line| {
            let words: Vec<_> = line.args.iter().map(|word| word.text()).collect();
            format!("{}: {}", line.name.text(), words.join("|"))
        });
        Ok(shown.collect())
    }

    #[test]
    fn lines_of_words() {
        assert_eq!(read(""), Ok(vec![]));
        let text = "# made by hand\nserver a:1 \"weight=2\";\n\nserver b;";
        assert_eq!(read(text).unwrap(), ["server: a:1|weight=2", "server: b"]);
    }

    #[test]
    fn faults_have_their_position() {
        for (text, fault) in [
            (
                "server a;\nserver b",
                "unexpected end of file, expecting \";\" or \"}\" in /peers:2",
            ),
            ("server a;\n}", "unexpected \"}\" in /peers:2"),
            ("server a {\n", "unexpected \"{\" in /peers:1"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.contains(fault), "{found}");
        }
        let missing = lines(Path::new("/other"), &RecordedFiles::default());
        assert!(matches!(missing, Err(PlainFileError::File(error))
                if error.kind() == io::ErrorKind::NotFound));
    }
}
