//! Tests of inheritance: which scope supplies a value, and in which scope it is parsed.

use super::{
    ADD_HEADER, ALLOW, BODY_SIZE, BUSY_SIZE, INDEX, PASS, PROGRAM_LINES, ROOT, SET_HEADER, TRACE,
    TRY_FILES, load, messages,
};
use crate::{Contexts, Declared, Loaded, ScopeRef, Template};

/// Loads a configuration that must have no errors.
fn read(http: &str) -> Loaded {
    let loaded = load(format!("http {{ {http} }}"));
    assert_eq!(messages(&loaded), [""; 0]);
    loaded
}

/// The scope at the end of a chain of first children.
fn at<'a>(loaded: &'a Loaded, path: &[&str]) -> ScopeRef<'a> {
    let http = loaded.tree.root().children("http").next().unwrap();
    path.iter()
        .fold(http, |scope, name| scope.children(name).next().unwrap())
}

#[test]
fn values_come_from_the_nearest_scope() {
    let loaded = read(
        "client_max_body_size 2m; server { location / { } location /a { \
        client_max_body_size 3m; location /a/b { } } }",
    );
    let server = at(&loaded, &["server"]);
    assert_eq!(server.own(&BODY_SIZE).unwrap(), None);
    let locations: Vec<_> = server.children("location").collect();
    assert_eq!(locations[0].get(&BODY_SIZE).unwrap(), 2 << 20);
    let inner = locations[1].children("location").next().unwrap();
    assert_eq!(inner.get(&BODY_SIZE).unwrap(), 3 << 20);
    let (declaring, _) = inner.get_with_scope(&BODY_SIZE).unwrap();
    assert_eq!(declaring.unwrap().id(), locations[1].id());
    assert_eq!(inner.line().unwrap().argument(0).text(), "/a/b");
    assert_eq!(inner.parent().unwrap().id(), locations[1].id());
    assert_eq!(inner.context(), Contexts::LOCATION);
}

#[test]
fn defaults_are_parsed_or_computed_from_the_asking_scope() {
    let loaded = read("server { location / { client_max_body_size 3m; } }");
    let server = at(&loaded, &["server"]);
    let location = at(&loaded, &["server", "location"]);
    assert_eq!(server.get(&BODY_SIZE).unwrap(), 1 << 20);
    assert_eq!(server.written(&BODY_SIZE).unwrap(), None);
    assert_eq!(server.get(&BUSY_SIZE).unwrap(), 2 << 20);
    assert_eq!(location.get(&BUSY_SIZE).unwrap(), 6 << 20);
    assert!(location.get_with_scope(&BUSY_SIZE).unwrap().0.is_none());
    // A default without arguments is a line without arguments, so the parse function gets the same
    // input as for a written line.
    assert!(server.get(&INDEX).is_err());
    assert_eq!(server.get(&ADD_HEADER).unwrap(), [[""; 3]; 0]);
}

#[test]
fn a_group_is_one_setting() {
    let loaded = read("root /a; server { location / { alias /b; location /c { } } }");
    let inner = at(&loaded, &["server", "location", "location"]);
    let (declaring, path) = inner.get_with_scope(&ROOT).unwrap();
    assert_eq!(path, "/b");
    let declaring = declaring.unwrap();
    assert_eq!(declaring.line().unwrap().argument(0).text(), "/");
    assert!(declaring.own_lines(&ROOT.spec)[0].is("alias"));
    assert_eq!(
        messages(&load("http { alias /a; }")),
        ["\"alias\" directive is not allowed here in /conf/nginx.conf:1"]
    );
}

#[test]
fn lists_replace_what_is_above_and_keep_their_order() {
    let loaded = read(
        "allow a; server { location / { deny b; allow c; deny all; } \
        location /x { add_header A 1; limit_except GET { deny d; } } }",
    );
    let location = at(&loaded, &["server", "location"]);
    assert_eq!(
        location.get(&ALLOW).unwrap(),
        [["deny", "b"], ["allow", "c"], ["deny", "all"]]
    );
    let other = at(&loaded, &["server"])
        .children("location")
        .nth(1)
        .unwrap();
    assert_eq!(other.get(&ALLOW).unwrap(), [["allow", "a"]]);
    let limited = other.children("limit_except").next().unwrap();
    assert_eq!(limited.get(&ALLOW).unwrap(), [["deny", "d"]]);
    assert_eq!(
        limited.get(&ADD_HEADER).unwrap(),
        [["add_header", "A", "1"]]
    );
}

#[test]
fn keyed_lists_keep_defaults_for_keys_not_named() {
    let loaded = read("server { proxy_set_header X 1; location / { proxy_set_header host $h; } }");
    let name = "proxy_set_header";
    assert_eq!(
        at(&loaded, &["server"]).get(&SET_HEADER).unwrap(),
        [
            [name, "X", "1"],
            [name, "Host", "$proxy_host"],
            [name, "Connection", "close"]
        ]
    );
    assert_eq!(
        at(&loaded, &["server", "location"])
            .get(&SET_HEADER)
            .unwrap(),
        [[name, "host", "$h"], [name, "Connection", "close"]]
    );
    assert_eq!(
        loaded.tree.root().get(&SET_HEADER).unwrap(),
        [[name, "Host", "$proxy_host"], [name, "Connection", "close"]]
    );
}

#[test]
fn appended_lists_grow_inwards() {
    let loaded = read("trace a; server { location / { trace b; trace c; location /d { } } }");
    let expected = [["trace", "a"], ["trace", "b"], ["trace", "c"]];
    let inner = at(&loaded, &["server", "location", "location"]);
    assert_eq!(inner.get(&TRACE).unwrap(), expected);
    assert_eq!(at(&loaded, &["server"]).get(&TRACE).unwrap(), expected[..1]);
}

#[test]
fn handlers_stay_in_inner_scopes_but_not_in_locations() {
    let loaded = read(
        "server { location / { proxy_pass a; if (x) { } limit_except GET { } \
        location /b { if (y) { } } } }",
    );
    let location = at(&loaded, &["server", "location"]);
    let pass = |scope: ScopeRef<'_>| scope.written(&PASS).unwrap();
    assert_eq!(pass(location).as_deref(), Some("a"));
    let inside = location.children("if").next().unwrap();
    assert_eq!(inside.context(), Contexts::LOCATION_IF);
    assert_eq!(pass(inside).as_deref(), Some("a"));
    let limited = location.children("limit_except").next().unwrap();
    assert_eq!(pass(limited).as_deref(), Some("a"));
    let nested = location.children("location").next().unwrap();
    assert_eq!(pass(nested), None);
    assert_eq!(pass(nested.children("if").next().unwrap()), None);
}

#[test]
fn scripts_and_never_inherited_lines_belong_to_one_scope() {
    let loaded = read(
        "server { set $a 1; if ($a) { break; } set $b 2; try_files a b; \
        location / { add_header A 1; } }",
    );
    let server = at(&loaded, &["server"]);
    let names: Vec<_> = server
        .get(&PROGRAM_LINES)
        .unwrap()
        .iter()
        .map(|l| l[0].clone())
        .collect();
    assert_eq!(names, ["set", "if", "set"]);
    assert_eq!(
        at(&loaded, &["server", "if"]).context(),
        Contexts::SERVER_IF
    );
    let location = at(&loaded, &["server", "location"]);
    assert_eq!(location.written(&PROGRAM_LINES).unwrap(), None);
    assert_eq!(location.written(&TRY_FILES).unwrap(), None);
    assert_eq!(
        messages(&load("http { server { set $a; if { } break x; } }")),
        [
            "invalid number of arguments in \"set\" directive in /conf/nginx.conf:1",
            "invalid number of arguments in \"if\" directive in /conf/nginx.conf:1",
            "invalid number of arguments in \"break\" directive in /conf/nginx.conf:1",
        ]
    );
}

#[test]
fn owners_are_scopes_that_see_the_same() {
    let group: &[&'static dyn Declared] = &[&BODY_SIZE, &TRY_FILES];
    let loaded = read(
        "server { try_files a b; location / { } \
        location /a { client_max_body_size 1m; location /b { } } \
        location /c { client_max_body_size 1m; try_files a b; location /d { } } }",
    );
    let root = loaded.tree.root();
    let server = at(&loaded, &["server"]);
    let owner = |scope: ScopeRef<'_>| scope.owner(group).id();
    assert_eq!(owner(server), server.id());
    let locations: Vec<_> = server.children("location").collect();
    // The server's `try_files` is not in force in the location, which has no line of its own.
    assert_eq!(owner(locations[0]), root.id());
    assert_eq!(owner(locations[1]), locations[1].id());
    let nested = |scope: ScopeRef<'_>| owner(scope.children("location").next().unwrap());
    assert_eq!(nested(locations[1]), locations[1].id());
    // The location's size is in force in the nested one, its `try_files` is not.
    let innermost = locations[2].children("location").next().unwrap();
    assert_eq!(owner(innermost), innermost.id());
    assert!(locations[2].writes(&[&TRY_FILES]));
    assert!(!locations[1].writes(&[&TRY_FILES]));
}

#[test]
fn faults_have_the_place_of_their_line() {
    let loaded = load("http {\n index_text 'a${b';\n}");
    let http = loaded.tree.root().children("http").next().unwrap();
    let fault = http.get(&INDEX).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "the closing bracket in \"b\" variable is missing in /conf/nginx.conf:2"
    );
    // An error of loading and the same error of a lookup can be recognized as equal.
    assert_eq!(loaded.diagnostics, [crate::Diagnostic::from(fault)]);
}

#[test]
fn trees_may_go_to_another_thread() {
    fn sendable<T: Send>(_: &T) {}
    let loaded = read("");
    sendable(&loaded);
    sendable(&at(&loaded, &[]));
    sendable(&Template::default());
}

#[test]
fn a_place_is_what_is_written_around_it() {
    let place = |http: &str, path: &[&str], of_servers: &[&str]| {
        let loaded = read(http);
        at(&loaded, path).place(of_servers)
    };
    let location = ["server", "location"];
    let plain = place("server { location /a { } }", &location, &[]);
    let other = place(
        "root /x; server { root /y; location /a { root /z; } }",
        &location,
        &[],
    );
    assert_eq!(plain, other);
    let elsewhere = place("server { location /b { } }", &location, &[]);
    assert_ne!(plain, elsewhere);
    let within = place(
        "server { location /b { location /a { } } }",
        &["server", "location", "location"],
        &[],
    );
    assert_ne!(plain, within);
    // The requested lines of `server` blocks are part of the identity.
    let named = place("server { root /y; location /a { } }", &location, &["root"]);
    assert_ne!(plain, named);
}
