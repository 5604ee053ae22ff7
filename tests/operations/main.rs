//! What an operator meets: signals, reloads, upgrades, logs, metrics, limits, confinement.

mod confinement;
mod generations;
mod live_api;
mod log_places;
mod metrics;
mod overload;
mod service_manager;
mod signals;
mod tracing;
mod upgrade;
mod zones;
