//! The binary protocol on one connection, without I/O: requests in, responses out.
//!
//! ```text
//!           ┌────── head, extras, key ◀──────┐
//!  set ─────┼─▶ value ──────── end of value ─┤
//!  refused ─┴─▶ skip ───────── end of value ─┘
//! ```
//!
//! A connection buffers at most [`HEAD_LENGTH`] bytes of a head, 255 of extras and a key of the
//! maximum length: longer keys are refused by their head. A value that arrives in pieces is
//! buffered only if the item does not exceed the size limit.

use proto::memcached::binary::{
    BadHead, Command, Condition, Count, HEAD_LENGTH, Head, Lengths, Request, Status,
};
use proto::memcached::command::Mode;
use store::{Item, Large, ObjectChange, Revision, UpdateOutcome};

use crate::auth::{self, ServerAuth, TOKEN_LENGTH_MAX};
use crate::cache::{CommandTime, ThreadContext};
use crate::census::{Census, CensusKind};
use crate::counts::Counter;
use crate::dialogue::{NextAction, StepResult, flush};
use crate::output::{Digits, Output};
use crate::prefixes::KeyUse;
use crate::size_classes::item_size;
use crate::stats;
use crate::text::{self, BINARY_KEY, IncrementResult, SentValue, StoreCommand, StoreResult};

/// Maximum length of the name of a SASL mechanism in bytes, as in memcached.
const MECHANISM_LENGTH_MAX: usize = 32;

/// What a connection reads next.
#[derive(Debug, Default)]
enum State {
    /// A packet's head, extras and key.
    #[default]
    Head,
    /// The rest of a packet's value.
    Value(Box<Receiving>),
    /// The rest of a refused value: this many bytes are discarded.
    Skip(usize),
    /// The client's SASL message.
    Token(Box<SaslMessage>),
    /// Nothing: the items are being counted for a statistics request.
    Census(Box<(Head, Census)>),
}

/// A SASL message that is being received.
#[derive(Debug)]
struct SaslMessage {
    head: Head,
    /// Whether the message begins an exchange with the mechanism PLAIN.
    is_plain: bool,
    bytes: Vec<u8>,
}

/// A packet whose value is being received.
#[derive(Debug)]
struct Receiving {
    head: Head,
    request: Request,
    value: Large,
    /// Bytes of the value that have not been received yet.
    left: usize,
}

/// The state of the binary protocol on one connection.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    state: State,
    /// Whether the client has authenticated.
    is_admitted: bool,
}

/// A request, without its value.
#[derive(Clone, Copy)]
struct Packet<'a> {
    head: &'a Head,
    request: Request,
    key: &'a [u8],
}

impl Packets {
    /// Whether the next byte begins a packet.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Head)
    }

    /// Processes one packet of the input, or a part of one.
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        auth: Option<&ServerAuth>,
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> StepResult {
        match &mut self.state {
            State::Head => self.packet(input, auth, shared, moment, out),
            State::Value(receiving) => {
                let used = receiving.left.min(input.len());
                receiving
                    .value
                    .extend(input.get(..used).unwrap_or_default());
                receiving.left -= used;
                if receiving.left > 0 {
                    return (used, Some(NextAction::Receive));
                }
                if let State::Value(whole) = std::mem::take(&mut self.state) {
                    let key = whole.value.key().to_vec();
                    let packet = Packet {
                        head: &whole.head,
                        request: whole.request,
                        key: &key,
                    };
                    packet.store(SentValue::Gathered(whole.value), shared, moment, out);
                }
                (used, None)
            }
            State::Skip(left) => {
                let used = input.len().min(*left);
                *left -= used;
                if *left > 0 {
                    return (used, Some(NextAction::Receive));
                }
                self.state = State::Head;
                (used, None)
            }
            State::Token(token) => {
                let missing = token.head.value().saturating_sub(token.bytes.len());
                let used = input.len().min(missing);
                token
                    .bytes
                    .extend_from_slice(input.get(..used).unwrap_or_default());
                if used < missing {
                    return (used, Some(NextAction::Receive));
                }
                if let State::Token(token) = std::mem::take(&mut self.state) {
                    self.admit(&token, auth, shared, out);
                }
                (used, None)
            }
            State::Census(counting) => {
                let (head, census) = &mut **counting;
                if census.step(shared, moment) {
                    stats::answer_census(Some(head), census, shared, moment, out);
                    self.state = State::Head;
                }
                (0, None)
            }
        }
    }

    /// Verifies a complete SASL message and responds to it.
    fn admit(
        &mut self,
        token: &SaslMessage,
        auth: Option<&ServerAuth>,
        shared: &ThreadContext,
        out: &mut Output,
    ) {
        shared.counts.add(Counter::AuthCommands, 1);
        let is_right = match auth {
            Some(auth) => auth.admit_plain(&token.bytes),
            None => shared.cache.credentials().admit_plain(&token.bytes),
        };
        if token.is_plain && is_right {
            self.is_admitted = true;
            success(&token.head, b"Authenticated", out);
        } else {
            shared.counts.add(Counter::AuthErrors, 1);
            fail(&token.head, Status::NotAuthenticated, out);
        }
    }

    fn packet(
        &mut self,
        input: &[u8],
        auth: Option<&ServerAuth>,
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> StepResult {
        let Some((head, rest)) = input.split_first_chunk::<HEAD_LENGTH>() else {
            return (0, Some(NextAction::Receive));
        };
        let head = match Head::parse(head) {
            Ok(head) => head,
            Err(BadHead::Magic) => return (HEAD_LENGTH, Some(NextAction::Close)),
            Err(BadHead::Lengths(head)) => {
                fail(&head, Status::UnknownCommand, out);
                return (HEAD_LENGTH, Some(NextAction::Close));
            }
            Err(BadHead::TooLong(head)) => {
                fail(&head, Status::InvalidArguments, out);
                return (HEAD_LENGTH, Some(NextAction::Close));
            }
        };
        let with_sasl = match auth {
            Some(auth) => auth.sasl.is_some(),
            None => shared.auth_protocol(false).is_some(),
        };
        if with_sasl && !self.is_admitted && !head.may_come_first() {
            fail(&head, Status::NotAuthenticated, out);
            return (HEAD_LENGTH, Some(NextAction::Close));
        }
        if head.key > shared.cache.settings.key_max {
            fail(&head, Status::InvalidArguments, out);
            return (HEAD_LENGTH, Some(NextAction::Close));
        }
        let Some((extras, rest)) = rest.split_at_checked(head.extras) else {
            return (0, Some(NextAction::Receive));
        };
        let Some((key, rest)) = rest.split_at_checked(head.key) else {
            return (0, Some(NextAction::Receive));
        };
        let used = HEAD_LENGTH + head.extras + head.key;
        let request = match head.command(extras) {
            Ok(Some(request)) => request,
            Ok(None) => {
                fail(&head, Status::UnknownCommand, out);
                self.state = State::Skip(head.value());
                return (used, None);
            }
            Err(_) => {
                fail(&head, Status::InvalidArguments, out);
                return (used, Some(NextAction::Close));
            }
        };
        let packet = Packet {
            head: &head,
            request,
            key,
        };
        match request.command {
            Command::Quit => {
                packet.done(out);
                return (used, Some(NextAction::Close));
            }
            Command::Set { .. } | Command::Join { .. } => {
                let of_value = self.value(packet, rest, shared, moment, out);
                return (used + of_value, None);
            }
            Command::ListMechanisms if with_sasl => {
                success(&head, auth::MECHANISMS.as_bytes(), out);
            }
            Command::Authenticate { is_step } if with_sasl => {
                // As in memcached, a name longer than any mechanism's is an invalid argument.
                let is_possible =
                    key.len() <= MECHANISM_LENGTH_MAX && head.value() <= TOKEN_LENGTH_MAX as usize;
                if is_possible {
                    self.state = State::Token(Box::new(SaslMessage {
                        head,
                        is_plain: !is_step && key == auth::MECHANISMS.as_bytes(),
                        bytes: Vec::new(),
                    }));
                } else {
                    fail(&head, Status::InvalidArguments, out);
                    self.state = State::Skip(head.value());
                }
            }
            Command::ListMechanisms | Command::Authenticate { .. } => {
                fail(&head, Status::UnknownCommand, out);
                self.state = State::Skip(head.value());
            }
            Command::Stats if stats::census(key).is_some() => {
                let kind = stats::census(key).unwrap_or(CensusKind::Items);
                self.state = State::Census(Box::new((head, Census::new(kind))));
            }
            _ => packet.carry_out(shared, moment, out),
        }
        (used, None)
    }

    /// Takes a packet's value, or the part of it that has been received. Returns the number of
    /// bytes consumed.
    fn value(
        &mut self,
        packet: Packet<'_>,
        input: &[u8],
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) -> usize {
        let length = packet.head.value();
        let flags = match packet.request.command {
            Command::Set { flags, .. } => flags,
            _ => 0,
        };
        if item_size(packet.key.len(), flags, length) > shared.cache.settings.item_max {
            shared.counts.add(Counter::TooLarge, 1);
            fail(packet.head, Status::TooLarge, out);
            // The client must not read the old value after its new value was refused.
            if let Command::Set {
                condition: Condition::None,
                ..
            } = packet.request.command
            {
                shared.cache.store.remove(packet.key, moment.now);
            }
            self.state = State::Skip(length);
            return 0;
        }
        if let Some(value) = input.get(..length) {
            packet.store(SentValue::Whole(value), shared, moment, out);
            return length;
        }
        self.state = State::Value(Box::new(Receiving {
            head: *packet.head,
            request: packet.request,
            value: Large::new(packet.key, 0),
            left: length,
        }));
        0
    }
}

impl Packet<'_> {
    /// Writes a success response without a value, unless the command is quiet.
    fn done(&self, out: &mut Output) {
        self.done_with_cas(0, out);
    }

    fn done_with_cas(&self, cas: u64, out: &mut Output) {
        if !self.request.is_quiet {
            let head = self.head.response(Status::Done, Lengths::default(), cas);
            out.text(&head);
        }
    }

    fn fail(&self, status: Status, out: &mut Output) {
        fail(self.head, status, out);
    }

    /// Carries out a command that has no value.
    fn carry_out(&self, shared: &ThreadContext, moment: CommandTime, out: &mut Output) {
        match self.request.command {
            Command::Get { with_key } => {
                let store = &shared.cache.store;
                let tell = |item: Item<'_>| {
                    shared.tell_fetched(self.key, Some(&item));
                    self.tell(&item, with_key, out);
                };
                let found = store.get(self.key, moment.now, tell).is_some();
                text::count_get(shared, self.key, found);
                if !found {
                    self.miss(with_key, out);
                }
            }
            Command::Touch { expires } => {
                let tell = |item: Item<'_>, out: &mut Output| self.tell_flags(&item, out);
                self.touch(expires, tell, false, shared, moment, out);
            }
            Command::GetAndTouch { expires, with_key } => {
                let tell = |item: Item<'_>, out: &mut Output| self.tell(&item, with_key, out);
                self.touch(expires, tell, with_key, shared, moment, out);
            }
            Command::Delete => self.delete(shared, moment, out),
            Command::Count(count) => self.count(count, shared, moment, out),
            Command::Flush { delay } => match flush(i64::from(delay), shared, moment) {
                Ok(()) => self.done(out),
                Err(_) => self.fail(Status::NotAuthenticated, out),
            },
            Command::Noop => self.done(out),
            Command::Version => success(self.head, stats::VERSION.as_bytes(), out),
            Command::Stats => stats::answer_packet(self.head, self.key, shared, moment, out),
            // `Packets::packet` has handled these.
            Command::Set { .. }
            | Command::Join { .. }
            | Command::Quit
            | Command::ListMechanisms
            | Command::Authenticate { .. } => {}
        }
    }

    /// Writes a found item: flags, the key if requested, the value.
    fn tell(&self, item: &Item<'_>, with_key: bool, out: &mut Output) {
        let key = if with_key { self.key } else { &[] };
        let lengths = Lengths {
            extras: 4,
            key: key.len() as u16,
            value: item.value.len(),
        };
        out.text(&self.head.response(Status::Done, lengths, item.cas));
        out.text(&item.flags.to_be_bytes());
        out.text(key);
        out.value(item.value);
    }

    /// Writes the response of Touch to a found item: its flags.
    fn tell_flags(&self, item: &Item<'_>, out: &mut Output) {
        let lengths = Lengths {
            extras: 4,
            ..Lengths::default()
        };
        out.text(&self.head.response(Status::Done, lengths, item.cas));
        out.text(&item.flags.to_be_bytes());
    }

    /// Writes the response for a missing item, unless the command is quiet.
    fn miss(&self, with_key: bool, out: &mut Output) {
        if self.request.is_quiet {
            return;
        }
        if !with_key {
            return self.fail(Status::NotFound, out);
        }
        let lengths = Lengths {
            key: self.key.len() as u16,
            ..Lengths::default()
        };
        out.text(&self.head.response(Status::NotFound, lengths, 0));
        out.text(self.key);
    }

    fn touch(
        &self,
        expires: u32,
        tell: impl Fn(Item<'_>, &mut Output),
        with_key: bool,
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) {
        let revision = Revision {
            expires: Some(moment.expiry(i64::from(expires))),
            is_use: true,
            ..Revision::default()
        };
        let store = &shared.cache.store;
        shared.cache.overtake(self.key);
        let outcome = store.update(self.key, moment.now, |item| {
            shared.tell_fetched(self.key, item.as_ref());
            item.map_or(ObjectChange::Keep, |item| {
                tell(item, out);
                ObjectChange::Revise(revision)
            })
        });
        text::count_touch(shared, outcome);
        if !matches!(outcome, UpdateOutcome::Stored(_)) {
            self.miss(with_key, out);
        }
    }

    fn delete(&self, shared: &ThreadContext, moment: CommandTime, out: &mut Output) {
        let mut refused = Status::NotFound;
        shared.cache.prefixes.count(self.key, KeyUse::Delete);
        shared.cache.overtake(self.key);
        let outcome = shared
            .cache
            .store
            .update(self.key, moment.now, |item| match item {
                Some(item) if self.head.cas == 0 || self.head.cas == item.cas => {
                    shared.tell_deleted("delete", &item);
                    ObjectChange::Remove
                }
                Some(_) => {
                    refused = Status::Exists;
                    ObjectChange::Keep
                }
                None => ObjectChange::Keep,
            });
        if matches!(outcome, UpdateOutcome::Removed) {
            shared.counts.add(Counter::DeleteHits, 1);
            return self.done(out);
        }
        if refused == Status::NotFound {
            shared.counts.add(Counter::DeleteMisses, 1);
        }
        self.fail(refused, out);
    }

    fn count(&self, count: Count, shared: &ThreadContext, moment: CommandTime, out: &mut Output) {
        let delta = (count.delta, count.is_decrement);
        let compare = Some(self.head.cas);
        let counted = text::count(shared, moment, self.key, delta, compare, shared.cas(None));
        let (value, cas) = match (counted, count.initial) {
            (IncrementResult::Yes(value, cas, _), _) => (value, cas),
            (IncrementResult::Missing, Some((initial, expires))) => {
                let mut digits = Digits::default();
                let storing = StoreCommand {
                    mode: Mode::Add,
                    expires: moment.expiry(i64::from(expires)),
                    ..self.storing(shared)
                };
                let sent = SentValue::Whole(digits.write(initial));
                match text::store(shared, moment, &storing, sent) {
                    StoreResult::Yes(cas, _) => (initial, cas),
                    StoreResult::NoMemory => return self.fail(Status::OutOfMemory, out),
                    _ => return self.fail(Status::NotStored, out),
                }
            }
            (IncrementResult::Missing, None) => return self.fail(Status::NotFound, out),
            (IncrementResult::Mismatch, _) => return self.fail(Status::Exists, out),
            (IncrementResult::NotNumeric, _) => return self.fail(Status::NotNumeric, out),
            (IncrementResult::NoMemory, _) => return self.fail(Status::OutOfMemory, out),
        };
        if !self.request.is_quiet {
            let lengths = Lengths {
                value: 8,
                ..Lengths::default()
            };
            out.text(&self.head.response(Status::Done, lengths, cas));
            out.text(&value.to_be_bytes());
        }
    }

    /// The settings that all storing commands have in common.
    fn storing(&self, shared: &ThreadContext) -> StoreCommand<'_> {
        // The text protocols show a key that is not valid in a line in base64.
        let is_plain = self.key.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        StoreCommand {
            mode: Mode::Set,
            key: self.key,
            flags: 0,
            expires: None,
            compare: (self.head.cas != 0).then_some(self.head.cas),
            cas: shared.cas(None),
            marks: if is_plain { 0 } else { BINARY_KEY },
            tags: &[],
            allows_stale: false,
            vivify: None,
        }
    }

    fn store(
        &self,
        sent: SentValue<'_>,
        shared: &ThreadContext,
        moment: CommandTime,
        out: &mut Output,
    ) {
        let storing = match self.request.command {
            Command::Set {
                condition,
                flags,
                expires,
            } => StoreCommand {
                // A CAS in the head replaces the command's own condition.
                mode: match condition {
                    _ if self.head.cas != 0 => Mode::Cas,
                    Condition::None => Mode::Set,
                    Condition::Absent => Mode::Add,
                    Condition::Present => Mode::Replace,
                },
                flags,
                expires: moment.expiry(i64::from(expires)),
                ..self.storing(shared)
            },
            Command::Join { is_prepend: true } => StoreCommand {
                mode: Mode::Prepend,
                ..self.storing(shared)
            },
            _ => StoreCommand {
                mode: Mode::Append,
                ..self.storing(shared)
            },
        };
        let refused = match storing.mode {
            Mode::Add => Status::Exists,
            Mode::Replace => Status::NotFound,
            _ => Status::NotStored,
        };
        let status = match text::store(shared, moment, &storing, sent) {
            StoreResult::Yes(cas, _) => return self.done_with_cas(cas, out),
            StoreResult::Exists => Status::Exists,
            StoreResult::Missing => Status::NotFound,
            StoreResult::No => refused,
            StoreResult::TooLarge => Status::TooLarge,
            StoreResult::NoMemory => Status::OutOfMemory,
        };
        self.fail(status, out);
    }
}

/// Writes a success response with a value.
fn success(head: &Head, value: &[u8], out: &mut Output) {
    let lengths = Lengths {
        value: value.len(),
        ..Lengths::default()
    };
    out.text(&head.response(Status::Done, lengths, 0));
    out.text(value);
}

/// Writes an error response. Quiet commands have it, too.
fn fail(head: &Head, status: Status, out: &mut Output) {
    let text = status.text();
    let lengths = Lengths {
        value: text.len(),
        ..Lengths::default()
    };
    out.text(&head.response(status, lengths, 0));
    out.text(text.as_bytes());
}

#[cfg(test)]
mod tests;
