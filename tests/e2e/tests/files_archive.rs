//! Archives out of sessions and workspaces and into them: against GNU tar and Python's tarfile, against
//! hostile archives, and of a workspace that a session writes in meanwhile.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::session::escape;
use sandkasten_e2e::{Lab, Session, host};
use serde_json::{Value, json};

/// Files of a session or of a workspace.
struct Files<'a> {
    lab: &'a Lab,
    base: String,
}

impl<'a> Files<'a> {
    fn of(session: &Session<'a>) -> Self {
        Self { lab: session.lab, base: session.path("") }
    }

    fn in_workspace(lab: &'a Lab, id: &str) -> Self {
        Self { lab, base: format!("/v1/workspaces/{id}") }
    }

    fn url(&self, path: &str, more: &str) -> String {
        format!("{}/fs/archive?path={}{more}", self.base, escape(path))
    }

    fn pack(&self, path: &str) -> Answer {
        self.lab.client.get(&self.url(path, ""))
    }

    #[track_caller]
    fn packed(&self, path: &str) -> Vec<u8> {
        let answer = self.pack(path);
        assert_eq!(answer.status(), 200, "{answer}");
        assert_eq!(answer.header("Content-Type"), Some("application/x-tar"));
        answer.body
    }

    fn unpack(&self, path: &str, archive: Vec<u8>) -> Answer {
        self.unpack_as(path, "", "application/x-tar", archive)
    }

    fn unpack_as(&self, path: &str, more: &str, kind: &str, archive: Vec<u8>) -> Answer {
        let request = self.lab.client.request("PUT", &self.url(path, more));
        request.header("Content-Type", kind).body(archive).send()
    }

    /// Unpacks what has to be taken; gives the number of entries.
    #[track_caller]
    fn unpacked(&self, path: &str, archive: Vec<u8>) -> u64 {
        let body = self.unpack(path, archive).ok(200);
        assert_eq!(body["ok"], true, "{body}");
        body["entries"].as_u64().expect("a count")
    }
}

/// A workspace that a test has for itself, removed at its end.
struct Workspace<'a> {
    lab: &'a Lab,
    id: String,
}

impl<'a> Workspace<'a> {
    fn new(lab: &'a Lab, name: &str) -> Self {
        Self { lab, id: format!("{name}-{}", std::process::id()) }
    }

    fn session(&self) -> Session<'a> {
        self.lab.session(&json!({ "image": "base", "workspace_id": self.id }))
    }

    fn files(&self) -> Files<'a> {
        Files::in_workspace(self.lab, &self.id)
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        drop(self.lab.client.request("DELETE", &format!("/v1/workspaces/{}", self.id)).try_send());
    }
}

fn base(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "base" }))
}

/// Makes a tree with all that is odd about names, kinds, modes and times.
const MAKE: &str = r#"
set -e; mkdir -p "$TOP/sub/deeper" "$TOP/closed"; cd "$TOP"
printf hello > 'a b'; printf x > "$(printf 'new\nline')"; : > empty; printf q > "quote\"'"
printf raw > "$(printf 'bad\377utf8')"; printf dash > ./-rf; printf u > 'grüße-日本'
L=$(printf '%0200d' 7); mkdir -p "$L/$L"; printf long > "$L/$L/$L"; printf b > "$L/$(printf '\377')$L"
ln -s 'a b' link; ln -s /etc/passwd absolute; ln -s "$L$L" longlink; ln -s nowhere dangling
ln 'a b' sub/hard; ln "$L/$L/$L" sub/deeper/longhard
head -c 1000001 /dev/urandom > sub/random; printf s > script; chmod 751 script; chmod 1777 sub
touch -h -d '2001-02-03 04:05:06.123456789 UTC' link script 'a b' "$L/$L/$L"
touch -d '1969-12-31 23:59:58.25 UTC' empty
printf in > closed/in; chmod 500 closed; touch -d '2010-01-01 00:00:00.5 UTC' closed sub sub/deeper .
"#;

/// What is there: kinds, modes, times, sizes, links and contents, without owners.
const FACTS: &str = r#"cd "$TOP"; find . -printf '%p|%y|%m|%T@|%l|%n\n' | grep -a . | LC_ALL=C sort
find . -type f -links +1 -printf '%i %p\n' | LC_ALL=C sort -k2 | awk '{ if (!($1 in n)) n[$1] = ++c; $1 = n[$1]; print }'
find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"#;

fn facts(session: &Session<'_>, top: &str) -> String {
    session.run(&format!("TOP='{top}'; {FACTS}"))
}

fn facts_here(top: &Path) -> String {
    let output = Command::new("bash").args(["-c", FACTS]).env("TOP", top).output().expect("bash");
    assert!(output.status.success(), "{output:?}");
    // As an exec shows it.
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn make(session: &Session<'_>, top: &str) {
    session.run(&format!("TOP='{top}'; ({MAKE})"));
}

/// Runs a program of the host with some input; gives its output.
#[track_caller]
fn here(program: &str, arguments: &[&str], dir: &Path, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect(program);
    let mut stdin = child.stdin.take().expect("a pipe");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect(program)
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    output.stdout
}

#[test]
fn gnu_tar_takes_what_is_packed_and_gives_what_is_unpacked() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    make(&session, "/workspace/tree");
    let before = facts(&session, "/workspace/tree");
    let archive = files.packed("tree");
    let dir = tempfile::tempdir().unwrap();
    here("tar", &["--warning=no-unknown-keyword", "-xpf", "-"], dir.path(), &archive);
    assert_eq!(facts_here(dir.path()), before);
    for (format, gzip) in [("gnu", false), ("posix", false), ("posix", true)] {
        let format = format!("--format={format}");
        let packed =
            here("tar", &[&format, if gzip { "-czf" } else { "-cf" }, "-", "."], dir.path(), b"");
        let to = format!("/workspace/back{format}{gzip}");
        let kind = if gzip { "application/gzip" } else { "application/x-tar" };
        files.unpack_as(&to, "", kind, packed).ok(200);
        let after = facts(&session, &to);
        if format.ends_with("gnu") {
            // That format has whole seconds.
            let rough = |text: &str| text.replace(".1234567890", ".0000000000");
            assert_eq!(after.lines().count(), before.lines().count());
            assert_eq!(rough(&after).contains("hello"), rough(&before).contains("hello"));
        } else {
            assert_eq!(after, before, "{format} {gzip}");
        }
    }
    // And our own, over what is there already.
    for _ in 0..2 {
        files.unpacked("again", archive.clone());
        assert_eq!(facts(&session, "/workspace/again"), before);
    }
    session.alive();
}

const READ: &str = r#"
import io, sys, tarfile
with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as tar:
    # What Python does without a filter is changing, and 3.11.2 (Debian 12) knows none.
    known = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    tar.extractall(".", **known)
"#;

const WRITE: &str = r#"
import io, sys, tarfile
out = io.BytesIO()
with tarfile.open(fileobj=out, mode="w", format=getattr(tarfile, sys.argv[1])) as tar:
    tar.add(".")
sys.stdout.buffer.write(out.getvalue())
"#;

#[test]
fn python_takes_what_is_packed_and_gives_what_is_unpacked() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    make(&session, "/workspace/tree");
    let before = facts(&session, "/workspace/tree");
    let dir = tempfile::tempdir().unwrap();
    here("python3", &["-c", READ], dir.path(), &files.packed("/workspace/tree/"));
    // Python's floats hold no nanoseconds.
    let rough = |text: &str| -> String {
        let cut = |line: &str| match line.split_once('.') {
            Some(_) if line.contains('|') => {
                let fields: Vec<&str> = line.split('|').collect();
                let times = fields.iter().map(|f| {
                    if f.len() > 15
                        && f.contains('.')
                        && f.chars().all(|c| c.is_ascii_digit() || c == '.')
                    {
                        f.split('.').next().unwrap()
                    } else {
                        f
                    }
                });
                times.collect::<Vec<_>>().join("|")
            }
            _ => line.to_owned(),
        };
        text.lines().map(cut).collect::<Vec<_>>().join("\n")
    };
    // Python gives links no times, so those of its own links are what it packs.
    let unpacked = facts_here(dir.path());
    assert_eq!(without_link_times(&rough(&unpacked)), without_link_times(&rough(&before)));
    for format in ["PAX_FORMAT", "GNU_FORMAT"] {
        let packed = here("python3", &["-c", WRITE, format], dir.path(), b"");
        files.unpacked(format, packed);
        let after = facts(&session, &format!("/workspace/{format}"));
        assert_eq!(after.lines().count(), before.lines().count(), "{format}");
        if format == "PAX_FORMAT" {
            assert_eq!(rough(&after), rough(&unpacked));
        }
    }
}

/// The facts without the times of symbolic links.
fn without_link_times(facts: &str) -> String {
    let cut = |line: &str| {
        let mut fields: Vec<&str> = line.split('|').collect();
        if let [_, "l", _, time, _, _] = &mut fields[..] {
            *time = "";
        }
        fields.join("|")
    };
    facts.lines().map(cut).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_live_workspace_is_backed_up_and_restored() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "backup");
    let session = workspace.session();
    make(&session, "/workspace/tree");
    session.run(concat!(
        "(i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); n=/workspace/live$((i % 50)); ",
        "head -c $((i * 997 % 300000)) /dev/zero > $n; mkdir -p $n.d; rmdir $n.d; ln -sf x $n.l; ",
        "rm -f /workspace/live$(((i + 25) % 50)); done) > /dev/null 2>&1 &",
    ));
    // While it writes, each archive is a whole one.
    for round in 0..10 {
        let archive = workspace.files().packed("/workspace");
        let dir = tempfile::tempdir().unwrap();
        here("tar", &["--warning=no-unknown-keyword", "-xpf", "-"], dir.path(), &archive);
        let tree = facts_here(&dir.path().join("tree"));
        assert_eq!(tree, facts(&session, "/workspace/tree"), "round {round}");
        let again = Workspace::new(&lab, &format!("again{round}"));
        again.files().unpacked(".", archive);
    }
    session
        .run("touch /tmp/stop; wait; mkdir /workspace/end; touch -d '2020-01-01 UTC' /workspace");
    let archive = workspace.files().packed("/workspace");
    assert_eq!(Files::of(&session).packed("/workspace").len(), archive.len());
    let restored = Workspace::new(&lab, "restored");
    restored.files().unpacked("/workspace", archive);
    let second = restored.session();
    assert_eq!(facts(&second, "/workspace"), facts(&session, "/workspace"));
    assert_eq!(
        second.run("stat -c %U /workspace/tree/script; echo more > /workspace/tree/empty"),
        "sandbox\n"
    );
}

/// One entry with a header that is right by its form alone.
fn entry(path: &str, kind: u8, link: &str, data: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    let field = header.as_mut_bytes();
    field[..path.len()].copy_from_slice(path.as_bytes());
    field[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_mode(0o6755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(100);
    header.set_size(data.len() as u64);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Archives that must be refused: which, why, and the entry that is named.
fn hostile() -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let file = |path: &str| entry(path, b'0', "", b"evil");
    let link = |path: &str, target: &str| entry(path, b'2', target, b"");
    let one = |bytes: Vec<u8>| archive(&[bytes]);
    vec![
        (one(file("/tmp/evil")), "INVALID_REQUEST", "/tmp/evil"),
        (one(file("../evil")), "INVALID_REQUEST", "../evil"),
        (one(file("a/../../evil")), "INVALID_REQUEST", "a/../../evil"),
        (archive(&[link("l1", "/tmp"), file("l1/evil")]), "INVALID_REQUEST", "l1/evil"),
        (archive(&[link("l2", "../.."), file("l2/evil")]), "INVALID_REQUEST", "l2/evil"),
        (archive(&[link("l3", "."), entry("l3/d", b'5', "", b"")]), "INVALID_REQUEST", "l3/d"),
        (one(file("theirs/evil")), "INVALID_REQUEST", "theirs/evil"),
        (one(entry("h1", b'1', "/tmp/canary", b"")), "INVALID_REQUEST", "h1"),
        (one(entry("h2", b'1', "../canary", b"")), "INVALID_REQUEST", "h2"),
        (
            archive(&[link("l4", "/tmp"), entry("h3", b'1', "l4/canary", b"")]),
            "INVALID_REQUEST",
            "h3",
        ),
        (one(entry("c", b'3', "", b"")), "INVALID_REQUEST", "c"),
        (one(entry("b", b'4', "", b"")), "INVALID_REQUEST", "b"),
        (one(entry("p", b'6', "", b"")), "INVALID_REQUEST", "p"),
        (one(entry("s", b'S', "", b"")), "INVALID_REQUEST", "s"),
        (one(entry("z", b'Z', "", b"")), "INVALID_REQUEST", "z"),
        (one(entry("ld", b'2', "x", b"data")), "INVALID_REQUEST", "ld"),
        (entry("cut", b'0', "", &[1; 2000])[..1024].to_vec(), "INVALID_REQUEST", "cut"),
        (file("noend"), "INVALID_REQUEST", "in"),
        (b"not a tar archive".repeat(100), "INVALID_REQUEST", "in"),
        (Vec::new(), "INVALID_REQUEST", "in"),
        (archive(&[file("d/x"), file("d")]), "IS_A_DIRECTORY", "d"),
        (archive(&[file("f"), file("f/x")]), "NOT_A_DIRECTORY", "f/x"),
    ]
}

#[test]
fn hostile_archives_are_contained_in_a_session() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("mkdir /workspace/in; ln -s /tmp /workspace/in/theirs; echo canary > /tmp/canary");
    for user in ["", "&user=root"] {
        for (bytes, code, named) in hostile() {
            let answer = Files::of(&session).unpack_as("in", user, "application/x-tar", bytes);
            let message = answer.error(400, code)["message"].as_str().unwrap().to_owned();
            assert!(message.starts_with(&format!("{named}: ")), "{named}: {message}");
        }
    }
    assert_eq!(
        session.run("ls -A /tmp; cat /tmp/canary; ls -A /workspace"),
        "canary\ncanary\nin\n"
    );
    assert_eq!(
        session.run("stat -c %h /tmp/canary; ls -A /workspace/in | grep -c sandkasten || true"),
        "1\n0\n"
    );
    session.alive();
}

#[test]
fn hostile_archives_are_contained_in_a_workspace() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "hostile");
    let files = workspace.files();
    files.unpacked("in", archive(&[entry("theirs", b'2', "/tmp", b"")]));
    for (bytes, code, named) in hostile() {
        let answer = files.unpack("in", bytes);
        let message = answer.error(400, code)["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(&format!("{named}: ")), "{named}: {message}");
    }
    for path in ["../x", "/etc", "/workspace/../x"] {
        files.unpack(path, archive(&[])).error(400, "PATH_NOT_ALLOWED");
        files.pack(path).error(400, "PATH_NOT_ALLOWED");
    }
    files.unpack("in/theirs", archive(&[])).error(400, "PATH_NOT_ALLOWED");
    files.pack("in/theirs").error(400, "PATH_NOT_ALLOWED");
    assert!(!Path::new("/tmp/evil").exists());
    let session = workspace.session();
    assert_eq!(
        session.run("ls -A /workspace; ls -A /workspace/in | grep -c sandkasten || true"),
        "in\n0\n"
    );
    assert_eq!(
        session.run("cat /workspace/in/d/x; stat -c '%a %U' /workspace/in/d/x"),
        "evil755 sandbox\n"
    );
}

#[test]
fn rights_are_those_of_the_user() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    let set = archive(&[entry("set", b'0', "", b"x"), entry("d", b'5', "", b"")]);
    files.unpacked("mine", set.clone());
    files.unpack_as("/workspace/roots", "&user=root", "application/x-tar", set.clone()).ok(200);
    let look = "cd /workspace; stat -c '%a %u:%g %Y %n' mine/set mine/d roots/set roots/d";
    let want = "755 1000:1000 100 mine/set\n755 1000:1000 100 mine/d\n6755 0:0 100 roots/set\n6755 0:0 100 roots/d\n";
    assert_eq!(session.run(look), want);
    files.unpack("/etc", set.clone()).error(403, "PERMISSION_DENIED");
    files.unpack("/etc/none/deeper", set.clone()).error(403, "PERMISSION_DENIED");
    files.unpack("/proc/self", set).error(403, "PERMISSION_DENIED");
    // What can't be read is named, and there is no archive without it.
    let secret = archive(&[entry("secret/key", b'0', "", b"x"), entry("secret", b'5', "", b"")]);
    files.unpack_as("roots", "&user=root", "application/x-tar", secret).ok(200);
    let close = json!({ "cmd": "chmod 600 /workspace/roots/secret/key", "user": "root" });
    session.exec_with(&close);
    let denied = files.pack("roots").error(403, "PERMISSION_DENIED");
    assert!(denied["message"].as_str().unwrap().starts_with("secret/key: "), "{denied}");
    assert_eq!(lab.client.get(&files.url("roots", "&user=root")).status(), 200);
    files.pack("none").error(404, "FILE_NOT_FOUND");
    session.run("mkfifo /workspace/fifo");
    files.pack("fifo").error(400, "NOT_A_FILE");
    files.pack("/proc").error(403, "PERMISSION_DENIED");
    files.pack("").error(400, "INVALID_PATH");
}

#[test]
fn a_want_of_space_is_told_and_leaves_no_half_file() {
    let lab = Lab::shared();
    let session = base(&lab);
    let room: u64 = session.run("df -B1 --output=avail /tmp | tail -1").trim().parse().unwrap();
    assert!(room < 2 << 30, "{room}");
    let size = 16 << 20;
    let some: Vec<_> = (0..room / size + 2).map(|n| (format!("f{n}"), size)).collect();
    // More than there is, without holding it here: the same file by many names.
    let data = vec![7u8; size as usize];
    let mut connection = lab.client.connect().unwrap();
    let total: u64 = some.len() as u64 * (512 + size) + 1024;
    let key = lab.client.key.clone().unwrap();
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: {total}\r\n\r\n",
        Files::of(&session).url("/tmp/full", "")
    );
    connection.write(head.as_bytes()).unwrap();
    let start = Instant::now();
    for (name, _) in &some {
        // Refused before its end: then nobody reads on.
        if connection.write(&entry(name, b'0', "", &data)).is_err() {
            break;
        }
    }
    let answer = connection.read_answer("PUT", start).unwrap();
    let error = answer.error(507, "NO_SPACE");
    assert!(error["message"].as_str().unwrap().starts_with('f'), "{error}");
    let sizes =
        session.run("cd /tmp/full; stat -c %s * | sort -u; ls -A | grep -c sandkasten || true");
    assert_eq!(sizes, format!("{size}\n0\n"));
    session.run("rm -r /tmp/full");
    session.alive();
}

#[test]
fn an_archive_that_breaks_off_is_not_whole() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("truncate -s 4G /workspace/large");
    let files = Files::of(&session);
    let mut stream = lab.client.request("GET", &files.url("/workspace", "")).stream();
    assert_eq!(stream.head.status, 200);
    assert!(stream.next_chunk().is_some());
    assert_eq!(session.delete().status(), 200);
    let rest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while stream.next_chunk().is_some() {}
    }));
    assert!(rest.is_err(), "an end that looks whole");
}

#[test]
fn gzip_is_told_by_its_type_and_bounded() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "text").unwrap();
    let packed = here("tar", &["-czf", "-", "."], dir.path(), b"");
    assert_eq!(files.unpack_as("a", "", "application/gzip", packed.clone()).ok(200)["entries"], 2);
    let coded = lab.client.request("PUT", &files.url("b", "")).header("Content-Encoding", "gzip");
    coded.body(packed.clone()).send().ok(200);
    assert_eq!(session.run("cat a/f b/f"), "texttext");
    files.unpack("c", packed.clone()).error(400, "INVALID_REQUEST");
    let other = lab.client.request("PUT", &files.url("b", "")).header("Content-Encoding", "br");
    other.body(packed.clone()).send().error(400, "INVALID_REQUEST");
    let cut = packed[..packed.len() - 9].to_vec();
    files.unpack_as("c", "", "application/gzip", cut).error(400, "INVALID_REQUEST");
    let bomb = here("bash", &["-c", "truncate -s 300M z; tar -cf - z | gzip -9"], dir.path(), b"");
    let error = files.unpack_as("c", "", "application/gzip", bomb).error(400, "INVALID_REQUEST");
    assert!(error["message"].as_str().unwrap().contains("200"), "{error}");
    session.alive();
}

/// Ten thousand small files each way. The figures stand in the test's output; the limit is for machines
/// with other work.
#[test]
fn ten_thousand_small_files_go_quickly() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "many");
    let session = workspace.session();
    let files = Files::of(&session);
    let dir = tempfile::tempdir_in(&lab.data_dir).unwrap();
    for d in 0..100 {
        let sub = dir.path().join(format!("d{d}"));
        fs::create_dir(&sub).unwrap();
        (0..100).for_each(|f| fs::write(sub.join(format!("f{f}")), [b'x'; 300]).unwrap());
    }
    let start = Instant::now();
    let packed = here("tar", &["-cf", "-", "."], dir.path(), b"");
    let tar_out = start.elapsed();
    let to = tempfile::tempdir_in(&lab.data_dir).unwrap();
    let start = Instant::now();
    here("tar", &["-xf", "-"], to.path(), &packed);
    let tar_in = start.elapsed();
    let answer = files.unpack("many", packed.clone());
    assert_eq!(answer.ok(200)["entries"], 10_101);
    let back = files.pack("many");
    assert!(back.body.len() > packed.len() / 2);
    let others = workspace.files();
    let without = others.unpack("others", packed);
    without.ok(200);
    let back_without = others.pack("others");
    println!(
        "10,000 files: GNU tar out {tar_out:?}, in {tar_in:?}; session out {:?}, in {:?}; workspace out {:?}, in {:?}",
        back.took, answer.took, back_without.took, without.took
    );
    for took in [answer.took, back.took, without.took, back_without.took] {
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn memory_stays_flat() {
    let lab = Lab::builder().set("durability", json!("fsync")).start();
    let session = lab.session(&json!({}));
    let files = Files::of(&session);
    session.run("dd if=/dev/zero of=/workspace/large bs=1048576 count=1 seek=511");
    // Whole seconds need no PAX header.
    session.run("touch -d '2020-01-01 00:00:00' /workspace/large");
    let before = host::anonymous_bytes(lab.pid());
    let mut stream = lab.client.request("GET", &files.url("large", "")).stream();
    let (mut bytes, start) = (0, Instant::now());
    while let Some(chunk) = stream.next_chunk() {
        bytes += chunk.data.len() as u64;
    }
    let down = start.elapsed();
    // A header, the data and two blocks at the end.
    assert_eq!(bytes, 512 + (512 << 20) + 2 * 512);
    let mut connection = lab.client.connect().unwrap();
    let (key, size) = (lab.client.key.clone().unwrap(), 512u64 << 20);
    let mut header = entry("again", b'0', "", b"")[..512].to_vec();
    header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n",
        files.url(".", ""),
        size + 512 + 1024
    );
    let start = Instant::now();
    connection.write(head.as_bytes()).unwrap();
    connection.write(&header).unwrap();
    let data = vec![3; 1 << 20];
    for _ in 0..512 {
        connection.write(&data).unwrap();
    }
    connection.write(&[0; 1024]).unwrap();
    assert_eq!(connection.read_answer("PUT", start).unwrap().ok(200)["entries"], 1);
    println!("512 MiB: out {down:?}, in {:?}", start.elapsed());
    let grown = host::anonymous_bytes(lab.pid()).saturating_sub(before);
    assert!(grown < 32 << 20, "the daemon has grown by {grown} bytes");
}

#[test]
fn what_stands_in_the_way_of_a_call_is_told() {
    let lab = Lab::shared();
    let missing: Value = lab
        .client
        .get("/v1/workspaces/no-such-one/fs/archive?path=.")
        .error(404, "WORKSPACE_NOT_FOUND");
    assert!(missing["message"].as_str().unwrap().contains("no-such-one"));
    let gone = "/v1/sessions/00000000000000000000000000000000/fs/archive?path=.";
    lab.client.get(gone).error(404, "SESSION_NOT_FOUND");
    let put = lab.client.request("PUT", "/v1/workspaces/Bad_Id/fs/archive?path=.").body("x");
    put.send().error(400, "INVALID_WORKSPACE");
}
