//! Whatever a `moov` atom holds: the cut one says its own size, and samples come from within the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::mp4::{Stretch, cut};

fuzz_target!(|input: (u32, u32, bool, u32, &[u8])| {
    let (start, length, start_key_frame, file_size, moov) = input;
    let stretch = Stretch {
        start: start.into(),
        length: length.into(),
        start_key_frame,
        ftyp_size: 24,
        mdat_end: file_size.into(),
        file_size: file_size.into(),
    };
    if let Ok(cut) = cut(moov, &stretch) {
        let size = cut.moov.first_chunk().map(|size| u32::from_be_bytes(*size));
        assert_eq!(size, Some(cut.moov.len() as u32));
        assert!(cut.start < cut.end && cut.end <= stretch.file_size);
    }
});
