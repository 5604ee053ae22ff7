//! The HTTP server: listen, request loop, filters, modules.
