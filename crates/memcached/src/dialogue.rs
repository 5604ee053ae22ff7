//! What goes on on one connection, without any I/O: bytes in, answers out.
//!
//! Its first byte says whether it speaks by lines, as here, or by packets (`binary.rs`).
//!
//! ```text
//!            ┌──────────── line ◀───────────┐
//!  get  ─────┼─▶ keys ──────── its end ─────┤
//!  set  ─────┼─▶ value ─────── its end ─────┤
//!  refused ──┼─▶ skip, skip line ───────────┤
//!  dump ─────┼─▶ walk ──────── its end ─────┤
//!  password ─┴─▶ token ─────── its end ─────┘
//! ```
//!
//! Where clients must say who they are, a line leads to `token` alone until one has.
//!
//! What is kept between two pieces of input: the begin of a line of up to [`LINE_LENGTH_MAX`]
//! bytes (more where keys may be longer), or of a key; or what has come of a value, which is at most as long as an item may be.
//! Where answers have grown to [`OUTPUT_MAX`](crate::output::OUTPUT_MAX) bytes nothing more is
//! looked at until they are sent, in the middle of a get too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proto::memcached::binary::REQUEST_MAGIC;
use proto::memcached::command::{
    self, BAD_DATA, BAD_FORMAT, Command, CommandLine, LINE_LENGTH_MAX, LINE_LENGTH_MIN, Lookup,
    Mode, NextKey, Store, Words,
};
use proto::memcached::meta::{Meta, Verb};
use store::{Cursor, Large};

use crate::auth::{ServerAuth, TOKEN_LENGTH_MAX};
use crate::binary::Packets;
use crate::cache::{CommandTime, LIMIT_MIN_MEGABYTES, Protocol, ShutdownPolicy, ThreadContext};
use crate::census::{CacheDump, Census};
use crate::connections::ConnectionState;
use crate::counts::Counter;
use crate::meta;
use crate::output::Output;
use crate::size_classes::item_size;
use crate::stats;
use crate::text::{self, IncrementResult, SentValue, StoreCommand, TOO_LARGE};
use crate::walk::{self, Dump, ItemWalk, Removal, Removed};
use crate::watch::EventKinds;

/// Highest level of `verbosity`.
const VERBOSITY_MAX: u32 = 4;

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// It sends what there is, and receives.
    Receive,
    /// It sends what there is before it goes on with what it has received.
    Send,
    /// It sends what there is, and closes.
    Close,
    /// It sends what there is, and closes since the client speaks something else.
    CloseFaulty,
    /// It sends what there is, and from now on events of these kinds.
    Watch(EventKinds),
}

/// What a connection speaks, and what comes next there.
#[derive(Debug)]
enum State {
    /// Its first byte, which says what it speaks.
    First,
    Packets(Packets),
    Line,
    /// Keys of a line, up to its end.
    Keys(Lookup),
    /// The data block of the line that is kept here, and what has come of it.
    Value(Box<Receiving>),
    /// So many bytes that nobody wants.
    Skip(u64),
    /// What is left of a line that nobody wants.
    SkipLine,
    /// What a client says of itself: so many bytes of it are still to come.
    Token(Vec<u8>, usize),
    /// A walk over all objects.
    Walk(Box<ItemWalk>, Cursor),
    /// Items are counted.
    Census(Box<Census>),
}

/// A value that comes in pieces.
#[derive(Debug)]
struct Receiving {
    /// The line that announced it, which is whole and is taken.
    line: Vec<u8>,
    value: Large,
    /// Bytes of it that are still to come.
    left: usize,
    /// The line break behind it, and how much of that has come.
    line_break: [u8; 2],
    of_line_break: usize,
}

/// A line that announces a data block.
#[derive(Clone, Copy)]
enum Announced<'a> {
    Text(Store<'a>, bool),
    Meta(Meta<'a>),
}

#[derive(Debug)]
pub(crate) struct Dialogue {
    state: State,
    /// How clients of its server say who they are, where a configuration says it; the cache knows
    /// it otherwise.
    auth: Option<Arc<ServerAuth>>,
    /// The client has said who it is.
    is_admitted: bool,
    /// Commands since others had their turn.
    commands: u32,
    /// Commands that have come so far.
    pub(crate) commands_total: u64,
    /// What has been received and could not be taken yet.
    pending: Vec<u8>,
}

/// A step: what was taken, and what the connection does next where it cannot go on.
pub(crate) type StepResult = (usize, Option<NextAction>);

impl Dialogue {
    pub(crate) fn new() -> Dialogue {
        Dialogue::with_auth(None)
    }

    /// One with a client of a server that a configuration has.
    pub(crate) fn with_auth(auth: Option<Arc<ServerAuth>>) -> Dialogue {
        Dialogue {
            state: State::First,
            auth,
            is_admitted: false,
            commands: 0,
            commands_total: 0,
            pending: Vec::new(),
        }
    }

    /// Whether nothing has been begun.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_between() && self.pending.is_empty()
    }

    /// Whether it stands between two commands.
    fn is_between(&self) -> bool {
        match &self.state {
            State::First | State::Line => true,
            State::Packets(packets) => packets.is_idle(),
            _ => false,
        }
    }

    /// What is spoken, once that is known.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        match &self.state {
            State::First => None,
            State::Packets(_) => Some(Protocol::Binary),
            _ => Some(Protocol::Text),
        }
    }

    /// What others are shown of it.
    pub(crate) fn shown_state(&self) -> ConnectionState {
        match &self.state {
            State::Value(_) | State::Token(..) => ConnectionState::Value,
            State::Packets(packets) if !packets.is_idle() => ConnectionState::Value,
            State::Skip(_) | State::SkipLine => ConnectionState::Swallow,
            State::Walk(..) | State::Census(_) => ConnectionState::Write,
            _ => ConnectionState::Read,
        }
    }

    /// Takes what was received; nothing where it only goes on.
    pub(crate) fn take(
        &mut self,
        received: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> NextAction {
        if self.pending.is_empty() {
            let (used, next) = self.run(received, shared, moment, out);
            let left = received.get(used..).unwrap_or_default();
            self.pending.extend_from_slice(left);
            return next;
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(received);
        let (used, next) = self.run(&pending, shared, moment, out);
        pending.drain(..used.min(pending.len()));
        if pending.is_empty() {
            pending = Vec::new(); // an idle connection holds no memory for it
        }
        self.pending = pending;
        next
    }

    fn run(
        &mut self,
        input: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> (usize, NextAction) {
        let mut used = 0;
        self.commands = 0;
        loop {
            if out.is_full() {
                return (used, NextAction::Send);
            }
            let rest = input.get(used..).unwrap_or_default();
            let has_more = !rest.is_empty() || !self.is_between();
            if self.commands >= shared.cache.settings.commands_in_turn && has_more {
                shared.counts.add(Counter::Yields, 1);
                return (used, NextAction::Send);
            }
            let (taken, next) = self.step(rest, shared, moment, out);
            used += taken;
            if let Some(next) = next {
                return (used, next);
            }
        }
    }

    fn step(
        &mut self,
        input: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> StepResult {
        match &mut self.state {
            State::First => {
                let auth = self.auth.as_deref();
                let allowed = auth.map_or(shared.cache.settings.protocol, ServerAuth::protocol);
                (0, self.begin(input, allowed))
            }
            State::Packets(packets) => {
                self.commands += 1;
                let is_first = packets.is_idle();
                let (used, next) = packets.step(input, self.auth.as_deref(), shared, moment, out);
                self.commands_total += u64::from(is_first && used > 0);
                (used, next)
            }
            State::Line => {
                let with_auth = match &self.auth {
                    Some(auth) => auth.text.is_some(),
                    None => shared.auth_protocol(true).is_some(),
                };
                if with_auth && !self.is_admitted {
                    self.auth_line(input, out)
                } else {
                    self.line(input, shared, moment, out)
                }
            }
            State::Keys(lookup) => {
                let lookup = *lookup;
                self.keys(lookup, input, shared, moment, out)
            }
            State::Value(receiving) => match receiving.take(input) {
                (used, false) => (used, Some(NextAction::Receive)),
                (used, true) => {
                    if let State::Value(whole) = std::mem::replace(&mut self.state, State::Line) {
                        finish(*whole, shared, moment, out);
                    }
                    (used, None)
                }
            },
            State::Skip(left) => {
                let used = input
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= used as u64;
                if *left > 0 {
                    return (used, Some(NextAction::Receive));
                }
                self.state = State::Line;
                (used, None)
            }
            State::SkipLine => match memchr::memchr(b'\n', input) {
                None => (input.len(), Some(NextAction::Receive)),
                Some(end) => {
                    self.state = State::Line;
                    (end + 1, None)
                }
            },
            State::Token(token, left) => {
                let used = input.len().min(*left);
                token.extend_from_slice(input.get(..used).unwrap_or_default());
                *left -= used;
                if *left > 0 {
                    return (used, Some(NextAction::Receive));
                }
                if let State::Token(token, _) = std::mem::replace(&mut self.state, State::Line) {
                    let auth = self.auth.clone();
                    self.is_admitted = admit(&token, auth.as_deref(), shared, out);
                }
                (used, None)
            }
            State::Walk(walk, cursor) => {
                self.commands += walk::COMMANDS_A_STEP;
                match walk.step(*cursor, shared, moment, out) {
                    Some(next) => *cursor = next,
                    None => {
                        walk.end(out);
                        self.state = State::Line;
                    }
                }
                (0, None)
            }
            State::Census(census) => {
                self.commands += walk::COMMANDS_A_STEP;
                if census.step(shared, moment) {
                    stats::answer_census(None, census, shared, moment, out);
                    self.state = State::Line;
                }
                (0, None)
            }
        }
    }

    /// Finds out what the client speaks. Where that cannot be, what comes next is returned.
    fn begin(&mut self, input: &[u8], allowed: Protocol) -> Option<NextAction> {
        let Some(first) = input.first() else {
            return Some(NextAction::Receive);
        };
        let is_binary = *first == REQUEST_MAGIC;
        self.state = match allowed {
            Protocol::Auto | Protocol::Binary if is_binary => State::Packets(Packets::default()),
            Protocol::Auto | Protocol::Text => State::Line,
            Protocol::Binary => return Some(NextAction::Close),
        };
        None
    }

    fn line(
        &mut self,
        input: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> StepResult {
        let Some(end) = memchr::memchr(b'\n', input) else {
            if input.len() <= command::line_length_max(shared.cache.settings.key_max) {
                return (0, Some(NextAction::Receive));
            }
            // Only about keys a line may go on and on.
            let Some((lookup, begin)) = Lookup::begins(input) else {
                return (0, Some(NextAction::CloseFaulty));
            };
            self.state = State::Keys(lookup);
            return (begin, None);
        };
        let line = input.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let behind = input.get(end + 1..).unwrap_or_default();
        let used = end + 1;
        self.commands += 1;
        self.commands_total += 1;
        let key_max = shared.cache.settings.key_max;
        if used < LINE_LENGTH_MIN {
            out.line(BAD_FORMAT);
            return (used, None);
        }
        let CommandLine { command, noreply } = match command::parse_with_keys(line, key_max) {
            Ok(line) => line,
            Err(refused) => {
                let Some(answer) = refused.answer else {
                    return (used, Some(NextAction::CloseFaulty));
                };
                if !refused.noreply {
                    out.line(answer);
                }
                if refused.data > 0 {
                    self.state = State::Skip(refused.data);
                }
                return (used, None);
            }
        };
        match command {
            Command::Lookup(lookup) => {
                let begin = Lookup::begins(line).map_or(line.len(), |(_, begin)| begin);
                let keys = line.get(begin..).unwrap_or_default();
                if command::has_longer_word(keys, key_max) {
                    out.line(BAD_FORMAT);
                    return (used, None);
                }
                self.state = State::Keys(lookup);
                return (begin, None);
            }
            Command::Store(store) => {
                let announced = Announced::Text(store, noreply);
                return (
                    used + self.value(announced, line, behind, shared, moment, out),
                    None,
                );
            }
            Command::Meta(meta) if matches!(meta.verb, Verb::Set { .. }) => {
                let announced = Announced::Meta(meta);
                return (
                    used + self.value(announced, line, behind, shared, moment, out),
                    None,
                );
            }
            Command::Meta(meta) => carry_out_meta(&meta, shared, moment, out),
            Command::Crawler(words) => self.crawler(words, shared, out),
            Command::Stats(words) => self.stats(words, shared, moment, out),
            Command::Watch(words) => return (used, watch(words, shared, out)),
            Command::DeletePrefix { prefix } if shared.cache.settings.allows_flush => {
                self.remove(Removed::Prefix(prefix.to_vec()), noreply, shared);
            }
            Command::DeleteTag { tag } if shared.cache.settings.allows_flush => {
                self.remove(Removed::Tag(tag.to_vec()), noreply, shared);
            }
            Command::Quit => return (used, Some(NextAction::Close)),
            Command::Shutdown(words) => return (used, shutdown(words, noreply, shared, out)),
            other => {
                if let Some(answer) = carry_out(other, shared, moment, out)
                    && !noreply
                {
                    answer.write(out);
                }
            }
        }
        (used, None)
    }

    /// Takes a line of a client that has not said who it is.
    fn auth_line(&mut self, input: &[u8], out: &mut Output) -> StepResult {
        const SHORTEST: usize = 3;
        let Some(end) = memchr::memchr(b'\n', input) else {
            let next = match input.len() {
                ..=LINE_LENGTH_MAX => NextAction::Receive,
                _ => NextAction::Close,
            };
            return (0, Some(next));
        };
        let line = input.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() < SHORTEST {
            return (end + 1, Some(NextAction::Close));
        }
        match command::auth_token_length(line) {
            None => out.line("CLIENT_ERROR unauthenticated"),
            Some(length) if length > TOKEN_LENGTH_MAX => {
                out.line("CLIENT_ERROR auth token too long");
            }
            Some(length) => self.state = State::Token(Vec::new(), length as usize + 2),
        }
        (end + 1, None)
    }

    /// Begins to remove all items that something is true of.
    fn remove(&mut self, what: Removed, noreply: bool, shared: &ThreadContext) {
        shared.cache.overtaken().note_removed(&what);
        self.walk(ItemWalk::Removal(Removal::new(what, noreply)));
    }

    fn walk(&mut self, walk: ItemWalk) {
        self.state = State::Walk(Box::new(walk), Cursor::default());
    }

    fn stats(
        &mut self,
        words: Words<'_>,
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) {
        const CLASSES_MAX: u32 = 63;
        let mut rest = words;
        match rest.next() {
            Some(b"cachedump") => {
                let (class, limit) = (rest.next(), rest.next());
                let number = |word: Option<&[u8]>| word.and_then(command::number_32);
                if !shared.cache.settings.allows_dump {
                    out.line("CLIENT_ERROR stats cachedump not allowed");
                } else if class.is_none() || limit.is_none() {
                    out.line("CLIENT_ERROR bad command line");
                } else {
                    match (number(class), number(limit)) {
                        (Some(class), _) if class > CLASSES_MAX => {
                            out.line("CLIENT_ERROR Illegal slab id");
                        }
                        (Some(class), Some(limit)) => self.walk(ItemWalk::CacheDump(CacheDump {
                            class: class as usize,
                            left: if limit == 0 { u32::MAX } else { limit },
                        })),
                        _ => out.line(BAD_FORMAT),
                    }
                }
            }
            Some(word) if rest.next().is_none() && stats::census(word).is_some() => {
                if let Some(kind) = stats::census(word) {
                    self.state = State::Census(Box::new(Census::new(kind)));
                }
            }
            _ => stats::answer(words, shared, moment, out),
        }
    }

    fn keys(
        &mut self,
        lookup: Lookup,
        input: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> StepResult {
        let (key_max, mut used) = (shared.cache.settings.key_max, 0);
        loop {
            let rest = input.get(used..).unwrap_or_default();
            match NextKey::of(rest, key_max) {
                NextKey::Key(key, taken) => {
                    text::lookup(shared, moment, lookup, key, out);
                    used += taken;
                    if out.is_full() {
                        return (used, None);
                    }
                }
                NextKey::End(taken) => {
                    out.line("END");
                    self.state = State::Line;
                    return (used + taken, None);
                }
                NextKey::More(taken) => return (used + taken, Some(NextAction::Receive)),
                NextKey::TooLong => {
                    out.line(BAD_FORMAT);
                    self.state = State::SkipLine;
                    return (used, None);
                }
            }
        }
    }

    /// Takes the data block that a line has announced, or what has come of it. How many bytes that
    /// took is returned.
    fn value(
        &mut self,
        announced: Announced<'_>,
        line: &[u8],
        input: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> usize {
        let mut decoded = Vec::new();
        let (key, flags, length, tags, noreply) = match &announced {
            Announced::Text(store, noreply) => {
                (Some(store.key), store.flags, store.length, 0, *noreply)
            }
            Announced::Meta(meta) => {
                let length = match meta.verb {
                    Verb::Set { length, .. } => length,
                    _ => 0,
                };
                let key = meta::key_of(meta, &mut decoded);
                let tags = meta.tags().map_or(0, <[u8]>::len);
                (key, meta.options.flags, length, tags, false)
            }
        };
        let length = length as usize;
        let Some(key) = key else {
            out.line(meta::BAD_KEY);
            self.state = State::Skip(length as u64 + 2);
            return 0;
        };
        if item_size(key.len(), flags, length + tags) > shared.cache.settings.item_max {
            if !noreply {
                out.line(TOO_LARGE);
            }
            shared.counts.add(Counter::TooLarge, 1);
            // What was there must not answer for what was to take its place.
            if announced.replaces() {
                shared.cache.store.remove(key, moment.now);
            }
            self.state = State::Skip(length as u64 + 2);
            return 0;
        }
        if let Some((value, rest)) = input.split_at_checked(length)
            && let Some((line_break, _)) = rest.split_at_checked(2)
        {
            let is_whole = line_break == b"\r\n";
            deliver(
                announced,
                key,
                SentValue::Whole(value),
                is_whole,
                shared,
                moment,
                out,
            );
            return length + 2;
        }
        self.state = State::Value(Box::new(Receiving {
            line: line.to_vec(),
            value: Large::new(key, 0),
            left: length,
            line_break: [0; 2],
            of_line_break: 0,
        }));
        0
    }

    fn crawler(&mut self, words: Words<'_>, shared: &ThreadContext, out: &mut Output) {
        let words: Vec<&[u8]> = words.take(3).collect();
        let (dump, name) = match words.first() {
            Some(&b"metadump") => (Dump::Whole, "metadump"),
            Some(&b"mgdump") => (Dump::Commands, "mgdump"),
            _ => return out.line(crawler_setting(&words, shared)),
        };
        match words.as_slice() {
            [_, _] if !shared.cache.settings.allows_dump && dump == Dump::Whole => {
                out.line("ERROR metadump not allowed");
            }
            [_, _] if !shared.cache.settings.allows_dump => out.line("ERROR key dump not allowed"),
            // The dump is sent by others in memcached, and would stand before those answers.
            [_, _] if out.len() > 0 => {
                out.line(&format!(
                    "ERROR cannot pipeline other commands before {name}"
                ));
            }
            [_, b"all" | b"hash"] => {
                out.line("OK");
                self.walk(ItemWalk::Dump(dump));
            }
            [_, _] => out.line("BADCLASS invalid class id"),
            _ => out.line(command::ERROR),
        }
    }
}

/// Begins to watch, or says why not.
fn watch(words: Words<'_>, shared: &ThreadContext, out: &mut Output) -> Option<NextAction> {
    if !shared.cache.settings.allows_watch {
        out.line("CLIENT_ERROR watch commands not allowed");
    } else if out.len() > 0 {
        out.line("ERROR cannot pipeline other commands before watch");
    } else {
        match EventKinds::named(words) {
            Some(kinds) => return Some(NextAction::Watch(kinds)),
            None => out.line(command::ERROR),
        }
    }
    None
}

/// Whether what a client says of itself is right, which is answered.
fn admit(
    token: &[u8],
    auth: Option<&ServerAuth>,
    shared: &ThreadContext,
    out: &mut Output,
) -> bool {
    let Some(block) = token.strip_suffix(b"\r\n") else {
        out.line("CLIENT_ERROR bad command line termination");
        return false;
    };
    let admitted = match auth {
        Some(auth) => auth.admit_text(block),
        None => shared.cache.credentials().admit_text(block),
    };
    match admitted {
        None => {
            out.line("CLIENT_ERROR bad authentication token format");
            return false;
        }
        Some(true) => out.line("STORED"),
        Some(false) => {
            out.line("CLIENT_ERROR authentication failure");
            shared.counts.add(Counter::AuthErrors, 1);
        }
    }
    shared.counts.add(Counter::AuthCommands, 1);
    admitted == Some(true)
}

impl Announced<'_> {
    fn replaces(&self) -> bool {
        match self {
            Announced::Text(store, _) => store.mode == Mode::Set,
            Announced::Meta(_) => true,
        }
    }
}

impl Receiving {
    /// Takes what has come. Whether the data block is whole.
    fn take(&mut self, input: &[u8]) -> (usize, bool) {
        let used = self.left.min(input.len());
        let (value, rest) = input.split_at_checked(used).unwrap_or_default();
        self.value.extend(value);
        self.left -= used;
        let mut more = 0;
        if self.left == 0 {
            let missing = self.line_break.get_mut(self.of_line_break..);
            for (place, byte) in missing.unwrap_or_default().iter_mut().zip(rest) {
                *place = *byte;
                more += 1;
            }
            self.of_line_break += more;
        }
        (used + more, self.of_line_break == self.line_break.len())
    }
}

/// A data block has come in pieces.
fn finish(whole: Receiving, shared: &ThreadContext, moment: CommandTime, out: &mut Output) {
    let key_max = shared.cache.settings.key_max;
    let announced = match command::parse_with_keys(&whole.line, key_max) {
        Ok(CommandLine {
            command: Command::Store(store),
            noreply,
        }) => Announced::Text(store, noreply),
        Ok(CommandLine {
            command: Command::Meta(meta),
            ..
        }) => Announced::Meta(meta),
        _ => return, // only such lines are kept
    };
    let key = whole.value.key().to_vec();
    let is_whole = whole.line_break == *b"\r\n";
    let sent = SentValue::Gathered(whole.value);
    deliver(announced, &key, sent, is_whole, shared, moment, out);
}

/// Stores a data block.
fn deliver(
    announced: Announced<'_>,
    key: &[u8],
    sent: SentValue<'_>,
    is_whole: bool,
    shared: &ThreadContext,
    moment: CommandTime,
    out: &mut Output,
) {
    match announced {
        Announced::Text(_, true) if !is_whole => {}
        _ if !is_whole => out.line(BAD_DATA),
        Announced::Meta(announced) => {
            shared.counts.add(Counter::MetaCommands, 1);
            meta::set(shared, moment, &announced, key, sent, out);
        }
        Announced::Text(store, noreply) => {
            let storing = StoreCommand {
                mode: store.mode,
                key,
                flags: store.flags,
                expires: moment.expiry(i64::from(store.expires)),
                compare: store.compare,
                cas: shared.cas(None),
                marks: 0,
                tags: &[],
                allows_stale: false,
                vivify: None,
            };
            let stored = text::store(shared, moment, &storing, sent);
            if !noreply {
                out.line(text::stored_text(stored));
            }
        }
    }
}

fn carry_out_meta(meta: &Meta<'_>, shared: &ThreadContext, moment: CommandTime, out: &mut Output) {
    shared.counts.add(Counter::MetaCommands, 1);
    let mut decoded = Vec::new();
    let Some(key) = meta::key_of(meta, &mut decoded) else {
        return out.line(match meta.verb {
            Verb::Debug => BAD_FORMAT,
            _ => meta::BAD_KEY,
        });
    };
    match meta.verb {
        Verb::Get => meta::get(shared, moment, meta, key, out),
        Verb::Delete => meta::delete(shared, moment, meta, key, out),
        Verb::Arithmetic { .. } => meta::arithmetic(shared, moment, meta, key, out),
        Verb::Debug => meta::debug(shared, moment, key, out),
        Verb::Set { .. } => {} // its data block comes first
    }
}

/// An answer of one line.
enum SimpleReply {
    Text(&'static str),
    Number(u64),
}

impl SimpleReply {
    fn write(&self, out: &mut Output) {
        match self {
            SimpleReply::Text(text) => out.line(text),
            SimpleReply::Number(number) => {
                out.number(*number);
                out.text(b"\r\n");
            }
        }
    }
}

/// Does what a line says that needs nothing but itself. What is answered in one line is returned.
fn carry_out(
    command: Command<'_>,
    shared: &ThreadContext,
    moment: CommandTime,
    out: &mut Output,
) -> Option<SimpleReply> {
    let answer = match command {
        Command::Delete { key } => text::delete(shared, moment, key),
        Command::Touch { key, expires } => text::touch(shared, moment, key, expires),
        Command::Arithmetic {
            key,
            delta,
            is_decrement,
        } => match text::count(
            shared,
            moment,
            key,
            (delta, is_decrement),
            None,
            shared.cas(None),
        ) {
            IncrementResult::Yes(value, ..) => return Some(SimpleReply::Number(value)),
            IncrementResult::NotNumeric => text::NOT_NUMERIC,
            IncrementResult::Missing | IncrementResult::Mismatch => "NOT_FOUND",
            IncrementResult::NoMemory => "SERVER_ERROR out of memory",
        },
        Command::FlushAll { delay } => match flush(i64::from(delay), shared, moment) {
            Ok(()) => "OK",
            Err(refused) => refused,
        },
        Command::Verbosity { level } => {
            let level = level.min(VERBOSITY_MAX);
            shared.cache.verbosity.store(level, Ordering::Relaxed);
            "OK"
        }
        Command::MemoryLimit { megabytes } => memory_limit(megabytes, shared),
        Command::MetaNothing => "MN",
        Command::Version => {
            out.line(stats::VERSION_LINE);
            return None;
        }
        Command::DeletePrefix { .. } => "CLIENT_ERROR delete_prefix not allowed",
        Command::DeleteTag { .. } => "CLIENT_ERROR delete_tag not allowed",
        // As memcached's debug builds have it, which its tests run.
        Command::DebugTime { seconds } if cfg!(debug_assertions) => {
            shared.cache.move_clock(seconds);
            "OK"
        }
        Command::RefreshCertificates => match shared.cache.refresh_certificates() {
            Some(Ok(())) => "OK",
            Some(Err(text)) => {
                logs::event!(Error, "certificates were not read again: {text}");
                "ERROR"
            }
            None => command::ERROR,
        },
        // What is about slabs, their LRU or another thread's log, which are not here.
        _ => command::ERROR,
    };
    Some(SimpleReply::Text(answer))
}

/// Forgets all that is there, now or later.
///
/// # Errors
///
/// The words of the text protocol where that is not allowed.
pub(crate) fn flush(
    delay: i64,
    shared: &ThreadContext,
    moment: CommandTime,
) -> Result<(), &'static str> {
    shared.counts.add(Counter::Flushes, 1);
    if !shared.cache.settings.allows_flush {
        return Err("CLIENT_ERROR flush_all not allowed");
    }
    let at = match delay {
        ..=0 => moment.now,
        _ => moment.expiry(delay).unwrap_or(moment.now),
    };
    shared.cache.overtaken().note_flush(at);
    shared.cache.store.flush(at, moment.now);
    Ok(())
}

fn memory_limit(megabytes: u32, shared: &ThreadContext) -> &'static str {
    const MEGABYTES_MAX: u32 = 1_000_000_000;
    match megabytes {
        ..LIMIT_MIN_MEGABYTES => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        MEGABYTES_MAX.. => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        _ => {
            shared.set_limit(megabytes);
            "OK"
        }
    }
}

/// Settings of memcached's crawler. Expired objects go by themselves here, every second, whatever
/// is set.
fn crawler_setting(words: &[&[u8]], shared: &ThreadContext) -> &'static str {
    let is_number =
        |word: &[u8]| std::str::from_utf8(word).is_ok_and(|text| text.parse::<u32>().is_ok());
    match words {
        [b"enable"] => {
            shared.cache.crawls.store(true, Ordering::Relaxed);
            "OK"
        }
        [b"disable"] => {
            shared.cache.crawls.store(false, Ordering::Relaxed);
            "OK"
        }
        [b"crawl", _] if !shared.cache.crawls.load(Ordering::Relaxed) => {
            "CLIENT_ERROR lru crawler disabled"
        }
        [b"crawl", _] => "OK",
        [b"sleep" | b"tocrawl", number] if is_number(number) => "OK",
        [b"sleep" | b"tocrawl", _] => BAD_FORMAT,
        _ => command::ERROR,
    }
}

fn shutdown(
    mut words: Words<'_>,
    noreply: bool,
    shared: &ThreadContext,
    out: &mut Output,
) -> Option<NextAction> {
    if !shared.cache.settings.allows_shutdown {
        if !noreply {
            out.line("SERVER_ERROR: shutdown not enabled");
        }
        return None;
    }
    match (words.next(), words.next()) {
        (None, _) => (shared.cache.end)(ShutdownPolicy::Now),
        (Some(b"graceful"), None) => (shared.cache.end)(ShutdownPolicy::Graceful),
        _ => {
            out.line("CLIENT_ERROR invalid shutdown mode");
            return None;
        }
    }
    Some(NextAction::Close)
}

#[cfg(test)]
mod tests;
