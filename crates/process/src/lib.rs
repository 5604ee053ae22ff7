//! Master, bundle, worker process and signals: how Tidegate starts, reloads and ends.
//!
//! Read in order: [`application`] (the interface that a program implements), `start` (one run of
//! the command), `master` (the loop that owns listeners, logs and the worker process), [`worker`]
//! (the worker's side). Between the two are [`bundle`], everything that a worker compiles from, and
//! `control`, the socket that carries it.
//!
//! This crate knows no directive and no protocol: what a configuration needs comes from the
//! [`Application`]; so does what a worker process is confined to ([`confinement`]).

pub mod application;
pub mod bundle;
pub mod companion;
pub mod confinement;
mod control;
mod daemon;
mod descriptors;
mod directories;
mod environment;
pub mod identity;
mod inherited;
mod interrupt;
pub mod log;
mod master;
mod occupant;
pub mod options;
mod pid_file;
mod predecessor;
pub mod probe;
pub mod programs;
mod reply;
mod running;
mod service_manager;
mod signals;
pub mod single;
mod start;
mod state;
mod title;
pub mod worker;

pub use application::{
    Application, DescriptorUpdate, Device, DeviceError, ErrorLogDestination, LogTarget,
    MasterSettings, NeedKind, NewProcessLine, OpenDevice, OpenError, RequiredDescriptor,
    RequiredResources, WorkerProcess, listener_key,
};
pub use bundle::Bundle;
pub use identity::Identity;
pub use interrupt::Interrupt;
pub use log::{Level, PROGRAM};
pub use options::{Action, ErrorLog, Options, SignalName};
pub use start::run;
pub use title::program_name;
pub use worker::{Events, is_worker, worker_main};
