//! SETTINGS of both ends (RFC 9113, section 6.5.2; RFC 8441; RFC 9218).

use super::error::Violation;
use super::frame::{FRAME_SIZE_MAX_DEFAULT, SIZE_MAX};

/// Identifier of SETTINGS_HEADER_TABLE_SIZE (RFC 9113, section 6.5.2).
pub const HEADER_TABLE_SIZE: u16 = 1;
/// Identifier of SETTINGS_ENABLE_PUSH (RFC 9113, section 6.5.2).
pub const ENABLE_PUSH: u16 = 2;
/// Identifier of SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, section 6.5.2).
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// Identifier of SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, section 6.5.2).
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// Identifier of SETTINGS_MAX_FRAME_SIZE (RFC 9113, section 6.5.2).
pub const MAX_FRAME_SIZE: u16 = 5;
/// Identifier of SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113, section 6.5.2).
pub const MAX_HEADER_LIST_SIZE: u16 = 6;
/// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441, section 3)
pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// SETTINGS_NO_RFC7540_PRIORITIES (RFC 9218, section 2.1)
pub const NO_RFC7540_PRIORITIES: u16 = 9;

/// Maximum flow-control window, in bytes.
pub const WINDOW_MAX: u32 = (1 << 31) - 1;

/// Initial window of the connection and, by default, of every stream, in bytes.
pub const INITIAL_WINDOW_SIZE_DEFAULT: u32 = 65_535;

/// Initial size of the HPACK dynamic tables, in bytes.
pub const TABLE_SIZE_AT_FIRST: u32 = 4096;

/// The peer's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum size of the dynamic table for header blocks that we send, in bytes.
    pub header_table_size: u32,
    /// Limit of concurrent streams that we may open.
    pub streams_max: u32,
    /// Initial send window of each stream, in bytes.
    pub initial_window: u32,
    /// Maximum payload of a frame that we may send, in bytes.
    pub frame_size_max: u32,
    /// Maximum size of a header list that the peer accepts (RFC 9113, section 6.5.2), if announced.
    pub header_list_max: Option<u32>,
    /// Whether extended CONNECT is allowed (RFC 8441).
    pub connect_protocol: bool,
}

impl Default for Settings {
    /// The values that apply until the peer sends SETTINGS.
    fn default() -> Settings {
        Settings {
            header_table_size: TABLE_SIZE_AT_FIRST,
            streams_max: u32::MAX,
            initial_window: INITIAL_WINDOW_SIZE_DEFAULT,
            frame_size_max: FRAME_SIZE_MAX_DEFAULT,
            header_list_max: None,
            connect_protocol: false,
        }
    }
}

impl Settings {
    /// Applies one setting. Unknown settings are ignored.
    ///
    /// # Errors
    /// The value is not allowed.
    pub fn set(&mut self, name: u16, value: u32) -> Result<(), Violation> {
        match name {
            HEADER_TABLE_SIZE => self.header_table_size = value,
            ENABLE_PUSH if value > 1 => return Err(Violation::Setting("ENABLE_PUSH", value)),
            MAX_CONCURRENT_STREAMS => self.streams_max = value,
            INITIAL_WINDOW_SIZE if value > WINDOW_MAX => {
                return Err(Violation::Setting("INITIAL_WINDOW_SIZE", value));
            }
            INITIAL_WINDOW_SIZE => self.initial_window = value,
            MAX_FRAME_SIZE if !(FRAME_SIZE_MAX_DEFAULT..=SIZE_MAX).contains(&value) => {
                return Err(Violation::Setting("MAX_FRAME_SIZE", value));
            }
            MAX_FRAME_SIZE => self.frame_size_max = value,
            MAX_HEADER_LIST_SIZE => self.header_list_max = Some(value),
            ENABLE_CONNECT_PROTOCOL if value > 1 => {
                return Err(Violation::Setting("ENABLE_CONNECT_PROTOCOL", value));
            }
            ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
            NO_RFC7540_PRIORITIES if value > 1 => {
                return Err(Violation::Setting("NO_RFC7540_PRIORITIES", value));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_bounds_of_the_rfc() {
        let mut settings = Settings::default();
        for (name, good, bad) in [
            (ENABLE_PUSH, 1, 2),
            (INITIAL_WINDOW_SIZE, (1 << 31) - 1, 1 << 31),
            (MAX_FRAME_SIZE, 16_384, 16_383),
            (MAX_FRAME_SIZE, 16_777_215, 16_777_216),
            (ENABLE_CONNECT_PROTOCOL, 1, 2),
            (NO_RFC7540_PRIORITIES, 0, 2),
        ] {
            assert_eq!(settings.set(name, good), Ok(()));
            assert!(settings.set(name, bad).is_err(), "{name}");
        }
        assert_eq!(settings.frame_size_max, 16_777_215);
        assert_eq!(settings.initial_window, WINDOW_MAX);
        assert!(settings.connect_protocol);
        assert_eq!(settings.header_list_max, None);
        assert_eq!(settings.set(MAX_HEADER_LIST_SIZE, 0), Ok(()));
        assert_eq!(settings.header_list_max, Some(0));
        assert_eq!(settings.set(0xfff, u32::MAX), Ok(()));
    }
}
