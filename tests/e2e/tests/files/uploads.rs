//! F-13: names and numbers of what is uploaded.

use std::time::Duration;

use sandkasten_e2e::Lab;

use crate::{Files, Workspace, form_part};

/// A name that is no file's.
#[track_caller]
fn refused(name: &str) {
    everywhere(|files| {
        files.upload("up", name, b"x").error(400, "INVALID_PATH");
    });
}

/// A name that is stored as `want`, or as it is.
#[track_caller]
fn stored(name: &str, want: &str) {
    everywhere(|files| {
        let answer = files.upload("up", name, b"x").ok(200);
        let path = answer["paths"][0].as_str().unwrap_or_default().to_owned();
        assert!(path.ends_with(&format!("up/{want}")), "{answer}");
        assert_eq!(files.get(&path), b"x");
    });
}

fn everywhere(act: impl Fn(&Files<'_>)) {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f13");
    let session = workspace.session();
    for files in [Files::of(&session), workspace.files()] {
        act(&files);
        session.run("rm -rf up");
    }
    // Nothing stands beside the target directory.
    assert_eq!(session.run("ls -A /workspace"), "");
    session.alive();
}

macro_rules! names {
    ($($name:ident: $text:expr $(=> $want:expr)?;)+) => {
        mod f_13 {
            $(
                #[test]
                fn $name() {
                    crate::uploads::row!($text $(, $want)?);
                }
            )+
        }
    };
}

macro_rules! row {
    ($text:expr) => {
        super::refused($text)
    };
    ($text:expr, $want:expr) => {
        super::stored($text, $want)
    };
}

use row;

names! {
    parents: "../../x";
    one_parent: "..";
    this: ".";
    nothing: "";
    below: "a/b";
    absolute: "/etc/evil";
    slash_at_the_end: "a/";
    three_hundred_bytes: &"n".repeat(300);
    nul: "a\0b";
    longest: &"n".repeat(255) => &"n".repeat(255);
    dots: "..." => "...";
    dash: "-rf" => "-rf";
    spaces: " a b " => " a b ";
    umlaut: "ü.txt" => "ü.txt";
    quote: "a%22b" => "a\"b";
    newline: "a%0Ab" => "a\nb";
    percent: "a%41b" => "a%41b";
    backslashes: "..\\\\..\\\\x" => "..\\..\\x";
    tilde: "~" => "~";
    dollar: "$(touch pwned)" => "$(touch pwned)";
}

#[test]
fn f_13_a_hundred_thousand_parts() {
    let file = |number: usize| form_part(&format!("name=\"files\"; filename=\"{number}\""), b"");
    let field = |number: usize| form_part(&format!("name=\"x{number}\""), b"");
    let parts: [(&dyn Fn(usize) -> Vec<u8>, _); 2] =
        [(&file, (413, "TOO_LARGE")), (&field, (400, "INVALID_REQUEST"))];
    for (part, (status, code)) in parts {
        let mut body = form_part("name=\"path\"", b"up");
        (0..100_000).for_each(|number| body.extend(part(number)));
        body.extend_from_slice(b"--b--\r\n");
        everywhere(|files| {
            let answer = files.form(body.clone());
            answer.error(status, code);
            assert!(answer.took < Duration::from_secs(10), "{answer}");
            files.read("up/0").error(404, "FILE_NOT_FOUND");
        });
    }
}

/// One file too many, or one byte: nothing of the form is stored.
#[test]
fn f_13_all_or_nothing() {
    let form = |files: usize, bytes: usize| {
        let mut body = form_part("name=\"path\"", b"up");
        for number in 0..files {
            body.extend(form_part(
                &format!("name=\"files\"; filename=\"{number}\""),
                &vec![b'x'; bytes],
            ));
        }
        body.extend_from_slice(b"--b--\r\n");
        body
    };
    everywhere(|files| {
        files.form(form(101, 1)).error(413, "TOO_LARGE");
        files.form(form(2, (5 << 20) + 1)).error(413, "TOO_LARGE");
        files.read("up/0").error(404, "FILE_NOT_FOUND");
        assert_eq!(files.form(form(100, 1)).ok(200)["paths"].as_array().map(Vec::len), Some(100));
        files.form(form(2, 5 << 20)).ok(200);
    });
}
