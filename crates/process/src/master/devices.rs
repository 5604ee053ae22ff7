//! What one worker process alone can have, such as a receive queue of a network card: opened for it
//! once it serves; the master keeps none of the descriptors.
//!
//! ```text
//!   worker serves ─▶ open, Devices ─▶ worker: HasDevices ─▶ follow: it is used
//!   worker is to end, or another is to serve ─▶ release: what is new goes elsewhere
//!   worker has ended: the kernel has closed all of it ─▶ open for the one that serves
//! ```

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Master;
use super::child::Role;
use crate::application::{Device, DeviceError};
use crate::bundle;
use crate::control::Command;
use crate::log::{Level, Log};

/// How long a device that another program has is left alone.
const RETRY: Duration = Duration::from_secs(5);

/// What the master remembers of devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// The worker that has them, or is about to end with them.
    owner: Option<u64>,
    /// When those that another program has are tried again.
    pub(super) retry_at: Option<Instant>,
    /// What was said last about one that could not be opened, which is not said again.
    said: Option<String>,
}

impl Devices {
    /// Whether this worker has them.
    pub(super) fn is_owner(&self, id: u64) -> bool {
        self.owner == Some(id)
    }
}

impl Master {
    /// A worker serves by the generation in force: it gets its devices, or goes on with them.
    pub(super) fn give_devices(&mut self, id: u64) {
        if self.devices.owner == Some(id) {
            return self.follow_devices();
        }
        if self.devices.owner.is_some() || self.stop.is_some() {
            // They come when the worker that has them has ended.
            return;
        }
        let opened = self.open_devices();
        self.devices.retry_at = opened.is_passing.then(|| Instant::now() + RETRY);
        if opened.descriptors.is_empty() {
            return;
        }
        let keys = opened.descriptors.iter().map(|(key, _)| key.clone());
        let keys: Vec<String> = keys.collect();
        let keys = match bundle::seal(&bundle::encode_keys(&keys)) {
            Ok(keys) => Rc::new(keys),
            Err(error) => {
                let text = crate::log::failure("memfd_create() failed", &error);
                return self.log.write(Level::Alert, text);
            }
        };
        let descriptors = opened
            .descriptors
            .into_iter()
            .map(|(_, open)| Rc::new(open));
        let descriptors = descriptors.collect();
        if let Some(child) = self.child_mut(id) {
            child.send(Command::Devices { keys, descriptors });
            self.devices.owner = Some(id);
        }
    }

    /// The worker uses them.
    pub(super) fn devices_are_used(&mut self, id: u64) {
        if self.devices.owner == Some(id) {
            self.follow_devices();
        }
    }

    /// What is new is to go elsewhere: the worker that has them is about to end, or to be replaced.
    pub(super) fn release_devices(&self) {
        if self.devices.owner.is_some() {
            for device in &self.generation.needs.devices {
                (device.release)();
            }
        }
    }

    /// The worker has ended: the one that serves gets what it had.
    pub(super) fn devices_are_free(&mut self, id: u64) {
        if self.devices.owner.take_if(|owner| *owner == id).is_some() {
            self.give_devices_again();
        }
    }

    /// Another program may have let go of them.
    pub(super) fn give_devices_again(&mut self) {
        self.devices.retry_at = None;
        let mut children = self.children.iter();
        let serving = children.find(|child| child.role == Role::Serving);
        if let Some(id) = serving.map(|child| child.id) {
            self.give_devices(id);
        }
    }

    fn follow_devices(&self) {
        for device in &self.generation.needs.devices {
            for (level, text) in (device.follow)() {
                self.log.write(level, text);
            }
        }
    }

    fn open_devices(&mut self) -> Opened {
        let mut opened = Opened::default();
        let mut said = Vec::new();
        for device in &self.generation.needs.devices {
            match (device.open)() {
                Ok(open) => {
                    for (level, text) in open.notes {
                        self.log.write(level, text);
                    }
                    opened.descriptors.extend(open.descriptors);
                }
                Err(error) => {
                    opened.is_passing |= error.is_passing;
                    said.push(error.text);
                }
            }
        }
        let text = (!said.is_empty()).then(|| said.join("; "));
        if text != self.devices.said {
            for text in &said {
                self.log.write(Level::Warn, text);
            }
            self.devices.said = text;
        }
        opened
    }
}

/// What was opened for a worker.
#[derive(Default)]
struct Opened {
    descriptors: Vec<(String, OwnedFd)>,
    /// What could not be opened may be in a while.
    is_passing: bool,
}

/// Whether a server may start although it cannot open all that it needs; if not, the log says why.
/// What can be opened is closed again: it is opened for the worker. A server that takes the place
/// of another (`follows`) waits for what that one has.
pub(crate) fn check(devices: &[Device], follows: bool, log: &Log) -> bool {
    let required = devices.iter().filter(|device| device.is_required);
    let refused = required.filter_map(|device| (device.open)().err());
    let refused = refused.filter(|error| !(follows && error.is_passing));
    let refused: Vec<DeviceError> = refused.collect();
    for error in &refused {
        log.write(Level::Emerg, &error.text);
    }
    refused.is_empty()
}
