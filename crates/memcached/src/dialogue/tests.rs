//! Conversations without a network: expected answers are those of memcached 1.6.45.

use crate::cache::Settings;
use crate::output::OUTPUT_MAX;
use crate::testing::{Client, MOMENT, settings, shared_by};

use super::*;

/// What a client is answered that sends all at once, and byte by byte, to a server each.
fn talk(input: &str) -> String {
    let mut answers = [input.len().max(1), 1, 7].map(|piece| {
        let shared = shared_by(settings());
        let mut client = Client::new();
        for piece in input.as_bytes().chunks(piece) {
            client.send(&shared, MOMENT, piece);
            if client.is_closed {
                break;
            }
        }
        String::from_utf8(client.answers).unwrap()
    });
    assert_eq!(answers[0], answers[1], "byte by byte");
    assert_eq!(answers[0], answers[2], "in pieces of seven");
    std::mem::take(&mut answers[0])
}

#[test]
fn what_is_set_is_got() {
    let input = "set a 5 0 3\r\nabc\r\nget a\r\nget b a  b\r\nget b\r\n";
    let expected = "STORED\r\nVALUE a 5 3\r\nabc\r\nEND\r\nVALUE a 5 3\r\nabc\r\nEND\r\nEND\r\n";
    assert_eq!(talk(input), expected);
    assert_eq!(
        talk("set a 0 0 0\r\n\r\nget a\n"),
        "STORED\r\nVALUE a 0 0\r\n\r\nEND\r\n"
    );
    let quiet = "set a 0 0 1 noreply\r\nx\r\ndelete b noreply\r\nincr a 1 noreply\r\nget a\r\n";
    assert_eq!(talk(quiet), "VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn conditions_are_those_of_the_commands() {
    let input = "add a 0 0 1\r\n1\r\nadd a 0 0 1\r\n2\r\nreplace b 0 0 1\r\n1\r\n\
                 replace a 9 0 2\r\n55\r\nappend b 0 0 1\r\n1\r\nappend a 0 0 2\r\nab\r\n\
                 prepend a 0 0 1\r\nX\r\nget a\r\ncas b 0 0 1 5\r\n1\r\ncas a 0 0 1 0\r\n1\r\n";
    let expected = "STORED\r\nNOT_STORED\r\nNOT_STORED\r\nSTORED\r\nNOT_STORED\r\nSTORED\r\n\
                    STORED\r\nVALUE a 9 5\r\nX55ab\r\nEND\r\nNOT_FOUND\r\nEXISTS\r\n";
    assert_eq!(talk(input), expected);
}

#[test]
fn a_cas_that_was_told_is_taken_once() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    client.send(&shared, MOMENT, b"set a 0 0 1\r\n1\r\ngets a\r\n");
    let told = String::from_utf8(std::mem::take(&mut client.answers)).unwrap();
    let cas = told.lines().nth(1).unwrap().split(' ').nth(4).unwrap();
    let store = format!("cas a 0 0 1 {cas}\r\n2\r\n");
    client.send(&shared, MOMENT, store.repeat(2).as_bytes());
    assert_eq!(client.answers, b"STORED\r\nEXISTS\r\n");
}

#[test]
fn counters_keep_their_length_and_stop_at_nothing() {
    let input = "set c 0 0 2\r\n10\r\ndecr c 1\r\nget c\r\nincr c 100\r\ndecr c 500\r\n\
                 incr c 18446744073709551615\r\nincr c 2\r\nincr c x\r\nincr d 1\r\n\
                 set t 0 0 3\r\nabc\r\nincr t 1\r\n";
    let expected = "STORED\r\n9\r\nVALUE c 0 2\r\n9 \r\nEND\r\n109\r\n0\r\n\
                    18446744073709551615\r\n1\r\n\
                    CLIENT_ERROR invalid numeric delta argument\r\nNOT_FOUND\r\nSTORED\r\n\
                    CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    assert_eq!(talk(input), expected);
}

#[test]
fn bad_input_is_answered_and_what_follows_is_read() {
    let bad = "CLIENT_ERROR bad command line format\r\n";
    let data = "CLIENT_ERROR bad data chunk\r\n";
    assert_eq!(
        talk("set a 0 0 3\r\nabcd\r\nget a\r\n"),
        format!("{data}{bad}END\r\n")
    );
    assert_eq!(
        talk("set a x 0 3\r\nabc\r\nget a\r\n"),
        format!("{bad}END\r\n")
    );
    assert_eq!(talk("set a 0 0 -1\r\n"), bad);
    assert_eq!(
        talk("\r\nx\r\nnonsense\r\n"),
        format!("{bad}{bad}ERROR\r\n")
    );
    let long = "k".repeat(251);
    let input = format!("set {long} 0 0 1\r\n1\r\nget {long}\r\nget a {long}\r\nmn\r\n");
    assert_eq!(talk(&input), format!("{bad}{bad}{bad}MN\r\n"));
    assert_eq!(talk("quit\r\nget a\r\n"), "");
    assert_eq!(talk("GET / HTTP/1.1\r\n"), "");
}

#[test]
fn too_large_is_read_away_and_takes_the_old_value_with_it() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    client.send(
        &shared,
        MOMENT,
        b"set a 0 0 1\r\n1\r\nset a 0 0 1048577\r\n",
    );
    client.send(&shared, MOMENT, &[b'x'; 1_048_577]);
    client.send(&shared, MOMENT, b"\r\nget a\r\n");
    let expected = b"STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n";
    assert_eq!(client.answers, expected);
}

#[test]
fn a_line_without_end_is_bounded_but_for_keys() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    client.send(&shared, MOMENT, &[b'x'; 2049]);
    assert!(client.is_closed);

    let mut client = Client::new();
    client.send(&shared, MOMENT, b"set hit 0 0 1\r\n1\r\nget");
    for _ in 0..100_000 {
        client.send(&shared, MOMENT, b" missing-key");
        assert!(client.conversation.pending.len() <= LINE_LENGTH_MAX + 16);
    }
    client.send(&shared, MOMENT, b" hit\r\nget hit\r\n");
    let hit = "VALUE hit 0 1\r\n1\r\nEND\r\n";
    assert!(!client.is_closed);
    assert_eq!(
        String::from_utf8(client.answers).unwrap(),
        format!("STORED\r\n{hit}{hit}")
    );
}

#[test]
fn answers_stop_where_they_are_many() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let value = vec![b'v'; 10_000];
    client.send(&shared, MOMENT, b"set a 0 0 10000\r\n");
    client.send(&shared, MOMENT, &[&value[..], b"\r\n"].concat());
    let gets = b"get a a a a a a a a\r\n".repeat(1000);
    let next = client
        .conversation
        .take(&gets, &shared, MOMENT, &mut client.out);
    assert_eq!(next, NextAction::Send);
    assert!(
        client.out.len() < OUTPUT_MAX + 11_000,
        "{}",
        client.out.len()
    );
    client.answers.clear();
    client.send(&shared, MOMENT, b"");
    assert_eq!(client.answers.len(), 1000 * (8 * (10_000 + 19) + 5));
}

#[test]
fn times_are_relative_absolute_or_past() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let input = b"set a 0 10 1\r\n1\r\nset b 0 -1 1\r\n1\r\nset c 0 1800000020 1\r\n1\r\n\
                  get a b c\r\nset d 0 0 1\r\n1\r\ntouch d 30\r\ngat 0 a\r\n";
    client.send(&shared, MOMENT, input);
    client.answers.clear();
    let later = |seconds| CommandTime {
        now: MOMENT.now + seconds,
        wall: MOMENT.wall + u64::from(seconds),
    };
    client.send(&shared, later(19), b"get a b c d\r\n");
    let expected = "VALUE a 0 1\r\n1\r\nVALUE c 0 1\r\n1\r\nVALUE d 0 1\r\n1\r\nEND\r\n";
    assert_eq!(
        String::from_utf8(std::mem::take(&mut client.answers)).unwrap(),
        expected
    );
    client.send(&shared, later(30), b"get a b c d\r\nflush_all 5\r\n");
    client.send(&shared, later(34), b"get a\r\n");
    client.send(&shared, later(35), b"get a\r\n");
    let a = "VALUE a 0 1\r\n1\r\nEND\r\n";
    let expected = format!("{a}OK\r\n{a}END\r\n");
    assert_eq!(String::from_utf8(client.answers).unwrap(), expected);
}

#[test]
fn the_meta_protocol_tells_what_is_asked_for() {
    let input = "mg a\r\nmg a q\r\nms a 3 F7 k Oo s\r\nabc\r\nmg a f t s v O9\r\nms a 2 q\r\nab\r\n\
                 mg a v k q\r\nms a 1 T60\r\nx\r\nmg a t\r\nmg a T30 t\r\nmd a q\r\nmd a k\r\nmn\r\n";
    let expected = "EN\r\nHD ka Oo s3\r\nVA 3 f7 t-1 s3 O9\r\nabc\r\nVA 2 ka\r\nab\r\nHD\r\n\
                    HD t60\r\nHD t30\r\nNF ka\r\nMN\r\n";
    assert_eq!(talk(input), expected);
}

#[test]
fn stale_objects_are_won_once() {
    let input = "mg v N30 t v\r\nmg v N30 t\r\nms v 2 T90\r\nok\r\nmg v v\r\n\
                 md v I T30\r\nmg v v t\r\nmg v v\r\nms w 1 T20\r\n1\r\nmg w R30\r\nmg w R30\r\n";
    let expected = "VA 0 t30 W\r\n\r\nHD t30 Z\r\nHD\r\nVA 2\r\nok\r\nHD\r\nVA 2 t30 X W\r\nok\r\n\
                    VA 2 Z X\r\nok\r\nHD\r\nHD W\r\nHD Z\r\n";
    assert_eq!(talk(input), expected);
}

#[test]
fn meta_counters_begin_and_count() {
    let input =
        "ma c\r\nma c N0 J13 v\r\nma c v\r\nma c MD D5 v\r\nma c M- D100 v k Oq\r\nma c q\r\n";
    let expected = "NF\r\nVA 2\r\n13\r\nVA 2\r\n14\r\nVA 1\r\n9\r\nVA 1 kc Oq\r\n0\r\n";
    assert_eq!(talk(input), expected);
}

#[test]
fn keys_in_base64_are_told_in_base64() {
    let input = "ms Zm9v 3 b\r\nabc\r\nmg Zm9v b k v\r\nmg foo k v\r\nmg Zm9 b\r\nmd Zm9v b k\r\n";
    let expected = "HD\r\nVA 3 kZm9v b\r\nabc\r\nVA 3 kZm9v b\r\nabc\r\n\
                    CLIENT_ERROR error decoding key\r\nHD kZm9v b\r\n";
    assert_eq!(talk(input), expected);
}

#[test]
fn what_an_option_forbids_is_refused() {
    let shared = shared_by(Settings {
        allows_flush: false,
        allows_dump: false,
        ..settings()
    });
    let mut client = Client::new();
    let input = b"flush_all\r\nlru_crawler metadump all\r\nlru_crawler mgdump all\r\nshutdown\r\n";
    client.send(&shared, MOMENT, input);
    let expected = "CLIENT_ERROR flush_all not allowed\r\nERROR metadump not allowed\r\n\
                    ERROR key dump not allowed\r\nSERVER_ERROR: shutdown not enabled\r\n";
    assert_eq!(String::from_utf8(client.answers).unwrap(), expected);
}

#[test]
fn dumps_name_every_key() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    client.send(&shared, MOMENT, b"set a%b 3 50 2\r\nxx\r\n");
    client.send(&shared, MOMENT, b"lru_crawler metadump all\r\n");
    client.send(&shared, MOMENT, b"lru_crawler mgdump hash\r\n");
    client.send(&shared, MOMENT, b"stats cachedump 1 10\r\n");
    client.send(&shared, MOMENT, b"mn\r\nlru_crawler mgdump all\r\n");
    let expected = "STORED\r\nOK\r\nkey=a%25b exp=1800000050 la=1800000000 cas=N fetch=no cls=1 \
                    size=68 flags=3\nEND\r\nOK\r\nmg a%b\r\nEN\r\n\
                    ITEM a%b [2 b; 1800000050 s]\r\nEND\r\n\
                    MN\r\nERROR cannot pipeline other commands before mgdump\r\n";
    let told = String::from_utf8(client.answers).unwrap();
    let begin = told.find("cas=").unwrap() + 4;
    let end = begin + told[begin..].find(' ').unwrap();
    assert_eq!(format!("{}N{}", &told[..begin], &told[end..]), expected);
}

#[test]
fn statistics_count_what_was_done() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let input = b"set a 0 0 1\r\n1\r\nget a b\r\ndelete b\r\nstats\r\nstats reset\r\nstats\r\n";
    client.send(&shared, MOMENT, input);
    let told = String::from_utf8(client.answers).unwrap();
    let (before, after) = told.split_once("RESET").unwrap();
    for line in [
        "cmd_get 2",
        "get_hits 1",
        "get_misses 1",
        "cmd_set 1",
        "delete_misses 1",
    ] {
        assert!(
            before.contains(&format!("STAT {line}\r\n")),
            "{line}: {before}"
        );
    }
    assert!(after.contains("STAT cmd_get 0\r\n") && after.contains("STAT curr_items 1\r\n"));
}

#[test]
fn statistics_by_class_count_items_as_memcached_sizes_them() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let value = "x".repeat(500);
    let input = format!("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\nset c 0 0 500\r\n{value}\r\n");
    client.send(&shared, MOMENT, input.as_bytes());
    client.send(&shared, MOMENT, b"cas a 0 0 1 9999\r\n2\r\n");
    client.answers.clear();
    client.send(
        &shared,
        MOMENT,
        b"stats slabs\r\nstats items\r\nstats sizes\r\n",
    );
    let told = String::from_utf8(client.answers).unwrap();
    for line in [
        "STAT 1:chunk_size 96",
        "STAT 1:used_chunks 2",
        "STAT 1:cmd_set 3",
        "STAT 1:cas_hits 0",
        "STAT 1:cas_badval 1",
        "STAT 9:chunk_size 600",
        "STAT 9:used_chunks 1",
        "STAT 9:cmd_set 1",
        "STAT active_slabs 2",
        "STAT items:1:number 2",
        "STAT items:9:mem_requested 560",
        "STAT 64 2",
        "STAT 576 1",
    ] {
        assert!(told.contains(&format!("{line}\r\n")), "{line}: {told}");
    }
    // prometheus' memcached_exporter tells nothing at all where it stands in both.
    assert!(!told.contains("STAT 1:mem_requested"), "{told}");
    client.answers = Vec::new();
    client.send(&shared, MOMENT, b"stats reset\r\nstats slabs\r\n");
    let told = String::from_utf8(client.answers).unwrap();
    assert!(told.contains("STAT 1:cmd_set 0\r\n"), "{told}");
}

#[test]
fn without_cas_every_item_has_that_of_nothing() {
    let shared = shared_by(Settings {
        with_cas: false,
        ..settings()
    });
    let mut client = Client::new();
    let input = b"set a 0 0 1\r\n1\r\ngets a\r\nms a 1 E77\r\n2\r\nmg a c\r\n";
    client.send(&shared, MOMENT, input);
    let expected = "STORED\r\nVALUE a 0 1 0\r\n1\r\nEND\r\nHD\r\nHD c0\r\n";
    assert_eq!(String::from_utf8(client.answers).unwrap(), expected);
}

/// t/metaget.t of memcached: a CAS of 0 is one that no item has.
#[test]
fn a_condition_on_cas_0_never_holds() {
    let input = "set a 0 0 1\r\n1\r\nms a 1 C0\r\n2\r\nms b 1 C0\r\n2\r\nmg a v\r\n";
    assert_eq!(talk(input), "STORED\r\nEX\r\nNF\r\nVA 1\r\n1\r\n");
}

#[test]
fn a_client_that_sends_much_lets_others_have_their_turn() {
    let shared = shared_by(Settings {
        commands_in_turn: 2,
        ..settings()
    });
    let mut conversation = Dialogue::new();
    let mut out = Output::default();
    let input = b"mn\r\nmn\r\nmn\r\nmn\r\n";
    let mut turns = 0;
    let mut next = conversation.take(input, &shared, MOMENT, &mut out);
    while next == NextAction::Send {
        turns += 1;
        next = conversation.take(&[], &shared, MOMENT, &mut out);
    }
    assert_eq!((turns, next), (1, NextAction::Receive));
    let told: Vec<u8> = out.take().flatten().collect();
    assert_eq!(told, b"MN\r\n".repeat(4));
}

/// The list of what memcached has mended: each answer is one, whatever the pieces, and what
/// follows is read as it should.
#[test]
fn bad_input_of_every_kind_has_one_answer() {
    let bad = "CLIENT_ERROR bad command line format\r\n";
    let key_65535 = "k".repeat(65_535);
    for (input, expected) in [
        (
            "set a\x01b 0 0 1\r\n1\r\nget a\x01b\r\n",
            "STORED\r\nVALUE a\x01b 0 1\r\n1\r\nEND\r\n",
        ),
        (
            "set a 0 0 -5\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "set a 0 0 99999999999999999999\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "set a 0 0 4294967296\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "set a 4294967296 0 1\r\n1\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "set a 0 9999999999 1\r\n1\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "cas a 0 0 1 -1\r\n1\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        ("cas a 0 0 1 0\r\n1\r\nmn\r\n", "NOT_FOUND\r\nMN\r\n"),
        (
            "touch a x\r\nmn\r\n",
            "CLIENT_ERROR invalid exptime argument\r\nMN\r\n",
        ),
        (
            "gat x a\r\nmn\r\n",
            "CLIENT_ERROR invalid exptime argument\r\nMN\r\n",
        ),
        (
            "incr a 18446744073709551616\r\nmn\r\n",
            "CLIENT_ERROR invalid numeric delta argument\r\nMN\r\n",
        ),
        (
            "mg\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "verbosity\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "slabs automove x\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "stats detail\r\nmn\r\n",
            "CLIENT_ERROR usage: stats detail on|off|dump\r\nMN\r\n",
        ),
        (
            "stats cachedump\r\nmn\r\n",
            "CLIENT_ERROR bad command line\r\nMN\r\n",
        ),
        (
            "stats cachedump 64 1\r\nmn\r\n",
            "CLIENT_ERROR Illegal slab id\r\nMN\r\n",
        ),
        ("watch nonsense\r\nmn\r\n", "ERROR\r\nMN\r\n"),
        (
            "delete_tag a,b\r\ndelete_tag\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "delete_prefix\r\nmn\r\n",
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
    ] {
        assert_eq!(talk(input), expected, "{input}");
    }
    // A key of 65,535 bytes: in a line about keys it is refused, in any other the line is too long.
    assert_eq!(
        talk(&format!("get a {key_65535}\r\nmn\r\n")),
        format!("{bad}MN\r\n")
    );
    let shared = shared_by(settings());
    let mut client = Client::new();
    client.send(&shared, MOMENT, format!("delete {key_65535}").as_bytes());
    assert!(client.is_closed && client.answers.is_empty());
}

/// Tags are no part of a value, stay with what changes it, and go with what replaces it.
#[test]
fn tags_are_kept_until_their_item_is_stored_anew() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let long = "v".repeat(200_000);
    let input = format!(
        "ms n 1 G(x)\r\n5\r\nms s 2 G(x,news) T60\r\nab\r\nms o 1 G(y)\r\n1\r\n\
         ms r 1 G(x)\r\n1\r\nms r 1\r\n2\r\nms large 200000 G(x)\r\n{long}\r\n\
         incr n 10\r\nappend s 0 0 1\r\nc\r\nprepend s 0 0 1\r\n_\r\ntouch s 50\r\n\
         append large 0 0 1\r\n!\r\nget n s\r\nmg s s v\r\nmg large s\r\nmd o I x\r\n"
    );
    client.send(&shared, MOMENT, input.as_bytes());
    let answers = String::from_utf8(std::mem::take(&mut client.answers)).unwrap();
    let expected = "HD\r\nHD\r\nHD\r\nHD\r\nHD\r\nHD\r\n15\r\nSTORED\r\nSTORED\r\nTOUCHED\r\n\
                    STORED\r\nVALUE n 0 2\r\n15\r\nVALUE s 0 4\r\n_abc\r\nEND\r\nVA 4 s4\r\n_abc\r\n\
                    HD s200001\r\nHD\r\n";
    assert_eq!(answers, expected);
    let input = b"delete_tag news\r\nget s\r\ndelete_tag none\r\ndelete_tag x\r\n\
                  get n r large\r\ndelete_tag y noreply\r\nmg o\r\n";
    client.send(&shared, MOMENT, input);
    let answers = String::from_utf8(std::mem::take(&mut client.answers)).unwrap();
    let expected = "DELETED 1\r\nEND\r\nDELETED 0\r\nDELETED 2\r\n\
                    VALUE r 0 1\r\n2\r\nEND\r\nEN\r\n";
    assert_eq!(answers, expected);
}

/// Another client stores items that the deletion concerns after each step of it.
#[test]
fn a_deletion_ends_whatever_others_store() {
    for command in ["delete_tag x\r\n", "delete_prefix k\r\n"] {
        let shared = shared_by(Settings {
            commands_in_turn: 1,
            ..settings()
        });
        let mut other = Client::new();
        let mut number = 0;
        let mut store = |count| {
            for _ in 0..count {
                number += 1;
                let command = format!("ms k{number} 1 G(x)\r\n1\r\n");
                other.send(&shared, MOMENT, command.as_bytes());
            }
        };
        store(2000);
        let mut client = Client::new();
        let mut input = command.as_bytes();
        let mut steps = 0;
        loop {
            let (conversation, out) = (&mut client.conversation, &mut client.out);
            if conversation.take(input, &shared, MOMENT, out) != NextAction::Send {
                break;
            }
            input = &[];
            store(20);
            steps += 1;
            assert!(steps < 1000, "{command:?} does not end");
        }
        assert!(steps > 5, "others have their turn in between");
        let told: Vec<u8> = client.out.take().flatten().collect();
        let told = String::from_utf8(told).unwrap();
        assert!(told.starts_with("DELETED 2"), "{told}");
        for number in 1..=2000 {
            client.send(&shared, MOMENT, format!("get k{number}\r\n").as_bytes());
        }
        assert_eq!(client.answers, "END\r\n".repeat(2000).into_bytes());
    }
}

/// Around 30 days an expiry changes what it means; a clock that jumps ahead takes items with it.
#[test]
fn expiry_is_relative_up_to_thirty_days_and_never_comes_back() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let (past, wall) = (2_592_001, 1_800_000_100_u64);
    let input = format!(
        "set month 0 2592000 1\r\n1\r\nset past 0 {past} 1\r\n1\r\nset wall 0 {wall} 1\r\n1\r\n\
         set gone 0 -1 1\r\n1\r\nget month past wall gone\r\n"
    );
    client.send(&shared, MOMENT, input.as_bytes());
    let told = String::from_utf8(std::mem::take(&mut client.answers)).unwrap();
    assert!(
        told.ends_with("VALUE month 0 1\r\n1\r\nVALUE wall 0 1\r\n1\r\nEND\r\n"),
        "{told}"
    );
    let jumped = CommandTime {
        now: MOMENT.now + 100,
        ..MOMENT
    };
    client.send(&shared, jumped, b"get month wall\r\n");
    client.send(&shared, MOMENT, b"get wall\r\n");
    let told = String::from_utf8(client.answers).unwrap();
    assert_eq!(told, "VALUE month 0 1\r\n1\r\nEND\r\nEND\r\n");
}

/// The wall clock says only what an absolute expiry means: where it jumps, items that are there
/// neither go nor stay longer.
#[test]
fn a_wall_clock_that_jumps_moves_no_item() {
    let shared = shared_by(settings());
    let mut client = Client::new();
    let input = b"set a 0 1800000100 1\r\n1\r\nset b 0 100 1\r\n1\r\n";
    client.send(&shared, MOMENT, input);
    for wall in [MOMENT.wall - 3600, MOMENT.wall + 3600, 0, u64::MAX] {
        let at = |now| CommandTime { now, wall };
        client.answers.clear();
        client.send(&shared, at(MOMENT.now + 99), b"mg a k\r\nmg b k\r\n");
        assert_eq!(client.answers, b"HD ka\r\nHD kb\r\n", "{wall}");
    }
    let back = CommandTime {
        now: MOMENT.now + 99,
        wall: MOMENT.wall - 3600,
    };
    client.answers.clear();
    client.send(&shared, back, b"set c 0 1800000000 1\r\n1\r\nmg c t\r\n");
    assert_eq!(client.answers, b"STORED\r\nHD t3600\r\n");
    let later = CommandTime {
        now: MOMENT.now + 100,
        ..back
    };
    client.answers.clear();
    client.send(&shared, later, b"mg a k\r\nmg b k\r\nmg c k\r\n");
    assert_eq!(client.answers, b"EN ka\r\nEN kb\r\nHD kc\r\n");
}

/// Whatever a client begins and does not end, its connection keeps no more than a line, or an item
/// of which so much has come.
#[test]
fn what_a_connection_keeps_is_bounded_whatever_comes() {
    let announced = b"\x80\x01\0\x01\x08\0\0\0\0\x0f\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (begin, repeated) in [
        (&b""[..], &b"x"[..]),
        (b"", b" "),
        (b"", b"\0"),
        (b"get", b" k"),
        (b"get ", b"k"),
        (b"gat 1", b" k"),
        (b"mg a", b" v"),
        (b"ms a 5 T", b"1"),
        (b"ms a 5", b" Gt"),
        (b"set a 0 0 99999999\r\n", b"v"),
        (b"set a 0 0 1000\r\n", b"v"),
        (b"set a 0 0 1000000\r\n", b""),
        (b"delete_prefix ", b"k"),
        (b"watch", b" fetchers"),
        (&announced[..], b"v"),
        (b"\x80", b"\xff"),
    ] {
        let shared = shared_by(settings());
        let mut client = Client::new();
        client.send(&shared, MOMENT, begin);
        for _ in 0..1000 {
            if client.is_closed {
                break;
            }
            client.send(
                &shared,
                MOMENT,
                &repeated.repeat(1024 / repeated.len().max(1)),
            );
            let kept = client.conversation.pending.capacity();
            assert!(kept <= 4 * LINE_LENGTH_MAX, "{begin:?}: {kept}");
            if let State::Value(receiving) = &client.conversation.state {
                assert!(receiving.value.len() <= shared.cache.settings.item_max);
            }
        }
    }
}

/// Numbers by a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// What memcached's clients say, to be changed at random.
const SAID: &[&[u8]] = &[
    b"set a 5 100 3\r\nabc\r\n",
    b"set bb 0 0 10 noreply\r\n0123456789\r\n",
    b"add c 0 -1 1\r\n1\r\n",
    b"append a 0 0 2\r\nxy\r\n",
    b"cas a 1 0 2 5\r\n77\r\n",
    b"get a bb c nothing\r\n",
    b"gets a\r\n",
    b"gat 50 a bb\r\n",
    b"touch a 2592001\r\n",
    b"incr n 18446744073709551615\r\n",
    b"set n 0 0 2\r\n10\r\n",
    b"decr n 3 noreply\r\n",
    b"delete a\r\n",
    b"mg a s v f c t h l k Oabc q\r\n",
    b"mg Zm9v b v N30 R5\r\n",
    b"ms Zm9v 3 b T30 I C5\r\nfoo\r\n",
    b"ms a 2 ME F7\r\nzz\r\n",
    b"md a I T10 x\r\n",
    b"ma n D5 J7 N0 MI v\r\n",
    b"me a\r\n",
    b"mn\r\n",
    b"flush_all 0\r\n",
    b"delete_prefix a\r\n",
    b"ms a 2 G(x,y) T5\r\nzz\r\n",
    b"delete_tag x\r\n",
    b"cache_memlimit 64\r\n",
    b"stats detail dump\r\n",
    b"stats items\r\n",
    b"stats sizes\r\n",
    b"verbosity 1\r\n",
    b"\x80\x01\x00\x01\x08\x00\x00\x00\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
      \x00\x00\x00\x05\x00\x00\x00\x00aabc",
    b"\x80\x0c\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00a",
    b"\x80\x05\x00\x01\x14\x00\x00\x00\x00\x00\x00\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
      \x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00n",
    b"\x80\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
];

/// Random input is answered the same whatever its pieces, and nothing of it is kept without bound.
/// `DIALOGUE_ROUNDS` makes it a longer run.
#[test]
fn random_input_has_one_answer_in_whatever_pieces() {
    let rounds = std::env::var("DIALOGUE_ROUNDS").ok();
    let rounds: u64 = rounds.and_then(|text| text.parse().ok()).unwrap_or(3000);
    for seed in 1..=rounds {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut input = Vec::new();
        let is_binary = numbers.below(3) == 0;
        for _ in 0..=numbers.below(8) {
            let said = if is_binary {
                SAID[SAID.len() - 1 - numbers.below(4)]
            } else {
                SAID[numbers.below(SAID.len())]
            };
            input.extend_from_slice(said);
        }
        for _ in 0..numbers.below(6) {
            let at = numbers.below(input.len());
            match numbers.below(4) {
                0 => input[at] = numbers.below(256) as u8,
                1 => drop(input.remove(at)),
                2 => input.insert(at, b" \r\n0-9kT\x00\xff"[numbers.below(10)]),
                _ => input.truncate(at.max(1)),
            }
            if input.is_empty() {
                input.push(b'\n');
            }
        }
        let mut answers = Vec::new();
        for in_pieces in [false, true] {
            let shared = shared_by(settings());
            let mut client = Client::new();
            let mut rest = &input[..];
            while !rest.is_empty() && !client.is_closed {
                let length = if in_pieces {
                    1 + numbers.below(rest.len().min(9))
                } else {
                    rest.len()
                };
                let (piece, behind) = rest.split_at(length);
                client.send(&shared, MOMENT, piece);
                assert!(client.conversation.pending.len() <= LINE_LENGTH_MAX + 600);
                rest = behind;
            }
            answers.push((client.answers, client.is_closed));
        }
        // How much time the process has used is another the next time.
        if answers[0].0.windows(11).any(|text| text == b"rusage_user") {
            continue;
        }
        let shown = input.escape_ascii();
        assert!(answers[0] == answers[1], "seed {seed}: {shown}");
    }
}
