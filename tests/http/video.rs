//! `mp4_limit_rate`, which only NGINX Plus has to compare with: a file is sent as fast as it is
//! played.

use std::time::{Duration, Instant};

use support::{Server, is_nginx};

fn atom(name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let size = (data.len() + 8) as u32;
    [&size.to_be_bytes(), &name[..], data].concat()
}

/// A file of 600,000 bytes that plays for two seconds.
fn movie() -> Vec<u8> {
    let mut header = [0; 100];
    header[12..16].copy_from_slice(&1000u32.to_be_bytes());
    header[16..20].copy_from_slice(&2000u32.to_be_bytes());
    let mut movie = atom(b"ftyp", b"isom\0\0\x02\0isommp41");
    movie.extend(atom(b"moov", &atom(b"mvhd", &header)));
    movie.extend(atom(b"mdat", &vec![7; 600_000 - movie.len() - 8]));
    movie
}

/// How long the file takes to come, whole.
fn time(server: &Server, path: &str) -> Duration {
    let begun = Instant::now();
    let response = server.connect().get(path).unwrap();
    assert_eq!((response.status, response.body.len()), (200, 600_000));
    begun.elapsed()
}

#[test]
fn a_file_is_sent_as_fast_as_it_is_played() {
    if is_nginx() {
        return;
    }
    let server = Server::start(
        "",
        "
         location /off { mp4; mp4_limit_rate off; mp4_limit_rate_after 0s; }
         location /on { mp4; mp4_limit_rate on; mp4_limit_rate_after 0s; }
         location /half { mp4; mp4_limit_rate 0.5; mp4_limit_rate_after 0s; }
         location /fourfold { mp4; mp4_limit_rate 4; mp4_limit_rate_after 0s; }
         location /after { mp4; mp4_limit_rate 0.5; mp4_limit_rate_after 60s; }",
    );
    for name in ["off", "on", "half", "fourfold", "after"] {
        server.write(&format!("{name}.mp4"), &movie());
    }
    let (quick, slow) = (Duration::from_millis(700), Duration::from_millis(800));
    assert!(time(&server, "/off.mp4") < quick);
    assert!(time(&server, "/fourfold.mp4") < quick);
    assert!(time(&server, "/after.mp4") < quick);
    // 330,000 bytes in the first second, the rest in the second one.
    assert!(time(&server, "/on.mp4") > slow);
    assert!(time(&server, "/half.mp4") > 2 * slow);
}
