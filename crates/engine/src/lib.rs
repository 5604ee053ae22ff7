//! The event loop of a worker: one thread, one [`Runtime`], one engine (epoll, io_uring, AF_XDP
//! with our own TCP stack, or a simulation).
//!
//! Read in this order: [`Engine`] is the narrow interface that `epoll.rs`, `uring`, `xdp` and `sim`
//! implement; `worker.rs` holds the state of a thread (streams, listeners, timers) and turns
//! completions into wake-ups; `runtime.rs` runs the loop and `task.rs` polls the tasks; `spares.rs`
//! recycles memory, and `memory.rs` returns it to the allocator after a busy time; [`net`],
//! [`file`](mod@file), [`sleep`] and [`blocking`] are the interface for other crates.
//!
//! Nothing here is `Send` unless its documentation says so: a connection stays on the thread that
//! accepted it. User code (futures, wakers, destructors of sent segments) never runs while the
//! thread's state is borrowed, so it may call anything here.
//!
//! Not here: protocols, TLS, configuration.

mod alarm;
mod blocking;
mod budget;
mod buffer;
mod carried;
mod choose;
mod clock;
mod engine;
mod epoll;
mod event;
pub mod file;
mod frames;
pub mod kernel_tls;
mod memory;
mod messages;
pub mod net;
mod notifier;
mod pipe;
mod pooled_future;
mod pulse;
mod remote;
mod reserve;
mod runtime;
pub mod select;
mod settings;
mod signal;
pub mod sim;
mod sleep;
mod spares;
mod sys;
mod task;
mod uring;
mod worker;
pub mod xdp;

pub use alarm::Alarm;
pub use blocking::{
    ExitBlocker, background, blocking, blocking_long, finish_background,
    shorten_background_deadlines, unhurried,
};
pub use buffer::Buffer;
pub use choose::{EngineKind, choose};
pub use clock::{Deadline, moment, now, uptime, wall};
pub use engine::{
    Completion, Control, Engine, Op, OpKind, OperationOutcome, Outgoing, SendStop, Token,
};
pub use event::Event;
pub use frames::{Frame, Frames};
pub use memory::{note_freed, on_idle, trim_now};
pub use notifier::Notifier;
pub use pipe::Pipe;
pub use pooled_future::PooledFuture;
pub use pulse::Pulse;
pub use remote::Remote;
pub use runtime::{Runtime, has_runtime, on_turn_end, remote};
pub use settings::Settings;
pub use signal::Signal;
pub use sleep::{Sleep, sleep, sleep_until};
pub use spares::{Spares, recycle_bytes, share_bytes, spare_bytes};
pub use sys::process_time;
pub use task::{spawn, yield_now};
