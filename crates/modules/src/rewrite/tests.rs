//! Parsing of directives; the expected errors are those of `nginx -t`.

use conf::TemplatePart;

use super::condition::ConditionTokens;
use super::condition::FileTest;
use super::*;

fn word(text: &str) -> Word {
    Word {
        bytes: text.as_bytes().into(),
        ..Word::default()
    }
}

/// A directive from words that are separated by single spaces.
fn line(text: &str) -> Line {
    let mut words = text.split(' ').map(word);
    let mut line = Line::default();
    line.name = words.next().unwrap();
    line.args = words.collect();
    line
}

fn show(template: &Template) -> String {
    let show = |part: &TemplatePart| match part {
        TemplatePart::Literal(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        TemplatePart::Variable(name) => format!("<{name}>"),
        TemplatePart::Capture(number) => format!("<{number}>"),
    };
    template.parts.iter().map(show).collect()
}

fn rewrite(text: &str) -> Result<(String, Option<String>, bool, Flag), String> {
    let line = line(text);
    let parts = replacement(&line).map_err(|fault| fault.message.to_string())?;
    let (path, args) = match parts.flag {
        Flag::Redirect(_) => (parts.template, None),
        _ => split_at_question_mark(parts.template),
    };
    Ok((
        show(&path),
        args.as_ref().map(show),
        parts.keep_args,
        parts.flag,
    ))
}

#[test]
fn rewrites_are_taken_apart() {
    let ok = |path: &str, args: Option<&str>, keep_args, flag| {
        Ok((path.to_owned(), args.map(str::to_owned), keep_args, flag))
    };
    assert_eq!(rewrite("rewrite ^ /a"), ok("/a", None, true, Flag::None));
    assert_eq!(
        rewrite("rewrite ^ /a? last"),
        ok("/a", None, false, Flag::Last)
    );
    assert_eq!(
        rewrite("rewrite ^ /$1?b=$2?c break"),
        ok("/<1>", Some("b=<2>?c"), true, Flag::Break)
    );
    assert_eq!(
        rewrite("rewrite ^ $a?$b"),
        ok("<a>", Some("<b>"), true, Flag::None)
    );
    assert_eq!(
        rewrite("rewrite ^ /a?b?"),
        ok("/a", Some("b"), false, Flag::None)
    );
    assert_eq!(rewrite("rewrite ^ ?"), ok("", None, false, Flag::None));
    assert_eq!(
        rewrite("rewrite ^ /a?b redirect"),
        ok("/a?b", None, true, Flag::Redirect(302))
    );
    assert_eq!(
        rewrite("rewrite ^ /a permanent"),
        ok("/a", None, true, Flag::Redirect(301))
    );
    assert_eq!(
        rewrite("rewrite ^ http://a/?b"),
        ok("http://a/?b", None, true, Flag::Redirect(302))
    );
    assert_eq!(
        rewrite("rewrite ^ $scheme://a break"),
        ok("<scheme>://a", None, true, Flag::Redirect(302))
    );
    assert_eq!(
        rewrite("rewrite ^ https://a permanent"),
        ok("https://a", None, true, Flag::Redirect(301))
    );
    assert_eq!(
        rewrite("rewrite ^ /a onward"),
        Err("invalid parameter \"onward\"".to_owned())
    );
    assert_eq!(rewrite("rewrite ^ "), Err("empty replacement".to_owned()));
}

#[test]
fn returns_are_taken_apart() {
    let parse = |text: &str| {
        answer(&line(text))
            .map(|(status, text)| (status, show(&text)))
            .map_err(|fault| fault.message.to_string())
    };
    assert_eq!(parse("return 404"), Ok((404, String::new())));
    assert_eq!(parse("return 200 $uri"), Ok((200, "<uri>".to_owned())));
    assert_eq!(
        parse("return http://a$uri"),
        Ok((302, "http://a<uri>".to_owned()))
    );
    assert_eq!(parse("return 999"), Ok((999, String::new())));
    for wrong in ["1000", "-1", "+1", "20x", "/a", "ftp://a"] {
        let error = format!("invalid return code \"{wrong}\"");
        assert_eq!(parse(&format!("return {wrong}")), Err(error));
    }
    let error = "invalid return code \"http://a\"".to_owned();
    assert_eq!(parse("return http://a text"), Err(error));
}

fn condition(text: &str) -> Result<String, String> {
    let line = line(text);
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let parsed = ConditionTokens::new(&line.args).map_err(|fault| fault.message.to_string())?;
    Ok(match parsed {
        ConditionTokens::True(name) => format!("true {name}"),
        ConditionTokens::Equal {
            name,
            value,
            negated,
            ..
        } => format!("equal {name} {} {negated}", shown(value)),
        ConditionTokens::Matches {
            name,
            pattern,
            caseless,
            negated,
            ..
        } => {
            format!("matches {name} {} {caseless} {negated}", shown(pattern))
        }
        ConditionTokens::File {
            path,
            test,
            negated,
            ..
        } => {
            let test = match test {
                FileTest::Plain => "plain",
                FileTest::Directory => "directory",
                FileTest::Exists => "exists",
                FileTest::Executable => "executable",
            };
            format!("{test} {} {negated}", shown(path))
        }
    })
}

#[test]
fn conditions_are_taken_apart() {
    for (text, meaning) in [
        ("if ($a)", "true a"),
        ("if ( $a )", "true a"),
        ("if ($a = b)", "equal a b false"),
        ("if ( $a = b )", "equal a b false"),
        ("if ($a != b)", "equal a b true"),
        ("if ($a ~ (x|y))", "matches a (x|y) false false"),
        ("if ($a ~* x)", "matches a x true false"),
        ("if ($a !~ x )", "matches a x false true"),
        ("if ($a !~* x)", "matches a x true true"),
        ("if (-f /x)", "plain /x false"),
        ("if (!-d /x)", "directory /x true"),
        ("if (-e /x)", "exists /x false"),
        ("if (!-x $f)", "executable $f true"),
    ] {
        assert_eq!(condition(text).as_deref(), Ok(meaning), "{text}");
    }
    for (text, error) in [
        ("if $a", "invalid condition \"$a\""),
        ("if ($a", "invalid condition \"$a\""),
        ("if ($a = b", "invalid condition \"b\""),
        ("if ($a =)", "invalid condition \"$a\""),
        ("if ($a == b)", "unexpected \"==\" in condition"),
        ("if (a = b)", "invalid condition \"a\""),
        ("if ()", "invalid condition \")\""),
        ("if ( )", "invalid condition \")\""),
        ("if (", "invalid condition \"(\""),
        ("if (-z b)", "invalid condition \"-z\""),
        ("if (-f a b)", "invalid condition \"-f\""),
    ] {
        assert_eq!(condition(text), Err(error.to_owned()), "{text}");
    }
}
