//! Reaching a daemon from the command line: by URL as anybody, by data directory as root; what is
//! said where none is found; colours; the default image; `~`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use sandkasten_e2e::lab::{ALONE, Binary, Signal, clear_settings};
use sandkasten_e2e::{Lab, host};
use serde_json::{Value, json};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command said on stderr, with the lab's own paths and numbers replaced.
#[track_caller]
fn told(output: &Output, code: i32, lab: &Lab) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}\n{said}", text(&output.stdout));
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    let said = said.replace(&*lab.data_dir.to_string_lossy(), "DATA");
    said.replace(&lab.client.addr.to_string(), "ADDR").replace(&*lab.dir().to_string_lossy(), "LAB")
}

#[track_caller]
fn ok(output: &Output) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out
}

/// A user who is not root, with a binary that he may run.
struct Nobody(tempfile::TempDir);

impl Nobody {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("sandkasten-test-").tempdir_in("/var/tmp");
        let dir = dir.expect("a folder");
        let open = || fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.path(), open()).expect("open the folder");
        let file = dir.path().join("sandkasten");
        fs::copy(Binary::Release.path(), &file).expect("copy the binary");
        fs::set_permissions(&file, open()).expect("open the binary");
        Self(dir)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_within(&[], arguments)
    }

    fn command_within(&self, wrapper: &[&str], arguments: &[&str]) -> Command {
        let mut words: Vec<&str> = wrapper.to_vec();
        words.extend(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        let mut command = Command::new(words[0]);
        clear_settings(&mut command);
        command.args(&words[1..]).arg(self.0.path().join("sandkasten")).args(arguments);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }
}

fn done(command: &mut Command) -> Output {
    command.output().expect("run a command")
}

fn key(lab: &Lab) -> String {
    lab.client.key.clone().expect("a key")
}

#[test]
fn without_a_daemon_it_is_said_what_was_looked_at() {
    let lab = Lab::builder().prepare();
    let hint =
        "hint: `sandkasten daemon -d` starts one; --data-dir, --config or --url name another\n";
    let none = |from: &str| format!("error: no daemon runs on the data directory {from}\n{hint}");
    for (words, code) in
        [(&["ps"][..], 1), (&["run", "tiny", "true"], 125), (&["exec", "id", "true"], 125)]
    {
        let output = lab.cli_within(&ALONE, words);
        assert_eq!(told(&output, code, &lab), none("DATA (from SANDKASTEN_DATA_DIR)"), "{words:?}");
    }
    let output = lab.cli_within(&ALONE, &["ps", "--data-dir", "/nonexistent/x"]);
    assert_eq!(told(&output, 1, &lab), none("/nonexistent/x (from --data-dir)"));
    let file = lab.dir().join("sandkasten.yaml").to_string_lossy().into_owned();
    let output = lab.cli_within(&ALONE, &["ps", "--config", &file]);
    assert_eq!(told(&output, 1, &lab), none("DATA (from LAB/sandkasten.yaml:3)"));
    let mut default = Command::new(ALONE[0]);
    clear_settings(&mut default);
    default.args(&ALONE[1..]).arg(Binary::Release.path()).arg("ps").current_dir("/");
    let output = done(&mut default);
    assert_eq!(told(&output, 1, &lab), none("/var/lib/sandkasten (default)"));
}

/// In a pid namespace of its own there is one daemon alone.
#[test]
fn a_daemon_elsewhere_is_named_and_no_second_one_offered() {
    let lab = Lab::builder().prepare();
    let script = "\"$0\" daemon -d --listen 127.0.0.1:0 > started && \
        for words in 'ps' 'daemon stop'; do \
            echo \"= $words\"; \"$0\" $words --data-dir /nonexistent/x; echo \"= $?\"; \
        done; \
        \"$0\" ps --url http://127.0.0.1:1; \
        \"$0\" daemon stop; cat started";
    let mut command = Command::new(ALONE[0]);
    clear_settings(&mut command);
    command.args(&ALONE[1..]).args(["sh", "-c", &format!("exec 2>&1; {script}")]);
    command.arg(Binary::Release.path()).current_dir(lab.dir());
    let said = ok(&done(&mut command));
    let (said, started) = said.trim_end().rsplit_once('\n').expect("lines");
    // http://127.0.0.1:PORT (pid N, data in DIR)
    let url = started.split(' ').next().expect("a URL");
    let pid = started.split_once("(pid ").and_then(|(_, rest)| rest.split(',').next());
    let said = said.replace(url, "URL").replace(&*lab.data_dir.to_string_lossy(), "DATA");
    let said = said.replace(&format!("pid {}", pid.expect("a pid")), "pid N");
    assert_eq!(
        said,
        "= ps\n\
         error: no daemon runs on the data directory /nonexistent/x (from --data-dir)\n\
         on this host run:\n  the daemon with pid N at URL, data directory DATA\n\
         hint: name the one that is meant, as in `--data-dir DATA`\n\
         = 1\n\
         = daemon stop\n\
         no daemon runs on the data directory /nonexistent/x (from --data-dir)\n\
         on this host run:\n  the daemon with pid N at URL, data directory DATA\n\
         = 0\n\
         error: no daemon answers at http://127.0.0.1:1 (--url): Connection refused (os error 111)\n\
         on this host run:\n  the daemon with pid N at URL, data directory DATA\n\
         hint: check the address in --url\n\
         stopped the daemon (pid N)"
    );
}

#[test]
fn root_needs_no_key_in_a_new_terminal() {
    let mut lab = Lab::start();
    let file = lab.data_dir.join("key");
    let stored = fs::read_to_string(&file).expect("the key for root");
    assert_eq!(fs::metadata(&file).expect("its facts").mode() & 0o777, 0o600);
    assert!(stored.len() > 64 && !stored.contains(&key(&lab)), "it is another key");
    // As `sudo` leaves it: no variable but the path, another directory.
    let data_dir = lab.data_dir.to_string_lossy().into_owned();
    let plain = |words: &[&str]| {
        let mut command = Command::new(Binary::Release.path());
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").stdin(Stdio::null());
        done(command.args(words).args(["--data-dir", &data_dir]))
    };
    assert_eq!(ok(&plain(&["ps", "--json"])).trim(), "[]");
    let session = lab.session(&json!({}));
    assert!(ok(&plain(&["ps", "--quiet"])).contains(&session.id));
    drop(session);
    let doctor: Value = serde_json::from_slice(&plain(&["doctor", "--json"]).stdout).expect("JSON");
    let all = doctor["guarantees"].as_array().cloned().unwrap_or_default();
    let of_key = all.iter().find(|one| one["name"] == "api-key").expect("a line");
    assert_eq!(of_key["given"], true, "the running daemon has a key: {of_key}");
    lab.stop();
    assert!(!file.exists(), "the key outlives its daemon");
    // Another start, another key.
    lab.restart();
    assert_ne!(fs::read_to_string(&file).expect("the key"), stored);
}

#[test]
fn a_daemon_without_a_key_hands_none_out() {
    let lab = Lab::builder().set("api_key", json!("")).start();
    assert!(!lab.data_dir.join("key").exists());
    let mut command = lab.command(&["ps", "--json"]);
    assert_eq!(ok(&done(command.env_remove("SANDKASTEN_API_KEY"))).trim(), "[]");
}

#[test]
fn anybody_reaches_a_daemon_by_its_url() {
    let lab = Lab::start();
    let nobody = Nobody::new();
    let addr = lab.client.addr;
    let run = |words: &[&str]| done(nobody.command(words).env("SANDKASTEN_API_KEY", key(&lab)));
    let port = addr.port();
    for url in [
        format!("http://{addr}"),
        format!("http://{addr}/"),
        format!("HTTP://{addr}//"),
        format!("http://localhost:{port}"),
    ] {
        assert_eq!(ok(&run(&["ps", "--json", "--url", &url])).trim(), "[]", "{url}");
    }
    let url = format!("http://{addr}");
    assert_eq!(ok(&run(&["run", "--url", &url, "tiny", "--", "echo", "hello"])), "hello\n");
    let mut by_variable = nobody.command(&["ps", "--json"]);
    by_variable.env("SANDKASTEN_URL", &url).env("SANDKASTEN_API_KEY", key(&lab));
    assert_eq!(ok(&done(&mut by_variable)).trim(), "[]");
    let bench = run(&["bench", "--runs", "1", "--json", "--url", &url]);
    let bench: Value = serde_json::from_str(&ok(&bench)).expect("JSON");
    assert!(bench["daemon_pid"].is_null() && bench["tiers"][0]["n"].is_number(), "{bench}");
}

#[test]
fn a_flag_for_a_data_directory_comes_before_the_variable_of_a_url() {
    let lab = Lab::start();
    let data_dir = lab.data_dir.to_string_lossy().into_owned();
    let mut command = lab.command(&["ps", "--json", "--data-dir", &data_dir]);
    assert_eq!(ok(&done(command.env("SANDKASTEN_URL", "http://127.0.0.1:1"))).trim(), "[]");
    let mut command = lab.command(&["ps"]);
    let refused = done(command.env("SANDKASTEN_URL", "http://127.0.0.1:1"));
    assert!(
        text(&refused.stderr).contains("127.0.0.1:1 (SANDKASTEN_URL)"),
        "it comes before the rest"
    );
}

/// What works on the data directory asks the daemon of that directory, whatever a variable names.
#[test]
fn the_variable_of_a_url_is_not_for_the_data_directory() {
    let (mut here, there) = (Lab::start(), Lab::start());
    let kept = there.session(&json!({}));
    here.try_session(&json!({})).ok(201);
    let at_here = |here: &Lab, words: &[&str]| {
        let mut command = here.command(words);
        command
            .env("SANDKASTEN_URL", format!("http://{}", there.client.addr))
            .env("SANDKASTEN_API_KEY", key(&there));
        done(&mut command)
    };
    let refused = at_here(&here, &["image", "rm", "tiny"]);
    let said = told(&refused, 1, &here);
    assert!(said.contains("in use"), "a session of the directory has it: {said}");
    let stopped = at_here(&here, &["stop", "--delete-sessions", "--json"]);
    let said: Value = serde_json::from_slice(&stopped.stdout).expect("JSON");
    assert_eq!(said, json!({ "stopped": true, "deleted_sessions": 1 }));
    assert!(here.wait().success());
    assert!(host::names(&here.data_dir.join("trash")).is_empty(), "nothing is left on the disk");
    assert_eq!(kept.run("echo lives"), "lives\n");
    here.restart();
    assert_eq!(here.client.get("/v1/sessions").ok(200), json!([]));
}

/// What a proxy in front of a daemon would see.
#[test]
fn a_prefix_and_the_hosts_name_are_sent() {
    let lab = Lab::builder().prepare();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let proxy = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a client");
        let mut lines = BufReader::new(connection.try_clone().expect("a handle")).lines();
        let head: Vec<String> =
            lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]";
        connection.write_all(answer).expect("answer");
        head
    });
    let url = format!("http://localhost:{port}/boxes/one/");
    assert_eq!(ok(&lab.cli(&["ps", "--json", "--url", &url])).trim(), "[]");
    let head = proxy.join().expect("the proxy");
    assert!(head[0].starts_with("GET /boxes/one/v1/sessions"), "{head:?}");
    assert!(head.contains(&format!("Host: localhost:{port}")), "{head:?}");
    assert!(head.contains(&format!("Authorization: Bearer {}", key(&lab))), "{head:?}");
}

#[test]
fn addresses_that_a_daemon_announces_can_be_connected_to() {
    for (listen, announced) in
        [("0.0.0.0:0", "127.0.0.1:"), ("[::]:0", "127.0.0.1:"), ("[::1]:0", "[::1]:")]
    {
        if listen.starts_with('[') && TcpListener::bind(listen).is_err() {
            continue;
        }
        let lab = Lab::builder().set("listen", json!(listen)).start();
        let addr = fs::read_to_string(lab.data_dir.join("addr")).expect("the address");
        assert!(addr.starts_with(announced), "{listen}: {addr}");
        assert_eq!(ok(&lab.cli(&["ps", "--json"])).trim(), "[]", "{listen}");
        let url = format!("http://{}", addr.trim());
        assert_eq!(ok(&lab.cli(&["ps", "--json", "--url", &url])).trim(), "[]", "{listen}");
    }
}

#[test]
fn what_is_no_url_is_refused_with_the_way_out() {
    let lab = Lab::builder().prepare();
    let refused = |words: &[&str]| told(&lab.cli(words), 2, &lab);
    assert_eq!(
        refused(&["ps", "--url", "https://boxes.example"]),
        "error: --url: `https://boxes.example` is an https address, and this program speaks http alone\n\
         hint: reach the daemon behind the proxy: `ssh -L 8080:127.0.0.1:8080 HOST` in another terminal, and http://127.0.0.1:8080 here\n"
    );
    assert_eq!(
        refused(&["ps", "--url", "127.0.0.1:8080"]),
        "error: --url: `127.0.0.1:8080` has no scheme\nhint: write http://127.0.0.1:8080\n"
    );
    assert_eq!(
        refused(&["ps", "--url", "http://::1:8080"]),
        "error: --url: `http://::1:8080` has an IPv6 address without brackets\nhint: as in http://[::1]:8080\n"
    );
    assert_eq!(
        refused(&["ps", "--url", "http://127.0.0.1:1", "--data-dir", "/x"]),
        "error: --url names a daemon, and so do --data-dir and --config\nhint: give one of them\n"
    );
    assert_eq!(
        refused(&["daemon", "stop", "--url", "http://127.0.0.1:1"]),
        "error: `sandkasten daemon stop` works on this host and takes no --url\n\
         hint: --url is for `run`, `exec`, `ps`, `result` and `bench`\n"
    );
    for words in [&["daemon"][..], &["stop"], &["doctor"], &["image", "list"], &["version"]] {
        let words = [words, &["--url", "http://127.0.0.1:1"]].concat();
        assert!(refused(&words).contains("takes no --url"), "{words:?}");
    }
    let mut command = lab.command(&["ps"]);
    let output = done(command.env("SANDKASTEN_URL", "ftp://x"));
    assert_eq!(
        told(&output, 1, &lab),
        "error: SANDKASTEN_URL: `ftp://x` is no http address\nhint: as in http://127.0.0.1:8080\n"
    );
    let output = lab.cli_within(&ALONE, &["ps", "--url", "http://no-such-host.invalid:1"]);
    let said = told(&output, 1, &lab);
    assert!(
        said.starts_with("error: no daemon answers at http://no-such-host.invalid:1 (--url): "),
        "{said}"
    );
}

#[test]
fn a_wrong_key_says_so_and_where_it_is_from() {
    let lab = Lab::start();
    let url = format!("http://{}", lab.client.addr);
    let with = |key: &str, words: &[&str]| {
        let mut command = lab.command(words);
        told(&done(command.env("SANDKASTEN_API_KEY", key).current_dir("/")), 1, &lab)
    };
    assert_eq!(
        with("wrong", &["ps", "--url", &url]),
        "error: the daemon at http://ADDR refuses the API key of SANDKASTEN_API_KEY\n\
         hint: set SANDKASTEN_API_KEY to the key that the daemon was started with\n"
    );
    assert_eq!(
        with("", &["ps", "--url", &url]),
        "error: the daemon at http://ADDR asks for an API key, and none is set\n\
         hint: set SANDKASTEN_API_KEY to the key that the daemon was started with\n"
    );
    assert_eq!(
        with("wrong", &["ps"]),
        "error: the daemon at http://ADDR refuses the API key of SANDKASTEN_API_KEY\n\
         hint: leave it out: root needs none for the daemon of a data directory\n"
    );
    let file = lab.dir().join("other.yaml");
    let other = json!({ "data_dir": lab.data_dir, "api_key": "wrong" });
    fs::write(&file, serde_json::to_string_pretty(&other).expect("JSON")).expect("write");
    assert_eq!(
        with("", &["ps", "--config", &file.to_string_lossy()]),
        "error: the daemon at http://ADDR refuses the API key of LAB/other.yaml:2\n\
         hint: leave it out: root needs none for the daemon of a data directory\n"
    );
}

/// Something that answers, but not as a daemon.
#[test]
fn another_server_is_no_daemon() {
    let lab = Lab::builder().prepare();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let addr = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a client");
        let mut buffer = [0; 4096];
        let _ = connection.read(&mut buffer).expect("a request");
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope";
        connection.write_all(answer).expect("answer");
    });
    let output = lab.cli(&["ps", "--url", &format!("http://{addr}/x")]);
    server.join().expect("the server");
    assert_eq!(
        told(&output, 1, &lab).replace(&addr.to_string(), "OTHER"),
        "error: no daemon answers at http://OTHER/x (--url), but something does: status 404\n\
         hint: check host, port and path of the address\n"
    );
}

#[test]
fn who_is_not_root_is_told_what_to_do() {
    let lab = Lab::builder().prepare();
    let nobody = Nobody::new();
    let run = |words: &[&str]| done(&mut nobody.command_within(&ALONE, words));
    let name = "hint: name the daemon with --url http://HOST:PORT or SANDKASTEN_URL, and its key with \
                SANDKASTEN_API_KEY; or run this as root\n";
    for (words, code) in
        [(&["ps"][..], 1), (&["run", "tiny", "true"], 125), (&["exec", "id", "true"], 125)]
    {
        assert_eq!(
            told(&run(words), code, &lab),
            format!(
                "error: only root can reach the daemon of the data directory /var/lib/sandkasten (default)\n{name}"
            ),
            "{words:?}"
        );
    }
    for command in ["daemon", "daemon stop", "image", "bench"] {
        let mut words: Vec<&str> = command.split(' ').collect();
        if command == "image" {
            words.push("list");
        }
        assert_eq!(
            told(&run(&words), 1, &lab),
            format!(
                "error: `sandkasten {command}` needs root: it works on the data directory /var/lib/sandkasten (default)\n\
                 hint: run it as root: `sudo sandkasten {command}`\n"
            )
        );
    }
    assert_eq!(
        told(&run(&["doctor"]), 1, &lab),
        "error: `sandkasten doctor` needs root: it tries what the daemon would do\n\
         hint: run it as root: `sudo sandkasten doctor`\n"
    );
    let report = run(&["doctor", "--json"]);
    assert_eq!(report.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["guarantees"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["guarantees"][0]["name"], "root");
}

#[test]
fn the_daemon_is_stopped_by_either_command() {
    let lab = Lab::builder().prepare();
    for stop in [&["daemon", "stop", "--json"][..], &["stop", "--json"]] {
        let started = ok(&lab.cli(&["daemon", "-d", "--listen", "127.0.0.1:0", "--json"]));
        let started: Value = serde_json::from_str(&started).expect("JSON");
        let stopped: Value = serde_json::from_str(&ok(&lab.cli(stop))).expect("JSON");
        assert_eq!((&stopped["stopped"], &stopped["pid"]), (&json!(true), &started["pid"]));
    }
    let help = ok(&lab.cli(&["daemon", "stop", "--help"]));
    assert!(help.contains("--delete-sessions"), "{help}");
    assert_eq!(
        told(&lab.cli(&["daemon", "-d", "stop"]), 2, &lab),
        "error: `sandkasten daemon stop` takes no option that starts a daemon\n\
         hint: `sandkasten daemon stop --help` shows its own\n"
    );
    // Options of all commands may stand anywhere.
    let data_dir = lab.data_dir.to_string_lossy().into_owned();
    for words in [
        &["--data-dir", &data_dir, "daemon", "stop"][..],
        &["daemon", "stop", "--data-dir", &data_dir],
        &["daemon", "--data-dir", &data_dir, "stop"],
    ] {
        assert!(ok(&lab.cli(words)).contains("no daemon runs on"), "{words:?}");
    }
}

/// A terminal, of which a child gets the other side as its stdout and stderr.
fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("the other side");
    let name = ptsname(&ours, Vec::new()).expect("its name");
    let path = PathBuf::from(name.into_string().expect("text"));
    let theirs = fs::File::options().read(true).write(true).open(path).expect("open it");
    (ours.into(), theirs)
}

/// What a command writes to a terminal up to a word, or to its end; it is interrupted there.
fn on_terminal(mut command: Command, until: &str) -> String {
    let (mut ours, theirs) = terminal();
    command.stdout(theirs.try_clone().expect("a handle")).stderr(theirs);
    let mut child = command.spawn().expect("run a command");
    drop(command);
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    // Once the last process has closed its side, a read fails.
    while let Ok(n @ 1..) = ours.read(&mut piece) {
        said.extend_from_slice(&piece[..n]);
        if text(&said).contains(until) {
            host::signal(child.id(), Signal::INT);
        }
    }
    child.wait().expect("its end");
    text(&said)
}

#[test]
fn no_color_is_no_colour() {
    let lab = Lab::builder().prepare();
    let commands: [(&[&str], &str); 3] = [
        (&["--help"], "never said"),
        (&["ps", "--nothing"], "never said"),
        (&["daemon", "--listen", "127.0.0.1:0"], "serving"),
    ];
    for (words, until) in commands {
        let on = |no_color: Option<&str>| {
            let mut command = lab.command(words);
            command.env("TERM", "xterm-256color");
            command.env_remove("NO_COLOR");
            if let Some(value) = no_color {
                command.env("NO_COLOR", value);
            }
            on_terminal(command, until)
        };
        let (coloured, plain) = (on(None), on(Some("1")));
        assert!(coloured.contains('\u{1b}'), "{words:?} has colours to lose: {coloured}");
        assert!(!plain.contains('\u{1b}'), "{words:?}: {plain}");
        // By its convention an empty one is as good as none.
        assert!(on(Some("")).contains('\u{1b}'), "{words:?}");
    }
    for words in [&["--help"][..], &["ps", "--nothing"], &["doctor", "-v"]] {
        let piped = done(lab.command(words).env_remove("NO_COLOR"));
        let all = text(&piped.stdout) + &text(&piped.stderr);
        assert!(!all.contains('\u{1b}'), "{words:?}: {all}");
    }
}

#[test]
fn a_missing_default_image_is_told_at_the_start_and_by_a_create() {
    let lab = Lab::builder().set("default_image", json!("base")).start();
    let way = "`sandkasten image build base`";
    let log = lab.log();
    let line = log.lines().find(|line| line.contains("the default image")).expect("a warning");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["level"], &line["image"]), (&json!("WARN"), &json!("base")));
    assert_eq!(line["message"], format!("the default image does not exist; {way} makes it"));
    let refused = lab.try_session(&json!({}));
    assert_eq!(refused.status(), 404);
    let body = refused.json();
    assert_eq!(
        (&body["error_code"], &body["details"]["image"]),
        (&json!("IMAGE_NOT_FOUND"), &json!("base"))
    );
    assert_eq!(
        body["message"],
        format!(
            "no image was named, and the default image `base` does not exist: name one in `image`, or make it with {way}"
        )
    );
    let other = lab.try_session(&json!({ "image": "other" })).json();
    assert_eq!(other["message"], "image not found: other");
}

#[test]
fn a_daemon_in_the_background_warns_on_the_terminal() {
    let lab = Lab::builder().prepare();
    let start = |image: &str| {
        let mut command = lab.command(&["daemon", "-d", "--listen", "127.0.0.1:0"]);
        let started = done(command.env("SANDKASTEN_DEFAULT_IMAGE", image));
        ok(&started);
        ok(&lab.cli(&["daemon", "stop"]));
        text(&started.stderr)
    };
    assert_eq!(
        start("base"),
        "warning: the default image `base` does not exist, so creates must name another; \
         `sandkasten image build base` makes it\n"
    );
    assert_eq!(
        start("mine"),
        "warning: the default image `mine` does not exist, so creates must name another; \
         `sandkasten image import FILE --name mine` makes it\n"
    );
    assert_eq!(start("tiny"), "");
}

#[test]
fn a_tilde_in_a_path_is_the_users_home() {
    let lab = Lab::start();
    let home = |data_dir: &str, words: &[&str]| {
        let mut command = lab.command(words);
        command.env("HOME", lab.dir()).env("SANDKASTEN_DATA_DIR", data_dir).current_dir("/");
        done(&mut command)
    };
    assert_eq!(ok(&home("~/data", &["ps", "--json"])).trim(), "[]");
    assert_eq!(
        told(&home("~bob/data", &["ps"]), 1, &lab),
        "error: SANDKASTEN_DATA_DIR: `data_dir`: `~bob/data` is another user's home, which is not looked up; \
         write the whole path (a file of this name is `./~bob/data`)\n"
    );
}
