//! Resources that only one worker process can have, such as a receive queue of a network card:
//! opened for a worker once it serves; the master keeps none of the descriptors.
//!
//! ```text
//!   a worker serves              ─▶ open the devices, send Devices
//!   it reports HasDevices        ─▶ follow: apply the configuration to the devices
//!   it is to end or be replaced  ─▶ release: direct new connections away from the devices
//!   it has ended                 ─▶ its devices are closed: open them for the serving worker
//! ```

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Master;
use super::child::Role;
use crate::application::{Device, DeviceError, OpenDevice};
use crate::bundle;
use crate::control::Command;
use crate::log::{Level, Log};

/// Interval between attempts to open a device that another program has.
const RETRY: Duration = Duration::from_secs(5);

/// The master's state of the devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// The worker that has the devices, even if it is about to end.
    owner: Option<u64>,
    /// Time of the next attempt to open devices that another program has.
    pub(super) retry_at: Option<Instant>,
    /// The last message about a device that could not be opened, which is not repeated.
    last_error: Option<String>,
}

impl Devices {
    /// Whether this worker has the devices.
    pub(super) fn is_owner(&self, id: u64) -> bool {
        self.owner == Some(id)
    }
}

impl Master {
    /// Gives the devices to a worker that serves with the generation in force, or updates those
    /// that it has.
    pub(super) fn hand_over_devices(&mut self, id: u64) {
        if self.devices.owner == Some(id) {
            let opened = self.open_devices(|device| (device.open_more)());
            self.hand_devices(id, opened);
            return self.follow_devices();
        }
        if self.devices.owner.is_some() || self.stop.is_some() {
            // The worker gets the devices when their current owner has ended.
            return;
        }
        let opened = self.open_devices(|device| (device.open)());
        self.devices.retry_at = opened.is_passing.then(|| Instant::now() + RETRY);
        if self.hand_devices(id, opened) {
            self.devices.owner = Some(id);
        }
    }

    /// Sends opened devices to a worker. Returns whether there are any, and the worker exists.
    fn hand_devices(&mut self, id: u64, opened: Opened) -> bool {
        if opened.descriptors.is_empty() {
            return false;
        }
        let keys = opened.descriptors.iter().map(|(key, _)| key.clone());
        let keys: Vec<String> = keys.collect();
        let keys = match bundle::seal(&bundle::encode_keys(&keys)) {
            Ok(keys) => Rc::new(keys),
            Err(error) => {
                let text = crate::log::failure("memfd_create() failed", &error);
                self.log.write(Level::Alert, text);
                return false;
            }
        };
        let descriptors = opened
            .descriptors
            .into_iter()
            .map(|(_, open)| Rc::new(open));
        let descriptors = descriptors.collect();
        let Some(child) = self.child_mut(id) else {
            return false;
        };
        child.send(Command::Devices { keys, descriptors });
        true
    }

    /// Records that the worker uses the devices.
    pub(super) fn devices_are_used(&mut self, id: u64) {
        if self.devices.owner == Some(id) {
            self.follow_devices();
        }
    }

    /// Directs new connections away from the devices, because their worker is about to end or to be
    /// replaced.
    pub(super) fn release_devices(&self) {
        if self.devices.owner.is_some() {
            for device in &self.generation.needs.devices {
                (device.release)();
            }
        }
    }

    /// Gives the devices of a worker that has ended to the serving one.
    pub(super) fn devices_are_free(&mut self, id: u64) {
        if self.devices.owner.take_if(|owner| *owner == id).is_some() {
            self.retry_devices();
        }
    }

    /// Tries again to open devices that another program may have released.
    pub(super) fn retry_devices(&mut self) {
        self.devices.retry_at = None;
        let mut children = self.children.iter();
        let serving = children.find(|child| child.role == Role::Serving);
        if let Some(id) = serving.map(|child| child.id) {
            self.hand_over_devices(id);
        }
    }

    fn follow_devices(&self) {
        for device in &self.generation.needs.devices {
            for (level, text) in (device.follow)() {
                self.log.write(level, text);
            }
        }
    }

    /// Opens all devices with `open`, and logs its messages.
    fn open_devices(
        &mut self,
        open: impl Fn(&Device) -> Result<OpenDevice, DeviceError>,
    ) -> Opened {
        let mut opened = Opened::default();
        let mut last_error = Vec::new();
        for device in &self.generation.needs.devices {
            match open(device) {
                Ok(open) => {
                    for (level, text) in open.notes {
                        self.log.write(level, text);
                    }
                    opened.descriptors.extend(open.descriptors);
                }
                Err(error) => {
                    opened.is_passing |= error.is_passing;
                    last_error.push(error.text);
                }
            }
        }
        let text = (!last_error.is_empty()).then(|| last_error.join("; "));
        if text != self.devices.last_error {
            for text in &last_error {
                self.log.write(Level::Warn, text);
            }
            self.devices.last_error = text;
        }
        opened
    }
}

/// The result of opening devices for a worker.
#[derive(Default)]
struct Opened {
    descriptors: Vec<(String, OwnedFd)>,
    /// Whether devices that could not be opened may be available later.
    is_passing: bool,
}

/// Whether a server may start although some devices cannot be opened; if not, the log says why.
/// Opened devices are closed again, since they are opened for the worker later. A server that takes
/// over from another (`follows`) waits for that server's devices.
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
