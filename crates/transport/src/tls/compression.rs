//! Compressed certificates: RFC 8879, `ssl_certificate_compression`.
//!
//! Only used in TLS 1.3, for clients that announce support. rustls caches the compressed
//! certificates, so that a certificate is compressed once.

use std::io::Write;

use brotli::enc::BrotliEncoderParams;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{CertCompressor, CompressionFailed, CompressionLevel};

/// The available algorithms, in order of preference.
pub(super) const ALL: [&dyn CertCompressor; 3] = [&Brotli, &Zstd, &Zlib];

#[derive(Debug)]
struct Brotli;

#[derive(Debug)]
struct Zstd;

#[derive(Debug)]
struct Zlib;

impl CertCompressor for Brotli {
    fn compress(&self, input: Vec<u8>, _: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        let mut compressed = Vec::new();
        let parameters = BrotliEncoderParams::default();
        brotli::BrotliCompress(&mut input.as_slice(), &mut compressed, &parameters)
            .map_err(|_| CompressionFailed)?;
        Ok(compressed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Brotli
    }
}

impl CertCompressor for Zstd {
    fn compress(&self, input: Vec<u8>, _: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        zstd::encode_all(input.as_slice(), zstd::DEFAULT_COMPRESSION_LEVEL)
            .map_err(|_| CompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Zstd
    }
}

impl CertCompressor for Zlib {
    fn compress(&self, input: Vec<u8>, _: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        let written = encoder.write_all(&input);
        written
            .and_then(|()| encoder.finish())
            .map_err(|_| CompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Zlib
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_compressed_can_be_read_again() {
        let certificate = b"a certificate, a certificate, a certificate".repeat(20);
        let compress = |way: &dyn CertCompressor| {
            let compressed = way.compress(certificate.clone(), CompressionLevel::Interactive);
            let compressed = compressed.unwrap();
            assert!(compressed.len() < certificate.len() / 4);
            compressed
        };
        let (mut brotli, mut zlib) = (Vec::new(), Vec::new());
        brotli::BrotliDecompress(&mut compress(&Brotli).as_slice(), &mut brotli).unwrap();
        let compressed = compress(&Zlib);
        let mut decoder = flate2::read::ZlibDecoder::new(compressed.as_slice());
        decoder.read_to_end(&mut zlib).unwrap();
        let zstd = zstd::decode_all(compress(&Zstd).as_slice()).unwrap();
        assert!(brotli == certificate && zlib == certificate && zstd == certificate);
    }
}
