//! The states of a group's peers, which are kept over reloads.

use std::sync::Arc;

use framework::handover::{StateReader, StateWriter, Unfit};
use framework::zone::{State as ZoneState, Zone, ZoneFact, ZoneFactSink};

use crate::handover;
use crate::roster::Roster;

/// The zone by which a reload finds the states of a group's peers. Each group has such a zone, even
/// without `zone` in the configuration. The zone itself has no state: its settings are the group's
/// [`Roster`], and the roster adopts the states from the previous roster.
#[derive(Debug)]
pub struct Remembered;

impl ZoneState for Remembered {
    const KIND: &'static str = "upstream";

    type Settings = Arc<Roster>;

    fn new(_: u64) -> Remembered {
        Remembered
    }

    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        zone.settings().adopt(previous.settings());
        Ok(Arc::new(Remembered))
    }

    const SAVED_VERSION: Option<u64> = Some(2);

    fn save(&self, roster: &Arc<Roster>, out: &mut StateWriter) {
        handover::save(roster, out);
    }

    fn restore(&self, roster: &Arc<Roster>, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let before = handover::read(roster, saved)?;
        roster.adopt(&before);
        Ok(())
    }

    fn describe(&self, roster: &Arc<Roster>, tell: &mut ZoneFactSink<'_>) {
        let peers = roster.peers();
        let count = |of: &dyn Fn(&crate::Peer) -> u64| peers.iter().map(of).sum();
        tell("peers", ZoneFact::Number(count(&|_| 1)));
        tell(
            "connections",
            ZoneFact::Number(count(&|peer| peer.state().connections() as u64)),
        );
        tell(
            "requests",
            ZoneFact::Number(count(&|peer| peer.state().requests())),
        );
        tell(
            "failures",
            ZoneFact::Number(count(&|peer| peer.state().failures())),
        );
    }
}
