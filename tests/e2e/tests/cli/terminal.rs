//! `-t`: a program of a box on a real terminal, and that terminal afterwards.

use sandkasten_e2e::lab::Signal;
use sandkasten_e2e::terminal::Terminal;
use sandkasten_e2e::{Lab, host};
use serde_json::json;

use super::{ends, lasting, text};

fn on_terminal(lab: &Lab, words: &[&str]) -> (Terminal, String) {
    let terminal = Terminal::start(&lab.command(words), 33, 101);
    let before = terminal.modes();
    (terminal, before)
}

#[test]
fn a_program_has_the_size_of_the_terminal_and_its_changes() {
    let lab = Lab::shared();
    let script =
        "stty size; trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.1; done";
    let (mut terminal, before) = on_terminal(&lab, &["run", "-it", "base", script]);
    terminal.shows("33 101\r\n");
    terminal.shows("ready");
    assert_ne!(terminal.modes(), before, "raw mode");
    terminal.resize(44, 132);
    terminal.shows("44 132\r\n");
    assert_eq!(terminal.ends().code(), Some(7));
    assert_eq!(terminal.modes(), before);
}

#[test]
fn ctrl_c_goes_to_the_program_inside() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let (mut terminal, before) = on_terminal(&lab, &["exec", "-it", &session.id]);
    terminal.shows("$ ");
    // Said by the program that is interrupted: a shell may lose a Ctrl-C that comes as it starts one.
    terminal.types("echo rea''dy >said; tail -f said; echo sle''pt $?\r");
    terminal.shows("ready\r\n");
    terminal.types("\x03");
    // What is typed before the prompt is thrown away with what Ctrl-C ended.
    terminal.shows("$ ");
    terminal.types("echo al''ive; exit 5\r");
    terminal.shows("alive\r\n");
    assert_eq!(terminal.ends().code(), Some(5));
    assert_eq!(terminal.modes(), before);
    assert!(!terminal.screen().contains("slept"), "{}", terminal.screen());
}

#[test]
fn a_program_beside_the_shell_is_where_the_shell_is() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    session.run("cd /usr/share; export GREETING='hello there'; plain=1");
    let words =
        ["exec", "-t", "-e", "MORE=x", &session.id, "echo $PWD,$GREETING,$MORE,$TERM,$plain."];
    let (mut terminal, _) = on_terminal(&lab, &words);
    terminal.shows("/usr/share,hello there,x,xterm-256color,.\r\n");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_program_is_in_the_directory_that_is_asked_for() {
    let lab = Lab::shared();
    let (mut terminal, _) = on_terminal(&lab, &["run", "-t", "-w", "/usr/share", "base", "pwd"]);
    terminal.shows("/usr/share\r\n");
    assert_eq!(terminal.ends().code(), Some(0));
    let session = lab.session(&json!({ "image": "base" }));
    session.run("env() { return 1; }; export GREETING=hello");
    let (mut terminal, _) = on_terminal(&lab, &["exec", "-t", &session.id, "echo $GREETING"]);
    terminal.shows("hello\r\n");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_terminal_is_put_back_whatever_ends_it() {
    let lab = Lab::shared();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let (mut terminal, before) =
            on_terminal(&lab, &["run", "-t", "base", "echo ready; sleep 1000"]);
        terminal.shows("ready");
        assert_ne!(terminal.modes(), before);
        host::signal(terminal.pid(), signal);
        assert_eq!(terminal.ends().code(), Some(code));
        assert_eq!(terminal.modes(), before, "{code}");
    }
    let (mut terminal, before) = on_terminal(&lab, &["run", "-t", "base", "/nothing/there"]);
    assert_eq!(terminal.ends().code(), Some(127), "{}", terminal.screen());
    assert_eq!(terminal.modes(), before);
}

#[test]
fn a_program_that_was_ended_with_its_terminal_is_gone() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let (mut terminal, _) =
        on_terminal(&lab, &["exec", "-t", &session.id, "echo ready; sleep 1234"]);
    terminal.shows("ready");
    host::signal(terminal.pid(), Signal::TERM);
    assert_eq!(terminal.ends().code(), Some(143));
    let left =
        session.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 1234' || true");
    assert_eq!(left, "0\n");
}

#[test]
fn a_lost_daemon_puts_the_terminal_back() {
    let mut lab = Lab::start();
    let id = lasting(&lab, &json!({}));
    let (mut terminal, before) = on_terminal(&lab, &["exec", "-t", &id, "echo ready; sleep 1000"]);
    terminal.shows("ready");
    lab.kill();
    assert_eq!(terminal.ends().code(), Some(125));
    assert_eq!(terminal.modes(), before);
    assert!(terminal.screen().contains("`sandkasten result "), "{}", terminal.screen());
    lab.restart();
}

#[test]
fn a_terminal_without_one_is_refused() {
    let lab = Lab::shared();
    let output = lab.cli(&["run", "-it", "tiny", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let told = text(&output.stderr);
    assert!(told.starts_with("error: the input device is not a TTY\n"), "{told}");
}

/// A terminal as stdin goes in without -t too, line by line.
#[test]
fn a_terminal_is_a_pipe_without_t() {
    let lab = Lab::shared();
    let (mut terminal, before) = on_terminal(&lab, &["run", "tiny", "echo ready; cat; echo end"]);
    terminal.shows("ready");
    assert_eq!(terminal.modes(), before);
    terminal.types("a line\n");
    terminal.shows("a line\r\na line\r\n");
    terminal.types("\x04");
    terminal.shows("end\r\n");
    assert_eq!(terminal.ends().code(), Some(0));
    let (mut terminal, _) = on_terminal(&lab, &["run", "tiny", "echo ready; sleep 1000"]);
    terminal.shows("ready");
    terminal.types("\x03");
    assert_eq!(terminal.ends().code(), Some(130));
}

#[test]
fn ps_fits_the_terminal() {
    let lab = Lab::shared();
    let name = "a-long-name-for-a-session-that-does-not-fit";
    let session = lab.session(&json!({ "image": "tiny", "name": name, "labels": { "fits": "1" } }));
    for cols in [200, 80, 60, 40] {
        let words = ["ps", "--filter", "label=fits"];
        let mut terminal = Terminal::start(&lab.command(&words), 24, cols);
        assert_eq!(terminal.ends().code(), Some(0));
        let screen = terminal.screen();
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines.len(), 2, "{screen}");
        assert!(lines.iter().all(|line| line.chars().count() <= usize::from(cols)), "{screen}");
        assert!(lines[1].starts_with(&session.id[..12]), "{screen}");
        assert_eq!(lines[1].contains(name), cols == 200, "{screen}");
    }
    let whole = ends(&lab.cli(&["ps", "--filter", "label=fits"]), 0);
    assert!(whole.contains(name), "{whole}");
}

#[test]
fn colours_are_left_out_where_they_are_unwanted() {
    let lab = Lab::shared();
    for (value, colours) in [(None, true), (Some("1"), false)] {
        let mut command = lab.command(&["nothing"]);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        if let Some(value) = value {
            command.env("NO_COLOR", value);
        }
        let mut terminal = Terminal::start(&command, 24, 80);
        assert_eq!(terminal.ends().code(), Some(2));
        assert_eq!(terminal.screen().contains('\x1b'), colours, "{}", terminal.screen());
    }
}
