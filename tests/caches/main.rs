//! Caches of responses: `proxy_cache` and its family, and `tidegate accelerate`.

mod accelerate;
mod cache;
