//! A picture to upload.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

pub(crate) const WIDTH: u32 = 800;
pub(crate) const HEIGHT: u32 = 500;

/// A PNG of 1.2 MB, more than a server takes by default: noise over a slope of colours.
pub(crate) fn png() -> Vec<u8> {
    let mut noise: u32 = 1;
    let mut rows = Vec::new();
    for row in 0..HEIGHT {
        rows.push(0);
        for column in 0..WIDTH {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [a, b, c, _] = noise.to_be_bytes();
            let slope = |part: u32, whole: u32| (part * 128 / whole) as u8;
            rows.extend([
                slope(row, HEIGHT) + a / 2,
                slope(column, WIDTH) + b / 2,
                c / 2,
            ]);
        }
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&rows).unwrap();
    let mut header = [WIDTH.to_be_bytes(), HEIGHT.to_be_bytes()].concat();
    // Eight bits, red, green and blue, not interlaced.
    header.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut file, b"IHDR", &header);
    chunk(&mut file, b"IDAT", &encoder.finish().unwrap());
    chunk(&mut file, b"IEND", b"");
    file
}

fn chunk(file: &mut Vec<u8>, name: &[u8; 4], bytes: &[u8]) {
    let mut crc = Crc::new();
    crc.update(name);
    crc.update(bytes);
    file.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    file.extend(name);
    file.extend(bytes);
    file.extend(crc.sum().to_be_bytes());
}
