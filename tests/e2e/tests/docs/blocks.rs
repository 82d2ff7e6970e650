//! The fenced blocks of a page, and what is done with each.
//!
//! ```text
//! sh, python                 run, one after the other, in the order of the page
//! json, yaml, ini, nginx     parsed
//! text                       read by people alone: diagrams, forms of a call
//! text output                what the last block that was run writes; `…` stands for anything
//! LANGUAGE not run: REASON   shown alone; the reasons are [`REASONS`]
//! ```

use std::fs;
use std::path::Path;

use sandkasten_e2e::lab;

/// Why a block may stand on a page without being run.
pub(crate) const REASONS: [&str; 5] = [
    "it is a suite of its own",
    "it needs a network",
    "it needs a terminal",
    "it needs Docker",
    "it changes the host",
];

/// A fenced block of Markdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// `PAGE:LINE` of its text, for messages.
    pub(crate) place: String,
    pub(crate) text: String,
    pub(crate) usage: Usage,
}

/// What is done with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Run(Language),
    Parse(Format),
    /// Compared with what the last block that was run wrote.
    Output,
    /// Shown alone.
    Show,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Shell,
    Python,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    /// A configuration of the daemon.
    Yaml,
    /// A unit of systemd.
    Unit,
    /// A part of nginx's configuration.
    Nginx,
}

/// The blocks of a page, which is named from the root of the checkout.
#[track_caller]
pub(crate) fn of_page(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(lab::checkout().join(page));
    let text = text.unwrap_or_else(|error| panic!("{page}: {error}"));
    of_text(page, &text).unwrap_or_else(|fault| panic!("{fault}"))
}

fn of_text(page: &str, text: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", number + 2);
        match (line.strip_prefix("```"), open.take()) {
            (Some(""), Some(block)) => found.push(block),
            (Some(mark), None) => {
                let usage = usage(mark).map_err(|why| format!("{place}: {why}"))?;
                open = Some(Block { place, text: String::new(), usage });
            }
            (_, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) if line.starts_with("    ") || line.trim_start().starts_with("```") => {
                return Err(format!("{place}: a block that is not fenced at the line's begin"));
            }
            (None, None) => {}
        }
    }
    open.map_or(Ok(found), |block| Err(format!("{}: a block without an end", block.place)))
}

/// What the words behind the fence say.
fn usage(mark: &str) -> Result<Usage, String> {
    if let Some((_, reason)) = mark.split_once(" not run: ") {
        return match REASONS.contains(&reason) {
            true => Ok(Usage::Show),
            false => Err(format!("`{reason}` is no reason; there are {REASONS:?}")),
        };
    }
    match mark {
        "sh" => Ok(Usage::Run(Language::Shell)),
        "python" => Ok(Usage::Run(Language::Python)),
        "json" => Ok(Usage::Parse(Format::Json)),
        "yaml" => Ok(Usage::Parse(Format::Yaml)),
        "ini" => Ok(Usage::Parse(Format::Unit)),
        "nginx" => Ok(Usage::Parse(Format::Nginx)),
        "text output" => Ok(Usage::Output),
        "text" => Ok(Usage::Show),
        _ => Err(format!("`{mark}` is no kind of block that this suite knows")),
    }
}

/// Whether `got` is what a page shows: the same lines, with `…` for anything. Space at the ends of the
/// text does not count.
pub(crate) fn is_shown_as(got: &str, shown: &str) -> bool {
    let (got, shown) = (got.trim(), shown.trim());
    let mut parts = shown.split('…');
    let Some(mut left) = parts.next().and_then(|first| got.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return left.is_empty() };
    for part in parts {
        let Some((_, rest)) = left.split_once(part) else { return false };
        left = rest;
    }
    left.ends_with(last)
}

/// Parses what is not run.
#[track_caller]
pub(crate) fn parse(block: &Block, format: Format, dir: &Path) {
    let result = match format {
        Format::Json => json(&block.text),
        Format::Yaml => configuration(&block.text, dir),
        Format::Unit => unit(&block.text, dir),
        Format::Nginx => nginx(&block.text),
    };
    if let Err(why) = result {
        panic!("{}: {why}\n{}", block.place, block.text);
    }
}

fn json(text: &str) -> Result<(), String> {
    let value: Result<serde_json::Value, _> = serde_json::from_str(text);
    value.map(drop).map_err(|why| why.to_string())
}

/// The daemon itself reads it: every command loads the whole configuration.
fn configuration(text: &str, dir: &Path) -> Result<(), String> {
    let file = dir.join("sandkasten.yaml");
    fs::write(&file, text).map_err(|why| why.to_string())?;
    let mut command = std::process::Command::new(lab::Binary::Release.path());
    lab::clear_settings(&mut command);
    command.args(["image", "list", "--config"]).arg(&file).arg("--data-dir").arg(dir.join("data"));
    said(&mut command)
}

/// Sections of names and values; where systemd is there, it looks at them too.
fn unit(text: &str, dir: &Path) -> Result<(), String> {
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let is_section = matches!(line, "[Unit]" | "[Service]" | "[Install]");
        if !is_section && !line.split_once('=').is_some_and(|(name, _)| is_word(name)) {
            return Err(format!("`{line}` is neither a section nor a value"));
        }
    }
    let mut probe = std::process::Command::new("systemd-analyze");
    if !probe.arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let binary = lab::Binary::Release.path();
    let text = text.replace("/usr/local/bin/sandkasten", &binary.to_string_lossy());
    let file = dir.join("sandkasten.service");
    fs::write(&file, text).map_err(|why| why.to_string())?;
    said(std::process::Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Every statement ends, and every block.
fn nginx(text: &str) -> Result<(), String> {
    let mut depth = 0_usize;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.chars().last() {
            None | Some(';') => {}
            Some('{') => depth += 1,
            Some('}') if line == "}" => {
                depth = depth.checked_sub(1).ok_or("a block that was never begun")?;
            }
            Some(_) => return Err(format!("`{line}` has no end")),
        }
    }
    if depth == 0 { Ok(()) } else { Err("a block without an end".into()) }
}

/// An error with what the program said, where it failed.
fn said(command: &mut std::process::Command) -> Result<(), String> {
    let output = command.output().map_err(|why| format!("{command:?}: {why}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{}: {errors}", output.status)) }
}

#[test]
fn what_nobody_would_run_is_refused() {
    let fault = |text: &str| of_text("p.md", text).expect_err(text);
    assert!(fault("```rust\n```\n").contains("p.md:2: `rust` is no kind of block"));
    assert!(fault("```sh not run: I do not like it\n```\n").contains("is no reason"));
    assert!(fault("```\n```\n").contains("no kind of block"));
    assert!(fault("```sh\n").contains("without an end"));
    assert!(fault("and then\n\n    rm -rf /\n").contains("p.md:4: a block that is not fenced"));
    assert!(fault("- a\n  ```sh\n").contains("not fenced"));
    let shown =
        of_text("p.md", "```sh not run: it needs Docker\ndocker ps\n```\n").expect("a block");
    assert_eq!(shown[0].usage, Usage::Show);
}

#[test]
fn output_is_compared() {
    assert!(is_shown_as("a\nb\n", "a\nb"));
    assert!(!is_shown_as("a\nb\nc\n", "a\nb"));
    assert!(is_shown_as("id 12 of 3\nend", "id … of …\nend"));
    assert!(is_shown_as("a\nb\nc\n", "a\n…"));
    assert!(is_shown_as("x a\nb", "…a\nb"));
    assert!(!is_shown_as("x a\nbc", "…a\nb"));
    assert!(!is_shown_as("b", "a…"));
}

#[test]
fn formats_are_really_looked_at() {
    let dir = tempfile::tempdir().expect("a folder");
    configuration("listen: 127.0.0.1:0\n", dir.path()).expect("a configuration");
    let fault = configuration("lissten: 127.0.0.1:0\n", dir.path()).expect_err("an unknown key");
    assert!(fault.contains("lissten"), "{fault}");
    json("{\"a\": 1}").expect("JSON");
    json("{a: 1}").expect_err("no JSON");
    unit("[Service]\nExecStart\n", dir.path()).expect_err("no unit");
    nginx("location / {\n  proxy_pass http://127.0.0.1:8080;\n}\n").expect("a location");
    nginx("location / {\n  proxy_pass http://127.0.0.1:8080\n}\n").expect_err("no end");
}
