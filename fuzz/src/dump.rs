//! The dump of a shell's state, which the payload writes, and what a new shell is made to load of it.
//!
//! Holds: any bytes, cut anyhow, are a whole dump behind the same byte; the text that is loaded is no
//! longer than a small multiple of the dump; and outside of quotes it says what init says: lines of a
//! few known beginnings, with none of the characters by which more could be begun.

use std::io::Read as _;

use sandkasten_protocol::Shell;

use crate::cuts::pieces;
use crate::state::{Dump, Marks, Saved, Store};

/// Bytes that init's own words take at most.
const OWN_BYTES_MAX: usize = 4096;

/// # Panics
/// Where a property does not hold.
pub fn load(input: &[u8]) {
    let (parts, whole) = pieces(input);
    assert_eq!(end(&parts), end(&[whole]), "whole behind another byte");
    let mut first = whole.splitn(2, |&byte| byte == b'\n');
    let name = first.next().unwrap_or_default().to_vec();
    for kind in [Shell::Bash, Shell::Sh] {
        let mut text = Store::new();
        for part in &parts {
            text.push(None, part).expect("memory");
        }
        assert_eq!(text.len(), whole.len());
        let mut saved = Saved::new(b"/".to_vec(), None, vec![name.clone()]);
        let mut marks = Marks::default();
        marks.pass(whole);
        saved.keep(Dump::new(kind, text, &marks));
        let file = saved.load_file(kind).expect("a memfd").expect("a dump");
        let mut loaded = Vec::new();
        std::fs::File::from(file).read_to_end(&mut loaded).expect("read a memfd");
        let most = 16 * whole.len() + OWN_BYTES_MAX;
        assert!(loaded.len() <= most, "{} bytes of {}", loaded.len(), whole.len());
        says_nothing_else(kind, &loaded);
    }
}

/// Behind which byte a dump is whole.
fn end(parts: &[&[u8]]) -> Option<usize> {
    let mut marks = Marks::default();
    let mut before = 0;
    for part in parts {
        // init looks at what it has read as a whole; to the byte, so that every cut can be compared.
        for (at, byte) in part.iter().enumerate() {
            if marks.pass(std::slice::from_ref(byte)) {
                return Some(before + at + 1);
            }
        }
        before += part.len();
    }
    None
}

const BASH: [&str; 16] = [
    "\\builtin test \"${1-}\" = variables && {",
    "\\builtin shopt -u ${BASHOPTS//:/ }",
    "\\builtin unset -v ",
    "\\builtin eval Q",
    "LINENO=2",
    "SECONDS=0",
    "RANDOM=$BASHPID",
    "[[ -z ${PWD-} || $PWD -ef . ]] || \\builtin cd .",
    "\\builtin return; }",
    "\\builtin umask ",
    "\\builtin set ",
    "\\builtin shopt ",
    "\\builtin declare -f",
    "POSIXLY_CORRECT=1",
    "\\unset -f builtin command eval printf exec",
    "\\unset -v POSIXLY_CORRECT",
];

const SH: [&str; 9] = [
    "\\command unset IFS OLDPWD PS1 PS2 PS4",
    "\\command set -- \"$PPID\" \"$PWD\"",
    "\\command eval Q",
    "PPID=$1",
    "\\command test -z \"${PWD-}\" || \\command test \"$PWD\" -ef . || PWD=$2",
    "\\command set --",
    "\\command umask ",
    "\\command set ",
    "\\command eval Q || \\command :",
];

fn says_nothing_else(kind: Shell, loaded: &[u8]) {
    let known: &[&str] = match kind {
        Shell::Bash => &BASH,
        Shell::Sh => &SH,
    };
    let bare = unquoted(loaded);
    for line in bare.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let text = String::from_utf8(line.to_vec()).expect("bytes of the dump outside of quotes");
        let begin = known.iter().filter(|begin| text.starts_with(**begin)).max_by_key(|b| b.len());
        let begin = begin.unwrap_or_else(|| panic!("a line of another's: {text:?}"));
        let rest = text[begin.len()..].strip_suffix(" || \\builtin :");
        let rest = rest.unwrap_or(&text[begin.len()..]);
        let harmless = |c: char| c.is_ascii_alphanumeric() || " _+-".contains(c);
        assert!(rest.chars().all(harmless), "more than words: {text:?}");
    }
}

/// The text with a Q in the place of each quoted word.
fn unquoted(text: &[u8]) -> Vec<u8> {
    let mut bare: Vec<u8> = Vec::new();
    let mut bytes = text.iter();
    let mut is_in_word = false;
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\'' => {
                assert!(bytes.any(|&byte| byte == b'\''), "a quote that stays open");
                if !is_in_word {
                    bare.push(b'Q');
                }
                is_in_word = true;
            }
            // Between two quoted parts: a quote of the text's own.
            b'\\' if bytes.as_slice().first() == Some(&b'\'') => {
                bytes.next();
            }
            _ => {
                is_in_word = false;
                bare.push(byte);
            }
        }
    }
    bare
}
