//! WINDOW_UPDATE: credit from the peer (RFC 9113, section 6.9), for the client and the server side.

use super::error::Violation;
use super::frame::{FrameHead, STREAM_MAX};
use super::settings::WINDOW_MAX;

/// Reads the payload of a WINDOW_UPDATE: the increment in bytes.
pub(super) fn increment(head: FrameHead, payload: &[u8]) -> Result<u32, Violation> {
    match <[u8; 4]>::try_from(payload) {
        Ok(bytes) => Ok(u32::from_be_bytes(bytes) & STREAM_MAX),
        Err(_) => Err(Violation::Length("WINDOW_UPDATE", head.length)),
    }
}

/// The window plus the increment; `None` if it exceeds the maximum.
pub(super) fn widened(window: i64, increment: u32) -> Option<i64> {
    let window = window + i64::from(increment);
    (window <= i64::from(WINDOW_MAX)).then_some(window)
}

/// The connection's window plus the increment.
pub(super) fn widened_of_connection(window: i64, increment: u32) -> Result<i64, Violation> {
    if increment == 0 {
        return Err(Violation::NoIncrement);
    }
    widened(window, increment).ok_or_else(|| {
        let before = u32::try_from(window).unwrap_or_default();
        Violation::WindowOverflow(increment, before)
    })
}
