//! What the configurations of a run have held.

use std::collections::BTreeMap;

use crate::configuration::{Configuration, Family, Table};

/// How often each directive should come in an hour.
const ENOUGH: usize = 200;
/// Directives that are named as the rarest at most.
const RAREST: usize = 40;

/// Counts over all seeds of a run.
#[derive(Default)]
pub(crate) struct Coverage {
    seeds: usize,
    requests: usize,
    /// Seeds that the reference refuses.
    refused: usize,
    /// How many configurations have each directive.
    directives: BTreeMap<String, usize>,
    /// How many bring two families together in a location.
    pairs: BTreeMap<(Family, Family), usize>,
}

impl Coverage {
    /// Counts a configuration with so many requests.
    pub(crate) fn add(&mut self, configuration: &Configuration, requests: usize) {
        self.seeds += 1;
        self.requests += requests;
        // The engine is written for each program when it starts.
        let engine = std::iter::once(String::from("use"));
        for name in configuration.directives().into_keys().chain(engine) {
            *self.directives.entry(name).or_default() += 1;
        }
        for pair in configuration.pairs() {
            *self.pairs.entry(pair).or_default() += 1;
        }
    }

    /// Counts a configuration that nginx does not take.
    pub(crate) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// Whether the reference takes enough of them for anything to be said: else values of a
    /// directive are drawn that are none.
    pub(crate) fn is_enough(&self) -> bool {
        self.refused <= self.seeds / 4
    }

    /// The counts in words, for so many programs beside the reference.
    pub(crate) fn told(&self, table: &Table, subjects: usize, seconds: f64) -> String {
        let count_of = |name: &str| self.directives.get(name).copied().unwrap_or(0);
        let mut counts: Vec<(usize, &str)> =
            table.names().map(|name| (count_of(name), name)).collect();
        counts.sort_unstable();
        let rare = counts.iter().filter(|(count, _)| *count < ENOUGH).count();
        let rarest = counts
            .iter()
            .take(rare.min(RAREST))
            .map(|(count, name)| format!("{name} {count}"));
        let pair = self.pairs.iter().min_by_key(|(_, count)| **count);
        let missing: Vec<_> = Family::pairs()
            .into_iter()
            .filter(|pair| !self.pairs.contains_key(pair))
            .collect();
        format!(
            "{} configurations ({} refused by the reference), {} requests to each of {} programs in {seconds:.0} s, {:.0} a second\n\
             {} directives, {rare} of them less than {ENOUGH} times: {}\n\
             {} of {} pairs of families, the rarest: {pair:?}, never: {missing:?}",
            self.seeds,
            self.refused,
            self.requests,
            subjects + 1,
            self.requests as f64 / seconds,
            counts.len(),
            rarest.collect::<Vec<_>>().join(", "),
            self.pairs.len(),
            Family::pairs().len(),
        )
    }
}
