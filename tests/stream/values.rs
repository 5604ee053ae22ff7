//! Variables that blocks of `stream` make of others, and old names of directives.

use std::fs;

use support::is_nginx;
use support::master::Master;
use support::mmdb::Value::{Map, Text};
use support::mmdb::database;
use support::port::free_port;

use super::{configure, connect, each_engine, rest, start};

fn numbers_and_places_choose_values(engine: &'static str) {
    if is_nginx() {
        return; // it has neither block
    }
    let [low, high] = [(); 2].map(|()| free_port());
    let (least, most) = (low.min(high), low.max(high));
    let mut master = Master::new();
    let country = Map(vec![("country", Map(vec![("iso_code", Text("LO"))]))]);
    let bytes = database(1, &[("127.0.0.0", 8, country)]);
    fs::write(master.folder.join("places.mmdb"), bytes).unwrap();
    configure(
        &master,
        engine,
        &format!(
            "geoip2 @/places.mmdb {{ $place default=none country iso_code; }}
             num_map $server_port $kind {{ default other; {least} exact; <={most} below; }}
             server {{ listen 127.0.0.1:{least}; return \"$kind $place\"; }}
             server {{ listen 127.0.0.1:{most}; return \"$kind $place\"; }}"
        ),
    );
    master.start();
    assert_eq!(rest(&mut connect(least)), b"exact LO");
    assert_eq!(rest(&mut connect(most)), b"below LO");
}

support::test_on_each_engine!(numbers_and_places_choose_values);

/// nginx warns as well, and refuses both names in one block.
#[test]
fn old_names_of_buffer_sizes() {
    let port = free_port();
    let server = |lines| format!("server {{ listen 127.0.0.1:{port}; {lines} return ok; }}");
    let master = start(each_engine()[0], &server("proxy_downstream_buffer 8k;"));
    assert_eq!(rest(&mut connect(port)), b"ok");
    master.wait_for_text(
        "logs/info.log",
        "the \"proxy_downstream_buffer\" directive is deprecated, use the \"proxy_buffer_size\" \
         directive instead",
    );
    configure(
        &master,
        each_engine()[0],
        &server("proxy_downstream_buffer 8k; proxy_upstream_buffer 4k;"),
    );
    master.signal("HUP");
    master.wait_for_text("logs/info.log", "directive is duplicate");
    assert_eq!(rest(&mut connect(port)), b"ok");
}
