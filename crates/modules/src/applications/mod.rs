//! What the modules share that ask applications by protocols made from the Common Gateway Interface: FastCGI, uwsgi and SCGI.
//!
//! A request is told in `params`. Answers that have no frames, those of uwsgi and SCGI, are asked for in `unframed`. Servers are chosen and
//! tried, answers buffered and made the response as those of `proxy_pass` are (`proxy`).

pub(crate) mod params;
pub(crate) mod unframed;
