//! `GET …/fs/list`: every kind of entry, names that are bytes, and rights.

use sandkasten_e2e::Lab;
use serde_json::{Value, json};

fn find<'a>(listing: &'a Value, name: &str) -> &'a Value {
    let entries = listing["entries"].as_array().expect("entries");
    entries
        .iter()
        .find(|entry| entry["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {listing}"))
}

#[test]
fn every_kind_of_entry_is_listed_as_it_is() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "python" }));
    let made = session.exec(
        "mkdir d && cd d && printf abc > f && chmod 640 f && mkdir sub && ln -s /etc/passwd link && \
         ln -s nowhere dangling && mkfifo fifo && touch \"$(printf 'a\\nb')\" \"$(printf 'x\\377y')\" && cd ..",
    );
    assert_eq!(made.code(), 0, "{}", made.body);
    let listing = session.request("GET", "/fs/list?path=d").send().ok(200);
    assert_eq!((&listing["path"], &listing["truncated"]), (&json!("/workspace/d"), &json!(false)));
    let names: Vec<&str> = listing["entries"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["name"].as_str())
        .collect();
    assert_eq!(names, ["a\nb", "dangling", "f", "fifo", "link", "sub", "x\u{fffd}y"]);
    let file = find(&listing, "f");
    assert_eq!(file["path"], "/workspace/d/f");
    assert_eq!(
        (&file["type"], &file["size"], &file["mode"]),
        (&json!("file"), &json!(3), &json!("0640"))
    );
    assert_eq!((&file["uid"], &file["gid"]), (&json!(1000), &json!(1000)));
    let link = find(&listing, "link");
    assert_eq!((&link["type"], &link["target"]), (&json!("symlink"), &json!("/etc/passwd")));
    assert_eq!(find(&listing, "fifo")["type"], "fifo");
    assert_eq!(find(&listing, "sub")["type"], "dir");
    assert_eq!(find(&listing, "x\u{fffd}y")["name_base64"], "eP95");
    let root = session.request("GET", "/fs/list?path=/").send().ok(200);
    assert_eq!(find(&root, "etc")["path"], "/etc");
    assert_eq!(
        (&find(&root, "etc")["uid"], &find(&root, "etc")["type"]),
        (&json!(0), &json!("dir"))
    );
}

#[test]
fn rights_count_and_nothing_waits() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "python" }));
    let made = session.exec("mkdir shut half && touch half/f && chmod 000 shut && chmod 444 half; ln -s /proc/1/root out; ln -s loop loop");
    assert_eq!(made.code(), 0, "{}", made.body);
    for path in ["shut", "half", "/root", "/proc/1/fd", "/proc"] {
        let answer = session.request("GET", &format!("/fs/list?path={path}")).send();
        answer.error(403, "PERMISSION_DENIED");
    }
    session.request("GET", "/fs/list?path=loop").send().error(400, "INVALID_PATH");
    // As for any process of the user's: the way into init's root is closed.
    session.request("GET", "/fs/list?path=out").send().error(403, "PERMISSION_DENIED");
    let root = session.request("GET", "/fs/list?path=half&user=root").send().ok(200);
    assert_eq!(find(&root, "f")["uid"], 1000);
}
