//! The reader of PCRE2's syntax takes any bytes without a panic, and what it reads has as many
//! groups as it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pattern::ast::Ast;
use pattern::parser::parse;

fuzz_target!(|input: (bool, &[u8])| {
    let (caseless, text) = input;
    if let Ok(parsed) = parse(text, caseless) {
        assert_eq!(groups(&parsed.ast), parsed.groups);
    }
});

fn groups(ast: &Ast) -> u32 {
    match ast {
        Ast::Byte(_) | Ast::Look(_) | Ast::ResetStart => 0,
        Ast::Capture { inner, .. } => 1 + groups(inner),
        Ast::Concat(all) | Ast::Branches(all) => all.iter().map(groups).sum(),
        Ast::Repeat { inner, .. } | Ast::Around { inner, .. } => groups(inner),
    }
}
