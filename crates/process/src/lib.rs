//! Master, bundle, worker process, signals.
