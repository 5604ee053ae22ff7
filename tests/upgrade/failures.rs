//! Upgrades that come to nothing, whatever the reason: the older program goes on.

use std::fs;

use support::master::wait_for;
use support::port::free_port;
use support::site::small;

use crate::place::{EndOfAll, beside_nginx, comm, start_in_background, title};

/// A successor that cannot start changes nothing, and neither does another USR2 in the foreground.
#[test]
fn a_binary_that_cannot_start_leaves_the_older_one() {
    let port = free_port();
    let Some(site) = beside_nginx(port) else {
        return;
    };
    let all = EndOfAll(site.folder.clone());
    let ours = start_in_background(&all, "tidegate");
    assert_eq!(comm(ours), "tidegate");
    assert!(
        title(ours).starts_with("tidegate: master process "),
        "{}",
        title(ours)
    );
    small(port, "before");
    let conf = site.folder.join("nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("root ", "no_such_directive ")).unwrap();
    support::signal(ours, "USR2");
    site.wait_for_text("logs/error.log", "new binary process");
    site.wait_for_text("logs/error.log", "exited with code 1");
    wait_for("pid file", || all.pid("nginx.pid") == Some(ours));
    assert!(site.folder.join("socket").exists());
    small(port, "behind");
    // The same file again, by a configuration that is whole.
    fs::write(&conf, text).unwrap();
    support::signal(ours, "USR2");
    wait_for("new binary", || {
        all.pid("nginx.pid").is_some_and(|pid| pid != ours)
    });
    let next = all.pid("nginx.pid").unwrap();
    assert_eq!(all.pid("nginx.pid.oldbin"), Some(ours));
    support::signal(next, "QUIT");
    wait_for("pid file that is back", || {
        all.pid("nginx.pid") == Some(ours)
    });
    assert!(site.folder.join("socket").exists());
    small(port, "again");
}
