//! Splits a configuration text into words, by the rules of nginx's `ngx_conf_read_token()`.
//!
//! A word ends at white space, `;` or `{`, except within quotes. `\` escapes the next byte, the `{`
//! of `${` does not begin a block, and `#` at the start of a word begins a comment. The text need
//! not be UTF-8. After an error the lexer can continue after the broken directive, so that one run
//! finds every error. The lexer does not know the meaning of words.

use std::borrow::Cow;

use crate::diagnostic::Fault;
use crate::line::Word;
use crate::position::Position;

/// Maximum length of a word or comment in a file, in bytes as written: nginx's buffer size. A
/// longer word is refused, because it is usually an unclosed quote.
pub(crate) const WORD_LENGTH_MAX: usize = 4096;

/// Number of bytes of an overlong word that the error message shows.
const SHOWN_OF_LONG_WORD: usize = 10;

/// A UTF-8 byte order mark, which nginx takes for a part of the first directive's name.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A token of the lexer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A directive: its words, at least one.
    Directive {
        words: Vec<Word>,
        /// Whether the directive ended with `{` rather than `;`.
        opens_block: bool,
    },
    BlockEnd,
    /// The end of the text.
    End,
}

pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// Offset at which the current word or comment begins.
    start: usize,
    line: u32,
    file: u32,
    /// Whether the text is a file, rather than a `-g` option.
    is_file: bool,
    /// Whether the text ended within a directive or block, and that was reported.
    cut_short: bool,
    /// The offset after the line of a quote that was probably not closed, where reading continues.
    resume: Option<usize>,
}

impl<'a> Lexer<'a> {
    /// A lexer for the content of file number `file`. Skips a byte order mark.
    pub(crate) fn file(text: &'a [u8], file: u32) -> Lexer<'a> {
        let at = if text.starts_with(BYTE_ORDER_MARK) {
            BYTE_ORDER_MARK.len()
        } else {
            0
        };
        Lexer {
            text,
            at,
            start: at,
            line: 1,
            file,
            is_file: true,
            cut_short: false,
            resume: None,
        }
    }

    /// A lexer for a text outside of any file, such as a `-g` option: without line numbers and
    /// without a limit of word lengths.
    pub(crate) fn text(text: &'a [u8], file: u32) -> Lexer<'a> {
        Lexer {
            text,
            at: 0,
            start: 0,
            line: 0,
            file,
            is_file: false,
            cut_short: false,
            resume: None,
        }
    }

    pub(crate) fn position(&self) -> Position {
        self.position_at(self.at.saturating_sub(1))
    }

    fn position_at(&self, offset: usize) -> Position {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        Position {
            file: self.file,
            line: self.line,
            offset,
        }
    }

    /// The number of bytes read so far.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// The text from `offset` up to the last byte read.
    pub(crate) fn read_since(&self, offset: usize) -> &'a [u8] {
        self.text.get(offset..self.at).unwrap_or_default()
    }

    pub(crate) fn whole(&self) -> &'a [u8] {
        self.text
    }

    /// Whether the whole text has been read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// The byte read last.
    pub(crate) fn last_byte(&self) -> Option<u8> {
        self.text.get(self.at.checked_sub(1)?).copied()
    }

    /// Goes back to `offset`, so that the text from there on is read again.
    pub(crate) fn rewind(&mut self, offset: usize) {
        let again = self.text.get(offset..self.at).unwrap_or_default();
        if self.is_file {
            let lines = memchr::memchr_iter(b'\n', again).count();
            self.line = self.line.saturating_sub(u32::try_from(lines).unwrap_or(0));
        }
        self.at = offset.min(self.at);
        self.start = self.at;
        self.cut_short = false;
    }

    /// Whether the text ended within a directive or block, and that was reported.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.cut_short
    }

    /// The error of a text that ends inside a block.
    pub(crate) fn end_inside_block(&mut self) -> Fault {
        self.cut_short = true;
        self.fault("unexpected end of file, expecting \"}\"")
    }

    /// The next directive, the end of a block, or the end of the text.
    pub(crate) fn next(&mut self) -> Result<Token, Fault> {
        let mut words = Vec::new();
        self.start = self.at;
        self.resume = None;
        loop {
            let Some(byte) = self.take()? else {
                return self.end(&words);
            };
            self.start = self.at - 1;
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'#' => self.comment()?,
                b';' | b'{' if words.is_empty() => return Err(self.unexpected(byte)),
                b';' | b'{' => return Ok(self.directive(words, byte == b'{')),
                b'}' if words.is_empty() => return Ok(Token::BlockEnd),
                b'}' => {
                    let fault = self.unexpected(byte);
                    // The `;` before the `}` is missing; the block ends here nevertheless.
                    self.at -= 1;
                    return Err(missing_semicolon(fault, &words));
                }
                b'"' | b'\'' => {
                    self.quoted(byte, &mut words)?;
                    let after = self.after_quoted();
                    let after = after.map_err(|fault| match fault.message.as_str() {
                        "unexpected \"}\"" => missing_semicolon(fault, &words),
                        _ => fault,
                    });
                    if let Some(end) = after? {
                        return Ok(self.directive(words, end == b'{'));
                    }
                }
                byte => match self.bare(byte, &mut words)? {
                    end @ (b';' | b'{') => return Ok(self.directive(words, end == b'{')),
                    _space => {}
                },
            }
        }
    }

    /// Continues after a directive that [`Lexer::next`] has refused.
    pub(crate) fn recover(&mut self) {
        if let Some(offset) = self.resume.take() {
            self.rewind(offset);
            return self.skip_quoted_lines();
        }
        // If the end of the broken directive has been read, no search is needed.
        let last = self
            .at
            .checked_sub(1)
            .and_then(|at| self.text.get(at))
            .copied();
        let mut byte = match last {
            Some(byte @ (b';' | b'{')) => Some(byte),
            _ => self.skip_byte(),
        };
        while let Some(found) = byte {
            match found {
                b';' => return,
                b'{' => return self.skip_block(),
                b'}' => {
                    self.at -= 1;
                    return;
                }
                _ => byte = self.skip_byte(),
            }
        }
    }

    /// Skips text lines that begin with a quote: no directive begins with a quote, so these lines
    /// continue the broken directive.
    fn skip_quoted_lines(&mut self) {
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let blanks = rest.iter().take_while(|byte| b" \t".contains(byte)).count();
            if !matches!(rest.get(blanks), Some(b'"' | b'\'')) {
                return;
            }
            let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            let ends_line = end.checked_sub(1).and_then(|at| rest.get(at)) == Some(&b'\n');
            self.line += u32::from(self.is_file && ends_line);
            self.at += end;
        }
    }

    /// Skips to the end of a block whose `{` has been read. Errors within the block are not
    /// returned, since an unknown block may have another syntax.
    pub(crate) fn skip_block(&mut self) {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next() {
                Ok(Token::Directive {
                    opens_block: true, ..
                }) => depth += 1,
                Ok(Token::Directive { .. }) => {}
                Ok(Token::BlockEnd) => depth -= 1,
                Ok(Token::End) => return,
                Err(_) => match self.text.get(self.at.saturating_sub(1)) {
                    Some(b'{') => depth += 1,
                    _ if self.at >= self.text.len() => return,
                    _ => {}
                },
            }
        }
    }

    /// The end of the text, if the text may end here.
    fn end(&mut self, words: &[Word]) -> Result<Token, Fault> {
        if words.is_empty() {
            Ok(Token::End)
        } else {
            Err(self.cut())
        }
    }

    /// The error of a text that ends inside a directive.
    fn cut(&mut self) -> Fault {
        self.cut_short = true;
        self.fault(if self.is_file {
            "unexpected end of file, expecting \";\" or \"}\""
        } else {
            "unexpected end of parameter, expecting \";\""
        })
    }

    fn directive(&self, mut words: Vec<Word>, opens_block: bool) -> Token {
        // As in nginx, the line of a directive is the one on which it ends.
        words
            .iter_mut()
            .for_each(|word| word.position.line = self.line);
        Token::Directive { words, opens_block }
    }

    /// Reads a comment up to its line end.
    fn comment(&mut self) -> Result<(), Fault> {
        while let Some(byte) = self.take()? {
            if byte == b'\n' {
                self.start = self.at - 1;
                break;
            }
        }
        Ok(())
    }

    /// Reads a word without quotes whose first byte has been read. Returns the byte that ended the
    /// word.
    fn bare(&mut self, first: u8, words: &mut Vec<Word>) -> Result<u8, Fault> {
        let mut byte = first;
        let mut after_dollar = false;
        loop {
            match byte {
                b'\\' => {
                    after_dollar = false;
                    self.take_or_cut()?;
                }
                b'$' => after_dollar = true,
                b'{' if after_dollar => {}
                b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' => {
                    words.push(self.word(self.start, false));
                    return Ok(byte);
                }
                _ => after_dollar = false,
            }
            byte = self.take_or_cut()?;
        }
    }

    /// Reads a quoted word whose opening quote has been read.
    fn quoted(&mut self, quote: u8, words: &mut Vec<Word>) -> Result<(), Fault> {
        self.start = self.at;
        loop {
            match self.take_quoted(quote)? {
                b'\\' => {
                    self.take_quoted(quote)?;
                }
                byte if byte == quote => break,
                _ => {}
            }
        }
        words.push(self.word(self.start, true));
        Ok(())
    }

    /// Reads the next byte of a quoted word. At the end of the text, or if the word is too long,
    /// the closing quote is missing.
    fn take_quoted(&mut self, quote: u8) -> Result<u8, Fault> {
        match self.take() {
            Ok(Some(byte)) => Ok(byte),
            Ok(None) => {
                let fault = self.cut();
                Err(self.in_quotes(fault, "this quote is not closed"))
            }
            Err(_) => {
                let fault = self.unterminated(quote);
                self.resume = self.next_line();
                Err(fault)
            }
        }
    }

    /// Reads the byte after a closing quote. Returns the byte if it ends the directive.
    fn after_quoted(&mut self) -> Result<Option<u8>, Fault> {
        match self.take_or_cut()? {
            b' ' | b'\t' | b'\r' | b'\n' => Ok(None),
            end @ (b';' | b'{') => Ok(Some(end)),
            b')' => {
                // `if ($a = "b")`: the closing parenthesis is a word of its own.
                self.at -= 1;
                Ok(None)
            }
            byte => {
                let fault = self.unexpected(byte);
                // The `;` is missing; the block ends here nevertheless.
                self.at -= usize::from(byte == b'}');
                if self.read_since(self.start).contains(&b'\n') {
                    Err(self.in_quotes(fault, "the quoted text begins here"))
                } else {
                    Err(fault)
                }
            }
        }
    }

    /// Blames a fault on the opening quote before `start`, which probably lacks its closing quote.
    /// As text outside of the quotes was read as quoted, reading continues after the line of the
    /// opening quote.
    fn in_quotes(&mut self, fault: Fault, label: &'static str) -> Fault {
        self.resume = self.next_line();
        fault.with_related(self.position_at(self.start.saturating_sub(1)), label)
    }

    /// The offset of the line after the line on which the current word begins.
    fn next_line(&self) -> Option<usize> {
        let word = self.read_since(self.start);
        memchr::memchr(b'\n', word).map(|at| self.start + at + 1)
    }

    /// The word from `start` up to the byte that ended it, which has been read.
    fn word(&self, start: usize, quoted: bool) -> Word {
        let raw = self.text.get(start..self.at - 1).unwrap_or_default();
        let offset = if quoted { start - 1 } else { start };
        Word {
            bytes: unescape(raw).into(),
            quoted,
            position: self.position_at(offset),
        }
    }

    /// Reads the next byte. The end of the text is an error.
    fn take_or_cut(&mut self) -> Result<u8, Fault> {
        match self.take()? {
            Some(byte) => Ok(byte),
            None => Err(self.cut()),
        }
    }

    /// Reads the next byte; `None` at the end of the text.
    fn take(&mut self) -> Result<Option<u8>, Fault> {
        let Some(&byte) = self.text.get(self.at) else {
            return Ok(None);
        };
        if self.is_file && self.at - self.start == WORD_LENGTH_MAX {
            return Err(self.too_long());
        }
        self.at += 1;
        self.line += u32::from(byte == b'\n' && self.is_file);
        Ok(Some(byte))
    }

    /// Reads the next byte, without a limit of the word's length.
    fn skip_byte(&mut self) -> Option<u8> {
        self.start = self.at;
        self.take().ok().flatten()
    }

    fn too_long(&self) -> Fault {
        let begin = self
            .text
            .get(self.start..self.start + SHOWN_OF_LONG_WORD)
            .unwrap_or_default();
        let begin = String::from_utf8_lossy(begin);
        self.fault_at_start(format!("too long parameter \"{begin}...\" started"))
    }

    fn unterminated(&self, quote: u8) -> Fault {
        let quote = char::from(quote);
        self.fault_at_start(format!(
            "too long parameter, probably missing terminating \"{quote}\" character"
        ))
    }

    /// A fault on the line on which the current word began.
    fn fault_at_start(&self, message: String) -> Fault {
        let word = self.text.get(self.start..self.at).unwrap_or_default();
        let lines = memchr::memchr_iter(b'\n', word).count();
        let mut position = self.position_at(self.start);
        position.line = position
            .line
            .saturating_sub(u32::try_from(lines).unwrap_or(0));
        Fault {
            message,
            position: Some(position),
            ..Fault::default()
        }
    }

    /// The error of an unexpected byte.
    pub(crate) fn unexpected(&self, byte: u8) -> Fault {
        let text = String::from_utf8_lossy(&[byte]).into_owned();
        self.fault(&format!("unexpected \"{text}\""))
    }

    fn fault(&self, message: &str) -> Fault {
        Fault {
            message: message.to_owned(),
            position: Some(self.position()),
            ..Fault::default()
        }
    }
}

/// The words of each directive of a text outside of any file, such as the default of a setting.
/// Malformed directives are omitted.
pub(crate) fn rows(text: &[u8]) -> Vec<Vec<Word>> {
    let mut text = text.to_vec();
    text.push(b';');
    let mut lexer = Lexer::text(&text, 0);
    let mut rows = Vec::new();
    loop {
        match lexer.next() {
            Ok(Token::Directive { words, .. }) => rows.push(words),
            Ok(Token::BlockEnd) => {}
            Ok(Token::End) => return rows,
            Err(_) => lexer.recover(),
        }
    }
}

/// Adds the hint that a `;` is missing after the last of `words`.
fn missing_semicolon(fault: Fault, words: &[Word]) -> Fault {
    match words.last() {
        Some(word) => fault.with_hint(format!("a \";\" is missing after \"{}\"", word.text())),
        None => fault,
    }
}

/// Replaces `\"`, `\'`, `\\`, `\t`, `\r` and `\n` by the bytes that they stand for; any other `\`
/// is kept.
fn unescape(raw: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', raw) else {
        return Cow::Borrowed(raw);
    };
    let (plain, mut rest) = raw.split_at(first);
    let mut bytes = plain.to_vec();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match (byte, after.first()) {
            (b'\\', Some(b't')) => Some(b'\t'),
            (b'\\', Some(b'r')) => Some(b'\r'),
            (b'\\', Some(b'n')) => Some(b'\n'),
            (b'\\', Some(&same @ (b'"' | b'\'' | b'\\'))) => Some(same),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() {
            after.get(1..).unwrap_or_default()
        } else {
            after
        };
    }
    Cow::Owned(bytes)
}
