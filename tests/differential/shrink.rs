//! Makes what shows a difference as small as it gets: fewer conversations, fewer requests, fewer
//! fields, then fewer lines of the configuration.

use std::time::{Duration, Instant};

use crate::client::{QUIET_TIME, QUIET_TIME_SURE};
use crate::compare::{self, Difference, Part};
use crate::configuration::Configuration;
use crate::differences;
use crate::program::Program;
use crate::requests::Conversation;
use crate::run::{Lane, Seen, Transcript, run};

/// How long one difference is made smaller.
const TIME_MAX: Duration = Duration::from_secs(40);
/// How often a difference must come again, and the reference agree with itself, before it is told.
const REPEATS: usize = 3;

/// Two programs in a lane.
pub(crate) struct Pair<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) reference: &'a Program,
    pub(crate) subject: &'a Program,
    pub(crate) extra: &'a [(&'static str, Vec<u8>)],
}

/// A difference with what shows it.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) configuration: Configuration,
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) difference: Difference,
    /// What the reference and the subject have answered in the difference's conversation.
    pub(crate) seen: (Seen, Seen),
}

impl Pair<'_> {
    fn run(
        &self,
        program: &Program,
        configuration: &Configuration,
        conversations: &[Conversation],
        quiet: Duration,
    ) -> Transcript {
        let text = configuration.text(program.engine());
        run(self.lane, program, &text, self.extra, conversations, quiet)
    }

    /// The difference of the same kind that is still there.
    fn shows(
        &self,
        configuration: &Configuration,
        conversations: &[Conversation],
        wanted: &Difference,
        quiet: Duration,
    ) -> Option<(Difference, (Seen, Seen))> {
        let reference = self.run(self.reference, configuration, conversations, quiet);
        // What nginx refuses is no configuration.
        if !reference.alarms.is_empty() && wanted.part != Part::Alarm {
            return None;
        }
        let subject = self.run(self.subject, configuration, conversations, quiet);
        let found = compare::differences(&reference, &subject);
        let version = self.reference.version();
        let text = configuration.text(None);
        let both = (&reference, &subject);
        let (found, _) = differences::judge(version, &text, conversations, both, found);
        let difference = found
            .into_iter()
            .find(|difference| difference.kind() == wanted.kind())?;
        let seen = |transcript: &Transcript| {
            let index = difference.conversation;
            let seen = index.and_then(|index| transcript.conversations.get(index));
            seen.cloned().unwrap_or_default()
        };
        let seen = (seen(&reference), seen(&subject));
        Some((difference, seen))
    }

    /// The smallest that shows it still; nothing where it does not come again.
    pub(crate) fn shrink(
        &self,
        configuration: &Configuration,
        conversations: &[Conversation],
        wanted: &Difference,
    ) -> Option<Finding> {
        let end = Instant::now() + TIME_MAX;
        let mut least = self.fewer_conversations(configuration, conversations, wanted, end)?;
        if !self.is_settled(&least) {
            return None;
        }
        self.fewer_lines(&mut least, end);
        self.smaller_requests(&mut least, end);
        self.fewer_lines(&mut least, end);
        self.is_settled(&least).then_some(least)
    }

    /// Whether it comes each time and the reference always answers so: a difference between two of
    /// its own runs is chance.
    fn is_settled(&self, least: &Finding) -> bool {
        let comes = || {
            self.shows(
                &least.configuration,
                &least.conversations,
                &least.difference,
                QUIET_TIME_SURE,
            )
        };
        if !(0..REPEATS).all(|_| comes().is_some()) {
            return false;
        }
        let run = || {
            self.run(
                self.reference,
                &least.configuration,
                &least.conversations,
                QUIET_TIME_SURE,
            )
        };
        let first = run();
        let wavers = |again| {
            let found = compare::differences(&first, &again);
            let same = |difference: &Difference| difference.kind() == least.difference.kind();
            found.iter().any(same)
        };
        !(0..REPEATS).any(|_| wavers(run()))
    }

    fn attempt(
        &self,
        least: &mut Finding,
        configuration: &Configuration,
        conversations: &[Conversation],
    ) -> bool {
        let shown = self.shows(configuration, conversations, &least.difference, QUIET_TIME);
        let Some((difference, seen)) = shown else {
            return false;
        };
        *least = Finding {
            seen,
            configuration: configuration.clone(),
            conversations: conversations.to_vec(),
            difference,
        };
        true
    }

    fn fewer_conversations(
        &self,
        configuration: &Configuration,
        conversations: &[Conversation],
        wanted: &Difference,
        end: Instant,
    ) -> Option<Finding> {
        let last = wanted
            .conversation
            .unwrap_or(conversations.len().saturating_sub(1));
        let upto = &conversations[..(last + 1).min(conversations.len())];
        let one = &upto[upto.len().saturating_sub(1)..];
        let mut least = Finding {
            configuration: configuration.clone(),
            conversations: upto.to_vec(),
            difference: wanted.clone(),
            seen: Default::default(),
        };
        if self.attempt(&mut least, configuration, one) {
            return Some(least);
        }
        if !self.attempt(&mut least, configuration, upto) {
            return None;
        }
        let mut step = least.conversations.len() / 2;
        while step > 0 && Instant::now() < end {
            let mut at = 0;
            while at < least.conversations.len() && Instant::now() < end {
                let mut fewer = least.conversations.clone();
                fewer.drain(at..(at + step).min(fewer.len()));
                if fewer.is_empty() || !self.attempt(&mut least, configuration, &fewer) {
                    at += step;
                }
            }
            step /= 2;
        }
        Some(least)
    }

    /// Goes on from the candidate that was taken: those before it, which leave out more, have
    /// failed with more around.
    fn fewer_lines(&self, least: &mut Finding, end: Instant) {
        let mut from = 0.0;
        loop {
            let conversations = least.conversations.clone();
            let whole = least.configuration.clone();
            let cuts = whole.cuts();
            let count = cuts.len();
            let first = (from * count as f64) as usize;
            let taken = (first..count)
                .take_while(|_| Instant::now() < end)
                .find(|index| {
                    let smaller = whole.cut(&cuts[*index]);
                    smaller.is_some_and(|smaller| self.attempt(least, &smaller, &conversations))
                });
            from = match taken {
                Some(index) => index as f64 / count as f64,
                None if first == 0 || Instant::now() >= end => break,
                None => 0.0,
            };
        }
    }

    fn smaller_requests(&self, least: &mut Finding, end: Instant) {
        while Instant::now() < end {
            let configuration = least.configuration.clone();
            let candidates =
                least
                    .conversations
                    .iter()
                    .enumerate()
                    .flat_map(|(index, conversation)| {
                        let others = least.conversations.clone();
                        let with = move |smaller| {
                            let mut all = others.clone();
                            all[index] = smaller;
                            all
                        };
                        smaller(conversation).into_iter().map(with)
                    });
            let candidates: Vec<Vec<Conversation>> = candidates.collect();
            let taken = candidates
                .iter()
                .take_while(|_| Instant::now() < end)
                .any(|fewer| self.attempt(least, &configuration, fewer));
            if !taken {
                break;
            }
        }
    }
}

/// Candidates for a smaller conversation.
fn smaller(conversation: &Conversation) -> Vec<Conversation> {
    let mut all = Vec::new();
    let with = |change: &dyn Fn(&mut Conversation)| {
        let mut smaller = conversation.clone();
        change(&mut smaller);
        smaller
    };
    for index in 0..conversation.exchanges.len() {
        if conversation.exchanges.len() > 1 {
            all.push(with(&|one| drop(one.exchanges.remove(index))));
        }
    }
    if conversation.pipelined {
        all.push(with(&|one| one.pipelined = false));
    }
    if conversation.identity.is_some() {
        all.push(with(&|one| one.identity = None));
    }
    if conversation.shuts {
        all.push(with(&|one| one.shuts = false));
    }
    for (index, exchange) in conversation.exchanges.iter().enumerate() {
        if exchange.segments.len() > 1 {
            all.push(with(&|one| {
                one.exchanges[index].segments = vec![exchange.segments.concat()]
            }));
        }
        let Some(first) = exchange.segments.first() else {
            continue;
        };
        let Some(end) = crate::upstream::find(first, b"\r\n\r\n") else {
            continue;
        };
        let lines: Vec<&[u8]> = first[..end]
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .collect();
        let whole = |lines: &[Vec<u8>]| [lines.join(&b"\r\n"[..]), first[end..].to_vec()].concat();
        let owned: Vec<Vec<u8>> = lines.iter().map(|line| line.to_vec()).collect();
        for number in 1..owned.len() {
            let mut fewer = owned.clone();
            let line = fewer.remove(number);
            if !line.starts_with(b"Host:") {
                all.push(with(&|one| {
                    one.exchanges[index].segments[0] = whole(&fewer)
                }));
            }
            // The words for the upstream, one by one.
            if line.starts_with(b"X-Answer: ") {
                let text = String::from_utf8_lossy(&line[10..]).into_owned();
                let words: Vec<&str> = text.split(',').collect();
                for word in 0..words.len() {
                    let mut fewer_words = words.clone();
                    fewer_words.remove(word);
                    let mut changed = owned.clone();
                    changed[number] = format!("X-Answer: {}", fewer_words.join(",")).into_bytes();
                    if words.len() > 1 {
                        all.push(with(&|one| {
                            one.exchanges[index].segments[0] = whole(&changed)
                        }));
                    }
                }
            }
        }
    }
    all
}
