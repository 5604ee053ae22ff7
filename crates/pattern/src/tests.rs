//! The traps of PCRE2's language by name, and patterns at random. Expected values are PCRE2's own
//! and, for messages, nginx's; the parity case file `pattern` puts the same to nginx itself.

use super::*;
use crate::differential::{ComparisonOutcome, Source, compare, compare_list};

/// Groups of a match as text, `None` where a group is unset; or `None` without a match.
fn groups(pattern: &Pattern, subject: &[u8]) -> Option<Vec<Option<String>>> {
    let mut spans = Spans::default();
    let found = pattern.captures(subject, &mut spans).unwrap();
    let text = |group| Some(subject[spans.get(group)?].escape_ascii().to_string());
    found.then(|| (0..spans.len()).map(text).collect())
}

/// What is expected: no match, or the groups that have matched.
fn check(text: &str, runs_on: Option<IrregularFeature>, cases: &[(&str, Option<&[Option<&str>]>)]) {
    let caseless = text.strip_prefix("~*");
    let (text, caseless) = (caseless.unwrap_or(text), caseless.is_some());
    let pattern = Pattern::new(text.as_bytes(), caseless).unwrap();
    assert_eq!(pattern.beyond(), runs_on, "{text}");
    for (subject, expected) in cases {
        let found = groups(&pattern, subject.as_bytes());
        let found: Option<Vec<Option<&str>>> = found
            .as_ref()
            .map(|groups| groups.iter().map(Option::as_deref).collect());
        assert_eq!(found.as_deref(), *expected, "{text} on {subject:?}");
        assert_eq!(
            pattern.is_match(subject.as_bytes()),
            Ok(expected.is_some()),
            "{text} on {subject:?}"
        );
        let compared = compare(text.as_bytes(), caseless, subject.as_bytes()).unwrap();
        let other = runs_on.map_or(ComparisonOutcome::Same, ComparisonOutcome::OnPcre);
        assert_eq!(compared, other, "{text} on {subject:?}");
    }
}

/// The groups of a match, `-` where one is unset.
macro_rules! found {
    ($($group:tt),+) => { Some(&[$(found!(@ $group)),+] as &[Option<&str>]) };
    (@ -) => { None };
    (@ $group:literal) => { Some($group) };
}

/// Not the system's: that the source which the crate brings is what runs.
#[test]
fn pcre2_has_the_pinned_version() {
    check(
        "^(?(VERSION=10.46)a|b)$",
        Some(IrregularFeature::Condition),
        &[("a", found!("a")), ("b", None)],
    );
}

#[test]
fn angle_brackets_with_a_backslash_are_literal() {
    let cases: &[_] = &[
        ("description=hello", None),
        ("<script>", found!("<script>", "<", ">")),
        ("%3cSCRIPT%3E", found!("%3cSCRIPT%3E", "%3c", "%3E")),
    ];
    check(r"~*(\<|%3C).*script.*(\>|%3E)", None, cases);
}

#[test]
fn letters_that_mean_another_thing_elsewhere_mean_what_pcre2_says() {
    check(
        r"a\vb",
        None,
        &[
            ("a\nb", found!("a\\nb")),
            ("a\u{b}b", found!("a\\x0bb")),
            ("a b", None),
        ],
    );
    check(
        r"a\hb",
        None,
        &[("a\tb", found!("a\\tb")), ("ahb", None), ("a\nb", None)],
    );
    check(r"^\s$", None, &[("\u{b}", found!("\\x0b"))]);
    check(
        r"\((a|(?R))*\)",
        Some(IrregularFeature::Recursion),
        &[("((a)a)", found!("((a)a)", "a"))],
    );
    check(
        r"a++a",
        Some(IrregularFeature::Possessive),
        &[("aaa", None)],
    );
    check(
        r"(a)\g1",
        Some(IrregularFeature::BackReference),
        &[("aa", found!("aa", "a")), ("ag1", None)],
    );
    check(
        r"(a)\g{1}",
        Some(IrregularFeature::BackReference),
        &[("aa", found!("aa", "a"))],
    );
    check(
        r"(?<n>a)\k{n}",
        Some(IrregularFeature::BackReference),
        &[("aa", found!("aa", "a"))],
    );
    check(
        r"^[a&&b]$",
        None,
        &[("&", found!("&")), ("a", found!("a")), ("c", None)],
    );
    check(
        r"\101\cA\x{42}\o{103}\x44",
        None,
        &[("A\u{1}BCD", found!("A\\x01BCD"))],
    );
    check(
        r"a\Kb",
        Some(IrregularFeature::ResetStart),
        &[("ab", found!("b"))],
    );
    check(
        r"a\Rb",
        Some(IrregularFeature::Newline),
        &[("a\r\nb", found!("a\\r\\nb"))],
    );
    check(r"^\N\N$", None, &[("ab", found!("ab")), ("a\nb", None)]);
}

#[test]
fn braces_without_a_first_number_count_from_zero() {
    check(
        r"^a{,2}$",
        None,
        &[("", found!("")), ("aa", found!("aa")), ("aaa", None)],
    );
    check(r"^a{ 1, 2 }$", None, &[("aa", found!("aa")), ("", None)]);
    check(r"^a{,}$", None, &[("a{,}", found!("a{,}"))]);
    check(r"^a{1$", None, &[("a{1", found!("a{1"))]);
}

#[test]
fn quoted_text_is_literal_and_its_last_byte_is_repeated() {
    check(
        r"^\Qa.b\E+$",
        None,
        &[("a.bb", found!("a.bb")), ("axb", None)],
    );
    check(r"^a\Q\E+$", None, &[("aaa", found!("aaa"))]);
    check(
        r"^[\Qa-c\E]+$",
        None,
        &[("a-c", found!("a-c")), ("b", None)],
    );
    check(r"^a\Q[", None, &[("a[", found!("a["))]);
}

#[test]
fn bytes_are_counted_not_letters() {
    check(r"^.$", None, &[("é", None), ("e", found!("e"))]);
    check(r"^.{2}$", None, &[("é", found!("\\xc3\\xa9"))]);
    check(r"^\w+$", None, &[("é", None), ("a_1", found!("a_1"))]);
    check(r"~*^é$", None, &[("É", None), ("é", found!("\\xc3\\xa9"))]);
    check(r"^é+$", None, &[("éé", None)]);
    check(r"^[é]{2}$", None, &[("é", found!("\\xc3\\xa9"))]);
    check(r"\p{L}", None, &[("é", found!("\\xc3"))]);
    check(r"~*^[\p{Lu}]+$", None, &[("aB", found!("aB")), ("1", None)]);
    check(
        r"^[^\pL\d]\PN$",
        None,
        &[("-a", found!("-a")), ("-1", None)],
    );
    check(
        r"^\X$",
        Some(IrregularFeature::Unicode),
        &[("e", found!("e"))],
    );
}

#[test]
fn a_pattern_may_ask_for_utf() {
    for name in ["UTF", "UTF8"] {
        let text = format!("(*{name})^.$");
        check(
            &text,
            Some(IrregularFeature::Verb),
            &[("é", found!("\\xc3\\xa9"))],
        );
        let pattern = Pattern::new(text.as_bytes(), false).unwrap();
        let undecided = pattern.is_match(b"\xff").unwrap_err();
        assert!((-23..=-3).contains(&undecided.code), "{undecided:?}");
    }
    assert!(Pattern::new(b"(*UTF)\xff", false).is_err());
}

#[test]
fn branches_may_share_numbers() {
    check(
        r"(?|(a)|(b))",
        Some(IrregularFeature::BranchReset),
        &[("b", found!("b", "b"))],
    );
}

#[test]
fn a_dollar_stands_before_a_last_line_feed_too() {
    check(
        r"\.php$",
        None,
        &[
            ("a.php", found!(".php")),
            ("a.php\n", found!(".php")),
            ("a.php\n\n", None),
            ("a.php\nb", None),
        ],
    );
    check(
        r"^(a$|b)",
        None,
        &[
            ("a\n", found!("a", "a")),
            ("a\n\n", None),
            ("bx", found!("b", "b")),
        ],
    );
    check(
        r"x(?:$|y)",
        None,
        &[("x\n", found!("x")), ("xy", found!("xy")), ("xz", None)],
    );
    check(r"[^b]+$", None, &[("ab\naa\n", found!("\\naa\\n"))]);
    check(
        r"a(?=$)",
        Some(IrregularFeature::LookAround),
        &[("a\n", found!("a")), ("ab", None)],
    );
    check(
        r"^/(?!b)a$",
        Some(IrregularFeature::LookAround),
        &[("/a\n", found!("/a")), ("/b", None)],
    );
    check(r"a\Z", None, &[("a\n", found!("a"))]);
    check(r"a\z", None, &[("a\n", None), ("a", found!("a"))]);
    check(r"(?m)^", None, &[("\n", found!(""))]);
    check(r"(?m)b^", None, &[("b\n", None)]);
    check(
        r"(?m)a$",
        None,
        &[("a\nb", found!("a")), ("a\n", found!("a"))],
    );
}

#[test]
fn empty_iterations_leave_the_captures_that_pcre2_leaves() {
    check(
        r"^(a|)*",
        Some(IrregularFeature::EmptyIteration),
        &[("aab", found!("aa", ""))],
    );
    check(
        r"^(a*)*",
        Some(IrregularFeature::EmptyIteration),
        &[("b", found!("", "")), ("aa", found!("aa", ""))],
    );
    check(
        r"^(a*)+",
        Some(IrregularFeature::EmptyIteration),
        &[("aa", found!("aa", ""))],
    );
    check(
        r"^(a|){2}",
        None,
        &[("ab", found!("a", "")), ("aa", found!("aa", "a"))],
    );
    check(
        r"^(?:(a)|b)*$",
        None,
        &[("ab", found!("ab", "a")), ("b", found!("b", -))],
    );
    check(
        r"^(a){0}b",
        Some(IrregularFeature::NoIteration),
        &[("b", found!("b", -))],
    );
}

#[test]
fn a_reference_to_an_unset_group_does_not_match() {
    check(
        r"^(a)?\1b",
        Some(IrregularFeature::BackReference),
        &[("b", None), ("aab", found!("aab", "a"))],
    );
}

#[test]
fn classes_are_read_as_pcre2_reads_them() {
    check(r"^[[]$", None, &[("[", found!("["))]);
    check(r"^[]a]+$", None, &[("]a", found!("]a"))]);
    check(r"^[^]a]$", None, &[("b", found!("b")), ("]", None)]);
    check(
        r"(?x)^[a b] c$",
        None,
        &[(" c", found!(" c")), ("a c", None)],
    );
    check(r"(?xx)^[a b]$", None, &[(" ", None), ("b", found!("b"))]);
    check(r"^[\d-]$", None, &[("-", found!("-")), ("5", found!("5"))]);
    check(r"^[+--]+$", None, &[("+,-", found!("+,-"))]);
    check(
        r"^[[:alpha:][:^alnum:]]$",
        None,
        &[("a", found!("a")), ("-", found!("-")), ("1", None)],
    );
    check(r"~*^[[:upper:]]$", None, &[("a", found!("a"))]);
    check(
        r"^[[:^digit]$",
        None,
        &[("[", found!("[")), ("^", found!("^"))],
    );
    check(
        r"[[:<:]]a",
        Some(IrregularFeature::LookAround),
        &[("-a", found!("a"))],
    );
    check(
        "^[\\b\\101\\x42]+$",
        None,
        &[("\u{8}AB", found!("\\x08AB"))],
    );
}

#[test]
fn options_hold_until_their_group_ends() {
    check(
        r"^(a(?i)b|c)d$",
        None,
        &[
            ("aBd", found!("aBd", "aB")),
            ("Cd", found!("Cd", "C")),
            ("abD", None),
        ],
    );
    check(r"^(?U)a+(a*)", None, &[("aaa", found!("a", ""))]);
    check(r"(?n)(a)(?<b>c)", None, &[("ac", found!("ac", "c"))]);
    check(r"(?x) a b # c", None, &[("ab", found!("ab"))]);
    check(
        "(?s)a.b(?-s).c",
        None,
        &[("a\nb c", found!("a\\nb c")), ("a\nb\nc", None)],
    );
}

/// nginx's words: `ngx_regex_compile`.
#[test]
fn what_pcre2_refuses_is_refused_in_nginx_words() {
    let refusals = [
        (
            "a**",
            "quantifier does not follow a repeatable item in \"a**\" at \"*\"",
        ),
        (
            "(?<n>a)(?<n>b)",
            "two named subpatterns have the same name (PCRE2_DUPNAMES not set) in \"(?<n>a)(?<n>b)\" at \"b)\"",
        ),
        (
            "[a-\\d]",
            "invalid range in character class in \"[a-\\d]\" at \"]\"",
        ),
        ("a(", "missing closing parenthesis in \"a(\""),
        ("[a", "missing terminating ] for character class in \"[a\""),
        (
            "(*NONE)a",
            "(*VERB) not recognized or malformed in \"(*NONE)a\" at \")a\"",
        ),
        (
            "a{1000}{1000}",
            "quantifier does not follow a repeatable item in \"a{1000}{1000}\" at \"}\"",
        ),
    ];
    for (pattern, words) in refusals {
        let refusal = Pattern::new(pattern.as_bytes(), false)
            .unwrap_err()
            .to_string();
        assert_eq!(refusal, format!("pcre2_compile() failed: {words}"));
    }
    let refusal = Pattern::new(b"(?:(?:[ab]{999}){999}){999}", false)
        .unwrap_err()
        .to_string();
    assert!(
        refusal.contains("regular expression is too large"),
        "{refusal}"
    );
}

#[test]
fn an_automaton_that_would_be_too_large_is_none() {
    let text = "^(?:a{1000}){1000}$";
    let pattern = Pattern::new(text.as_bytes(), false).unwrap();
    assert_eq!(pattern.beyond(), Some(IrregularFeature::TooLarge));
    assert_eq!(pattern.is_match(b"aaa"), Ok(false));
}

#[test]
fn what_reaches_a_bound_is_undecided() {
    let subject = [b"a".repeat(40), b"!".to_vec()].concat();
    let steps = Pattern::new(br"^(?:(a+)b?)+c\1d\1$", false).unwrap();
    let fits_but_for_the_reference = [&b"a".repeat(40)[..], b"cadaa"].concat();
    assert_eq!(
        steps.is_match(&fits_but_for_the_reference),
        Err(Undecided { code: -47 })
    );
    // What the pattern would match if the group could be repeated with any of its texts is more,
    // and still not this.
    assert_eq!(steps.is_match(&subject), Ok(false));
    // Without the back-reference there is no bound to reach, with a line feed at the end neither.
    let with_line_feed = [&subject[..], b"\n"].concat();
    for text in ["^(a+)+$", "^(a+)+$(?!b)", "^(?:(a|aa|)*)*$(?<!!)"] {
        let linear = Pattern::new(text.as_bytes(), false).unwrap();
        for subject in [&subject, &with_line_feed] {
            assert_eq!(linear.is_match(subject), Ok(false), "{text}");
            let mut spans = Spans::default();
            assert_eq!(linear.captures(subject, &mut spans), Ok(false), "{text}");
        }
    }
    let memory = Pattern::new(b"^(?:(?>a)(a)|b)*$", false).unwrap();
    assert_eq!(
        memory.is_match(&b"a".repeat(200_000)),
        Err(Undecided { code: -63 })
    );
    // After that it still matches.
    assert_eq!(memory.is_match(b"aab"), Ok(true));
}

/// `regex-syntax` takes out what all branches begin with, which makes another match of it.
#[test]
fn branches_that_begin_alike_are_tried_one_after_the_other() {
    check(
        r".*a|.*b",
        None,
        &[("xaxb", found!("xa")), ("xb", found!("xb"))],
    );
    check(
        r"(a|ab)c|(a|ab)bc",
        None,
        &[
            ("abc", found!("abc", "ab", -)),
            ("abbc", found!("abbc", -, "ab")),
        ],
    );
    check(r"(?:\w+1|\w+2|\w+)-", None, &[("a2a1-", found!("a2a1-"))]);
    check(r"x(?:a*?b|a*?c)", None, &[("xaacb", found!("xaac"))]);
}

#[test]
fn look_around_captures_as_with_pcre2() {
    let around = Some(IrregularFeature::LookAround);
    check(
        r"^(?=(\w+))(?!admin)\w(?<=[^x])",
        around,
        &[("abc", found!("a", "abc")), ("admin", None), ("xbc", None)],
    );
    check(
        r"(?<!a|bb)c",
        around,
        &[("ac bbc bc", found!("c")), ("ac", None)],
    );
    check(
        r"(?=a(?!b))(a|.)*c$",
        around,
        &[("abac\n", found!("ac", "a"))],
    );
}

/// Each of them took from 10 to 150 ms with 2 KB.
#[test]
fn no_subject_makes_an_automaton_visit_too_many_states() {
    let letters = "a".repeat(2048);
    let fits = format!("/{}.html", format!("{}.", "a1".repeat(32)).repeat(31));
    let texts = [
        (r"^/([a-z0-9]{1,64}[-_.]?){1,40}\.html$", Ok(true)),
        (r"^/([a-z0-9]{1,64}[-_.]?){1,40}(\.html)?$", Ok(true)),
        (r"(a|b)*a(a|b){100}!", Ok(false)),
        (r"^(?:(?:a?){300}a{300})$", Ok(false)),
    ];
    for (text, expected) in texts {
        let pattern = Pattern::new(text.as_bytes(), false).unwrap();
        assert!(!pattern.automaton_decides(letters.as_bytes()), "{text}");
        assert!(pattern.automaton_decides(b"/a.html"), "{text}");
        let bits = pattern.bits().unwrap();
        assert!(bits.work() * letters.len() < 5_000_000, "{text}");
        assert_eq!(pattern.is_match(fits.as_bytes()), expected, "{text}");
        let mut spans = Spans::default();
        assert_eq!(
            pattern.captures(fits.as_bytes(), &mut spans),
            expected,
            "{text}"
        );
        let refused = format!("{letters}!.htm");
        assert_eq!(
            pattern.is_match(refused.as_bytes()),
            Ok(text.ends_with('!')),
            "{text}"
        );
    }
    // What is too large for bits is the automaton's, whatever the subject, and a text that is
    // missing ends it at once.
    let pattern = Pattern::new(b"(crawler[0-9]{1,60000}x)", true).unwrap();
    assert!(pattern.bits().is_none());
    assert_eq!(pattern.is_match(letters.as_bytes()), Ok(false));
    let long = format!("{letters} CRAWLER77X {letters}");
    assert!(!pattern.automaton_decides(long.as_bytes()));
    assert_eq!(
        groups(&pattern, long.as_bytes()).unwrap()[1].as_deref(),
        Some("CRAWLER77X")
    );
}

/// Each of them took from 12 to 330 ms with 2 KB, or reached a bound of steps.
#[test]
fn a_shorter_pattern_decides_where_counts_or_references_are_many() {
    let letters = "a".repeat(2048);
    let joined = [
        format!("{letters}!"),
        format!("b{letters}"),
        format!("/{letters}!ab"),
        format!("/{letters}b"),
    ];
    // Worked out by hand; nginx says the same, where it does not reach its own bound.
    let texts = [
        ("((((a{1,8}){1,8}){1,8}){1,8})b", [false, false, true, true]),
        (
            "^((((a{1,8}){1,8}){1,8}){1,8})b",
            [false, false, false, false],
        ),
        (
            "^/((((a{1,8}){1,8}){1,8}){1,8})b",
            [false, false, false, true],
        ),
        (
            "^/((((a{1,8}x?){1,8}){1,8}){1,8})b",
            [false, false, false, true],
        ),
        (r"^/(a+)\1+b$", [false, false, false, true]),
        (r"^/(?>(a+))b$", [false, false, false, true]),
        (r"^/(?:a|aa)++(?=(a?))\1b$", [false, false, false, true]),
        (r"(\pL+\s*)+\d$", [false, false, false, false]),
    ];
    for (text, expected) in texts {
        let pattern = Pattern::new(text.as_bytes(), false).unwrap();
        for (subject, expected) in joined.iter().zip(expected) {
            let begins = subject.get(..4).unwrap();
            assert_eq!(
                pattern.is_match(subject.as_bytes()),
                Ok(expected),
                "{text} on {begins}"
            );
            let mut spans = Spans::default();
            let found = pattern.captures(subject.as_bytes(), &mut spans);
            assert_eq!(found, Ok(expected), "{text} on {begins}");
            if expected {
                assert_eq!(spans.get(0).map(|all| all.end), Some(subject.len()));
            }
            // What decides is bounded, and is not the automaton that visits each state.
            if pattern.bits().is_none() {
                let answer = pattern.answer(subject.as_bytes());
                let lacks = pattern.lacks_texts(&OnceLock::new(), subject.as_bytes());
                assert!(
                    lacks || expected || answer == MatchDecision::No,
                    "{text} on {begins}"
                );
            }
        }
    }
}

#[test]
fn repetitions_of_repetitions_are_one_where_no_number_is_left_out() {
    let reduced = |text: &str| {
        let verdict = Verdict::new(text.as_bytes(), false).unwrap();
        verdict.work()
    };
    for (nested, flat) in [
        ("^(?:a{1,8}){1,8}b", "^a{1,64}b"),
        ("^(?:a{2}){3}b", "^a{6}b"),
        ("^(?:(?:a?){3})+b", "^a*b"),
        ("^(?:a+){3,5}b", "^a{3,}b"),
        ("^b(?:a{3,4}){6,}c?", "^ba{18}"),
    ] {
        assert_eq!(reduced(nested), reduced(flat), "{nested}");
    }
    // Two or four, but not three.
    for (text, subject, expected) in [
        ("^(?:a{2}){1,2}b", "aaab", false),
        ("^(?:a{2}){1,2}b", "aaaab", true),
        ("^(?:a{3,4}){2,3}b", "aaaaab", false),
        ("^(?:a{3,4}){2,3}b", "aaaaaaaaab", true),
        ("^(?:a{2,}){0,1}b", "ab", false),
    ] {
        let verdict = Verdict::new(text.as_bytes(), false).unwrap();
        let answer = verdict.answer(subject.as_bytes());
        assert_eq!(answer != MatchDecision::No, expected, "{text} on {subject}");
    }
}

/// The first pattern of a list that matches, with which it was asked about.
fn first(list: &[&str], subject: &[u8]) -> (Option<usize>, Vec<usize>) {
    let patterns: Vec<Pattern> = list
        .iter()
        .map(|text| match text.strip_prefix('*') {
            Some(text) => Pattern::deferred(text.as_bytes(), true).unwrap(),
            None => Pattern::deferred(text.as_bytes(), false).unwrap(),
        })
        .collect();
    let mut asked = Vec::new();
    let prefilter = Prefilter::new(&patterns);
    let found = prefilter.first(subject, |number, hit| match hit {
        Hit::Candidate => {
            asked.push(number);
            patterns[number].is_match(subject)
        }
        Hit::Match => Ok(true),
    });
    (found.unwrap(), asked)
}

#[test]
fn the_first_pattern_of_a_list_wins_and_few_are_asked() {
    let mut list = vec![
        r"*(?:\b)semalt\.com(?:\b)",
        r"Semalt",
        r"*\bbot\b",
        r"*(crawl|spider).*x",
        r"^[0-9]{4,}$",
        r"*é",
        r"*(?:\b)buttons\.com(?:\b)",
        r"(?i)sem(?-i)alt",
        r"alt\.com$",
    ];
    let numbered: Vec<String> = (0..300)
        .map(|number| format!("*\\bname{number}\\.com\\b"))
        .collect();
    let length_max = list.len() + numbered.len();
    // A short list, of which each pattern is compiled, and a long one.
    for _ in 0..2 {
        for (subject, expected, asked) in [
            (&b"http://Semalt.COM/"[..], Some(0), vec![]),
            (b"http://xSemalt.COM/", Some(1), vec![]),
            (b"xsemalt.comx", Some(7), vec![4, 7]),
            (b"xsEmalt.com", Some(7), vec![4, 7]),
            (b"xsemAlt.com", None, vec![4, 7]),
            (b"a BOT b", Some(2), vec![]),
            (b"robot", None, vec![4]),
            (b"SPIDER-a", None, vec![3, 4]),
            (b"SPIDER-x", Some(3), vec![3]),
            (b"12345", Some(4), vec![4]),
            ("é".as_bytes(), Some(5), vec![4]),
            ("É".as_bytes(), None, vec![4]),
            (b"\xc3\xff\xc3\xa9", Some(5), vec![4]),
            (b"crawl Buttons.com", Some(6), vec![3, 4]),
            (b"", None, vec![4]),
        ] {
            assert_eq!(
                first(&list, subject),
                (expected, asked),
                "{}",
                subject.escape_ascii()
            );
        }
        if list.len() < length_max {
            list.extend(numbered.iter().map(String::as_str));
        }
    }
    assert_eq!(first(&list, b"http://name299.com/").0, Some(list.len() - 1));
}

#[test]
fn bytes_that_are_not_utf_8_stand_for_themselves() {
    let cases: [(&[u8], &[u8], bool); 7] = [
        (b"^\xff+$", b"\xff\xff", true),
        (b"^[\x80-\xff]$", b"\x90", true),
        (b"^\\\xff$", b"\xff", true),
        (b"^\\\\\xff$", b"\\\xff", true),
        (b"^\\Q\xff.\\E$", b"\xff.", true),
        (b"^\\Q\\\xff\\E$", b"\\\xff", true),
        (b"^\\Q\\\xff\\E$", b"\xff", false),
    ];
    for (text, subject, expected) in cases {
        let pattern = Pattern::new(text, false).unwrap();
        assert_eq!(
            pattern.is_match(subject),
            Ok(expected),
            "{}",
            text.escape_ascii()
        );
    }
}

#[test]
fn names_have_their_numbers() {
    let pattern = Pattern::new(br"(a)(?<first>b)(?P<second>c)(?'third'd)", false).unwrap();
    assert_eq!(pattern.groups(), 5);
    let names =
        [(2, "first"), (3, "second"), (4, "third")].map(|(group, name)| (group, name.to_owned()));
    assert_eq!(pattern.names(), names);
}

/// The fuzz target `pattern_pcre2` does the same for as long as it may.
#[test]
fn patterns_made_at_random_match_as_pcre2_does() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let (mut same, mut lists) = (0, 0);
    for _ in 0..1500 {
        let bytes: Vec<u8> = (0..20).flat_map(|_| next()).collect();
        let made_of_more: Vec<u8> = (0..64).flat_map(|_| next()).collect();
        let (made_of, subject_of) = bytes.split_at(96);
        let mut source = Source::new(made_of);
        let (caseless, pattern) = (source.caseless(), source.pattern());
        let subject = Source::new(subject_of).subject();
        let compared = compare_list(&Source::new(&made_of_more).list(), &subject);
        lists += usize::from(
            compared.unwrap_or_else(|difference| panic!("{difference}")) == ComparisonOutcome::Same,
        );
        for end in [0, 1, 3, 8, subject.len()] {
            let compared = compare(&pattern, caseless, &subject[..end.min(subject.len())]);
            same += usize::from(
                compared.unwrap_or_else(|difference| panic!("{difference}"))
                    == ComparisonOutcome::Same,
            );
        }
    }
    assert!(same > 3500, "only {same} comparisons");
    assert!(lists > 1300, "only {lists} lists");
}

#[test]
fn a_pattern_may_tell_every_byte_from_every_other() {
    let each: String = (0..=u8::MAX).map(|byte| format!("\\x{byte:02x}")).collect();
    let pattern = Pattern::deferred(each.as_bytes(), false).unwrap();
    let all: Vec<u8> = (0..=u8::MAX).collect();
    assert_eq!(pattern.is_match(&all), Ok(true));
    assert!(matches!(pattern.engine.get(), Some(Engine::Bits)));
    assert_eq!(pattern.is_match(&all[1..]), Ok(false));
}
