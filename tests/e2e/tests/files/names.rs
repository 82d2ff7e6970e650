//! Names: what a file may be called is taken by every route, and shown as it is.

use sandkasten_e2e::Lab;
use sandkasten_e2e::session::{decode, encode};
use serde_json::{Value, json};

use crate::routes::path_query;
use crate::{Files, Workspace};

/// A file of this name in a directory of this name, by all routes that the daemon has.
#[track_caller]
fn round_trip(name: &[u8]) {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "names");
    let session = workspace.session();
    for files in [Files::of(&session), workspace.files()] {
        let path = [name, b"/", name].concat();
        write(&files, &path, b"first");
        assert_eq!(read(&files, &path), b"first");
        // The shell finds it by its bytes.
        assert_eq!(session.run(&format!("cat -- \"$(printf {})\"", octal(&path))), "first");
        let above = [b"/workspace/", name].concat();
        let stored = if files.base.contains("workspaces") { name.to_vec() } else { above };
        let listing = listing(&files, &stored);
        let entries = listing["entries"].as_array().cloned().unwrap_or_default();
        assert_eq!(entries.len(), 1, "{listing}");
        shows(&entries[0], name);
        for route in files.routes() {
            if route.only_looks() && !["/glob", "/grep"].contains(&route.rest) {
                let answer = route.ask(&files, &path);
                let is_file = !["", "/list", "/archive", "/watch"].contains(&route.rest);
                assert_eq!(
                    answer.status() == 200,
                    is_file || answer.status() == 200,
                    "{route}: {answer}"
                );
                assert!(!is_file || answer.status() == 200, "{route}: {answer}");
            }
        }
        changes(&files, &path);
        let all = octal(name);
        session.run(&format!("rm -r -- \"$(printf {all})\""));
    }
}

/// Writes over, moves, copies and removes by the routes that are there.
#[track_caller]
fn changes(files: &Files<'_>, path: &[u8]) {
    let there = |method: &str, rest: &str| files.has(method, rest);
    let client = &files.lab.client;
    let post = |rest: &str, body: &Value| client.post(&files.url(rest), body);
    if there("PUT", "/file") {
        let target = files.url(&format!("/file?{}", path_query(path)));
        let put = client.request("PUT", &target).body("second").send();
        assert!([200, 201, 204].contains(&put.status()), "{put}");
        assert_eq!(read(files, path), b"second");
    }
    if there("POST", "/edit") {
        let mut body = named("path", path);
        body["edits"] = json!([{ "old": "second", "new": "third" }]);
        post("/edit", &body).ok(200);
        assert_eq!(read(files, path), b"third");
    }
    let other = [path, b"2"].concat();
    // A name of 255 bytes has no room for one more.
    let other = if path.split(|byte| *byte == b'/').any(|name| name.len() > 254) {
        b"2".to_vec()
    } else {
        other
    };
    for rest in ["/copy", "/move"] {
        if there("POST", rest) {
            let (mut body, to) = (named("from", path), named("to", &other));
            body.as_object_mut()
                .expect("an object")
                .extend(to.as_object().cloned().unwrap_or_default());
            body["overwrite"] = json!(true);
            assert_eq!(post(rest, &body).ok(200), json!({ "ok": true }));
            read(files, &other);
        }
    }
    if there("DELETE", "/file") {
        let gone = files.url(&format!("/file?{}", path_query(&other)));
        assert!([200, 204, 404].contains(&client.delete(&gone).status()));
    }
}

fn named(field: &str, path: &[u8]) -> Value {
    match std::str::from_utf8(path) {
        Ok(text) => json!({ field: text }),
        Err(_) => json!({ format!("{field}_base64"): encode(path) }),
    }
}

#[track_caller]
fn write(files: &Files<'_>, path: &[u8], bytes: &[u8]) {
    let mut body = named("path", path);
    body["content_base64"] = json!(encode(bytes));
    let answer = files.lab.client.post(&files.url("/write"), &body);
    assert_eq!(answer.ok(200), json!({ "ok": true }));
}

#[track_caller]
fn read(files: &Files<'_>, path: &[u8]) -> Vec<u8> {
    let answer = files.lab.client.get(&files.url(&format!("/read?{}", path_query(path))));
    decode(&answer.ok(200)["content_base64"])
}

#[track_caller]
fn listing(files: &Files<'_>, path: &[u8]) -> Value {
    let rest = if files.base.contains("workspaces") { "" } else { "/list" };
    files.lab.client.get(&files.url(&format!("{rest}?{}", path_query(path)))).ok(200)
}

/// An entry has the name as it is; in base64 too where it is not UTF-8.
#[track_caller]
fn shows(entry: &Value, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => {
            assert_eq!(entry["name"], text, "{entry}");
            assert_eq!(entry["name_base64"], Value::Null, "{entry}");
        }
        Err(_) => {
            assert_eq!(decode(&entry["name_base64"]), name, "{entry}");
            assert_eq!(entry["name"], String::from_utf8_lossy(name).as_ref(), "{entry}");
        }
    }
}

/// Bytes as a quoted word for printf.
fn octal(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("'{escaped}'")
}

macro_rules! names {
    ($($name:ident: $bytes:expr;)+) => {
        mod named {
            $(
                #[test]
                fn $name() {
                    super::round_trip($bytes);
                }
            )+
        }
    };
}

names! {
    plain: b"plain";
    space: b"a b";
    spaces_around: b" a ";
    tab: b"a\tb";
    newline: b"a\nb";
    carriage_return: b"a\rb";
    single_quote: b"it's";
    double_quote: b"say \"hi\"";
    backslash: b"a\\b";
    dash_first: b"-rf";
    two_dashes: b"--";
    dot_first: b".hidden";
    three_dots: b"...";
    dollar_and_backtick: b"$(x) `y`";
    star: b"*";
    question_mark: b"a?b=c&d";
    hash: b"a#b";
    percent: b"100%25";
    plus: b"a+b";
    semicolon: b"a;b";
    brackets: b"[a]{b}";
    umlaut: "über".as_bytes();
    decomposed: "u\u{308}ber".as_bytes();
    japanese: "日本語".as_bytes();
    family: "👩‍👩‍👧".as_bytes();
    right_to_left: "\u{202e}abc".as_bytes();
    line_separator: "a\u{2028}b".as_bytes();
    escape: b"a\x1b[31mb";
    control: b"a\x01\x7fb";
    byte_order_mark: b"\xef\xbb\xbfa";
    latin_1: b"\xfcber";
    half_a_character: b"a\xe6\x97";
    surrogate: b"a\xed\xa0\x80b";
    every_high_byte: b"\x80\x81\xfe\xff";
    longest: &[b'n'; 255];
    longest_in_unicode: "ü".repeat(127).as_bytes();
    longest_not_utf8: &[0xff; 255];
}
