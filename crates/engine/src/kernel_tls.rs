//! Kernel TLS: the kernel encrypts the data that a socket sends, so that sendfile(2) can send files
//! over TLS.
//!
//! <https://docs.kernel.org/networking/tls.html>, `linux/tls.h`. A stream is first prepared
//! ([`Stream::prepare_kernel_tls`](crate::net::Stream::prepare_kernel_tls)), which fails if the
//! kernel does not support it. Bytes are sent unencrypted until a
//! [`Segment::Keys`](crate::net::Segment::Keys) takes effect.
//!
//! Not here: handshakes, and decryption of received records, which the owner of the keys does.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

/// The name of the kernel's TLS module for `TCP_ULP`.
const ULP: &[u8] = b"tls";

/// How long a probe waits for a connection to this machine itself.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2, defined by RFC 5246.
    Tls12,
    /// TLS 1.3, defined by RFC 8446.
    Tls13,
}

impl Version {
    const ALL: [Version; 2] = [Version::Tls12, Version::Tls13];

    fn number(self) -> u16 {
        match self {
            Version::Tls12 => libc::TLS_1_2_VERSION,
            Version::Tls13 => libc::TLS_1_3_VERSION,
        }
    }
}

/// A cipher for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES in Galois/counter mode with keys of 128 bits.
    Aes128Gcm,
    /// AES in Galois/counter mode with keys of 256 bits.
    Aes256Gcm,
    /// ChaCha20-Poly1305, defined by RFC 8439.
    Chacha20Poly1305,
}

impl Cipher {
    const ALL: [Cipher; 3] = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::Chacha20Poly1305,
    ];

    fn number(self) -> u16 {
        match self {
            Cipher::Aes128Gcm => libc::TLS_CIPHER_AES_GCM_128,
            Cipher::Aes256Gcm => libc::TLS_CIPHER_AES_GCM_256,
            Cipher::Chacha20Poly1305 => libc::TLS_CIPHER_CHACHA20_POLY1305,
        }
    }

    /// Length of a key in bytes.
    fn key_length(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::Chacha20Poly1305 => 32,
        }
    }

    /// Length of the salt in bytes: the front of the nonce, which the kernel takes as a separate
    /// field.
    fn salt_length(self) -> usize {
        match self {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => 4,
            Cipher::Chacha20Poly1305 => 0,
        }
    }
}

/// Keys for encryption, in the kernel's format (`struct tls12_crypto_info_…`).
pub struct SealingKeys(Box<[u8]>);

impl SealingKeys {
    /// Keys for the records from sequence number `sequence` on; `None` if the key does not have the
    /// cipher's length.
    ///
    /// `iv` is the base of the nonces (RFC 8446 section 5.3). With [`Version::Tls12`] and AES, its
    /// last eight bytes are the first explicit nonce of a record (RFC 5288 section 3), which the
    /// kernel increments.
    #[must_use]
    pub fn new(
        version: Version,
        cipher: Cipher,
        key: &[u8],
        iv: &[u8; 12],
        sequence: u64,
    ) -> Option<SealingKeys> {
        let (salt, rest) = iv.split_at(cipher.salt_length());
        let parts = [
            &version.number().to_ne_bytes(),
            &cipher.number().to_ne_bytes(),
            rest,
            key,
            salt,
            &sequence.to_be_bytes(),
        ];
        (key.len() == cipher.key_length()).then(|| SealingKeys(parts.concat().into()))
    }
}

impl Drop for SealingKeys {
    /// Clears the keys, so that they do not remain in freed memory.
    fn drop(&mut self) {
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for SealingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKeys")
    }
}

/// The kernel's support for TLS.
#[derive(Clone, Debug, Default)]
pub struct Support {
    suites: Vec<(Version, Cipher)>,
    replaces_keys: bool,
}

impl Support {
    /// Whether the kernel encrypts with this version and cipher.
    #[must_use]
    pub fn seals(&self, version: Version, cipher: Cipher) -> bool {
        self.suites.contains(&(version, cipher))
    }

    /// Whether a socket accepts new keys after its first ones (RFC 8446 section 4.6.3), which Linux
    /// does from 6.14 on.
    #[must_use]
    pub fn replaces_keys(&self) -> bool {
        self.replaces_keys
    }
}

/// Probes the kernel by connections to this machine itself. If the process is root, this makes the
/// kernel load its TLS module.
///
/// # Errors
/// The reason, in words for the log, if the kernel has no TLS.
pub fn probe() -> Result<Support, String> {
    let unknown = |error: io::Error| format!("a connection to probe it cannot be made: {error}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(unknown)?;
    let address = listener.local_addr().map_err(unknown)?;
    let mut support = Support::default();
    for version in Version::ALL {
        for cipher in Cipher::ALL {
            let socket = TcpStream::connect_timeout(&address, PROBE_WAIT).map_err(unknown)?;
            prepare(socket.as_fd()).map_err(|error| match error.raw_os_error() {
                Some(libc::ENOENT) => {
                    "the kernel has no TLS (CONFIG_TLS), or its module \"tls\" is not loaded".into()
                }
                _ => format!("the kernel refuses: {error}"),
            })?;
            let key = vec![0; cipher.key_length()];
            let Some(keys) = SealingKeys::new(version, cipher, &key, &[0; 12], 0) else {
                continue;
            };
            if set_keys(socket.as_fd(), &keys).is_ok() {
                support.suites.push((version, cipher));
                support.replaces_keys |=
                    version == Version::Tls13 && set_keys(socket.as_fd(), &keys).is_ok();
            }
        }
    }
    if support.suites.is_empty() {
        Err("the kernel has none of the ciphers".into())
    } else {
        Ok(support)
    }
}

/// Makes a connected socket accept keys. Its traffic stays unencrypted until then.
pub(crate) fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_TCP, libc::TCP_ULP, ULP)
}

/// Encrypts everything that the socket sends from now on with these keys.
pub(crate) fn set_keys(socket: BorrowedFd<'_>, keys: &SealingKeys) -> io::Result<()> {
    set_option(socket, libc::SOL_TLS, libc::TLS_TX, &keys.0)
}

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes from a slice that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A control message with a record's content type (`TLS_SET_RECORD_TYPE`).
#[repr(C)]
struct RecordType {
    header: libc::cmsghdr,
    content_type: u8,
}

/// Sends a record with a content type other than application data: an alert, or a handshake
/// message.
pub(crate) fn send_record(
    socket: BorrowedFd<'_>,
    content_type: u8,
    bytes: &[u8],
) -> Result<usize, Errno> {
    // SAFETY: both types consist of integers and pointers, for which zeros are valid.
    let (mut control, mut message): (RecordType, libc::msghdr) = unsafe { std::mem::zeroed() };
    control.header.cmsg_level = libc::SOL_TLS;
    control.header.cmsg_type = libc::TLS_SET_RECORD_TYPE;
    control.header.cmsg_len = (offset_of!(RecordType, content_type) + 1) as _;
    control.content_type = content_type;
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<RecordType>() as _;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header points to one part and one control message of the given lengths, both of
    // which outlive the call; the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| {
        let error = io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IV: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    fn bytes(cipher: Cipher, key: &[u8]) -> Vec<u8> {
        let keys = SealingKeys::new(Version::Tls13, cipher, key, &IV, 0x0102_0304_0506_0708);
        keys.unwrap().0.to_vec()
    }

    /// The offsets of the fields in the kernel's structure for a cipher, and its size.
    macro_rules! layout {
        ($structure:ident) => {{
            use libc::$structure as Info;
            let places = [
                offset_of!(Info, info.version),
                offset_of!(Info, info.cipher_type),
                offset_of!(Info, iv),
                offset_of!(Info, key),
                offset_of!(Info, salt),
                offset_of!(Info, rec_seq),
            ];
            (places, size_of::<Info>())
        }};
    }

    fn check(
        bytes: &[u8],
        (places, length): ([usize; 6], usize),
        number: u16,
        key: &[u8],
        salt: usize,
    ) {
        assert_eq!(bytes.len(), length);
        let [version, cipher, iv, key_place, salt_place, sequence] = places;
        assert_eq!(bytes[version..][..2], 0x0304_u16.to_ne_bytes());
        assert_eq!(bytes[cipher..][..2], number.to_ne_bytes());
        assert_eq!(bytes[iv..key_place], IV[salt..]);
        assert_eq!(&bytes[key_place..salt_place], key);
        assert_eq!(bytes[salt_place..sequence], IV[..salt]);
        assert_eq!(bytes[sequence..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn keys_lie_as_the_header_of_the_kernel_has_them() {
        let layout = layout!(tls12_crypto_info_aes_gcm_128);
        check(&bytes(Cipher::Aes128Gcm, &[7; 16]), layout, 51, &[7; 16], 4);
        let layout = layout!(tls12_crypto_info_aes_gcm_256);
        check(&bytes(Cipher::Aes256Gcm, &[7; 32]), layout, 52, &[7; 32], 4);
        let layout = layout!(tls12_crypto_info_chacha20_poly1305);
        let chacha = bytes(Cipher::Chacha20Poly1305, &[7; 32]);
        check(&chacha, layout, 54, &[7; 32], 0);
    }

    #[test]
    fn a_key_must_have_the_length_of_its_cipher() {
        for cipher in Cipher::ALL {
            assert!(SealingKeys::new(Version::Tls12, cipher, &[0; 24], &IV, 0).is_none());
        }
    }

    /// The probe succeeds or names a reason, and `Debug` shows no keys.
    #[test]
    fn the_kernel_is_asked() {
        match probe() {
            Ok(support) => assert!(support.seals(Version::Tls12, Cipher::Aes128Gcm)),
            Err(reason) => assert!(reason.contains("kernel"), "{reason}"),
        }
        let keys = SealingKeys::new(Version::Tls12, Cipher::Aes128Gcm, &[9; 16], &IV, 0);
        assert_eq!(format!("{keys:?}"), "Some(SealingKeys)");
    }
}
