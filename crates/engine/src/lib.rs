//! The event loop of a worker: epoll, io_uring and simulation behind one interface.
