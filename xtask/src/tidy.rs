//! What holds for the whole tree: format, lints, the crate graph, text rules.
//!
//! Invariant: each rule of ARCHITECTURE.md that a machine can check is checked here and names the
//! place that breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use crate::cargo::{cargo, metadata, root, target_dir};
use crate::{arrows, build};

/// Packages that `init` may have in all, itself among them: it is PID 1 of every session.
const INIT_PACKAGES_MAX: usize = 46;

/// The files that may say `unsafe`, the probe's last.
const UNSAFE: [&str; 3] =
    ["crates/jail/src/sys.rs", "crates/init/src/spawn.rs", "tests/probe/src/sys.rs"];

/// The build script that builds init for the daemon to embed.
const EMBEDS_INIT: &str = "crates/jail/build.rs";

/// Runs every rule; whether all hold.
pub fn run() -> anyhow::Result<bool> {
    let files = files()?;
    let mut faults = Vec::new();
    let metadata = metadata()?;
    faults.extend(crate_graph(&metadata));
    faults.extend(unwatched(&metadata, &fs::read_to_string(root().join(EMBEDS_INIT))?));
    faults.extend(text_rules(&files)?);
    faults.extend(arrows::faults(&files)?);
    faults.extend(static_binary()?);
    for fault in &faults {
        println!("tidy: {fault}");
    }
    let mut green = faults.is_empty();
    green &= passes(&["fmt", "--all", "--check"])?;
    green &= passes(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])?;
    let lints = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
    green &= passes(&lints)?;
    println!("tidy: {}", if green { "all rules hold" } else { "rules are broken" });
    Ok(green)
}

fn passes(arguments: &[&str]) -> anyhow::Result<bool> {
    println!("tidy: cargo {}", arguments.join(" "));
    Ok(cargo(arguments).status().context("run cargo")?.success())
}

/// The files of the repository.
pub(crate) fn files() -> anyhow::Result<Vec<PathBuf>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let output = Command::new("git").args(list).current_dir(root()).output().context("run git")?;
    let text = String::from_utf8(output.stdout).context("file names are UTF-8")?;
    let all = text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    Ok(all.filter(|file| root().join(file).is_file()).collect())
}

/// What a crate of ours must not depend on, however indirectly.
fn forbidden(name: &str) -> &'static [&'static str] {
    match name {
        "sandkasten-files" => &["tokio", "serde_json"],
        "sandkasten-jail" => &["tokio", "sandkasten-engine", "axum", "hyper", "rusqlite"],
        "sandkasten-engine" => &["axum", "hyper", "http", "clap", "sandkasten-server"],
        "sandkasten-server" => &["clap", "sandkasten-jail"],
        _ => &[],
    }
}

/// What a crate of ours may know of ours, directly.
fn allowed(name: &str) -> &'static [&'static str] {
    match name {
        "sandkasten-types" | "sandkasten-protocol" => &[],
        "sandkasten-jail" => &["sandkasten-types"],
        "sandkasten-files" => &["sandkasten-protocol"],
        "sandkasten-init" => &["sandkasten-protocol", "sandkasten-files"],
        "sandkasten-engine" => {
            &["sandkasten-types", "sandkasten-protocol", "sandkasten-files", "sandkasten-jail"]
        }
        "sandkasten-server" => &["sandkasten-types", "sandkasten-engine"],
        "sandkasten" => {
            &["sandkasten-types", "sandkasten-engine", "sandkasten-server", "sandkasten-jail"]
        }
        _ => &["sandkasten-e2e"],
    }
}

fn crate_graph(metadata: &Value) -> Vec<String> {
    let graph = Graph::new(metadata);
    let mut faults = Vec::new();
    for name in graph.ours.iter().map(String::as_str) {
        for other in graph.direct(name).filter(|&other| graph.ours.contains(other)) {
            if !allowed(name).contains(&other) {
                faults.push(format!("{name} must not know {other}"));
            }
        }
        let all = graph.all(name);
        for other in forbidden(name) {
            // What engine brings in is engine's affair: jail is below it.
            let direct = name == "sandkasten-server";
            let known =
                if direct { graph.direct(name).any(|d| d == *other) } else { all.contains(*other) };
            if known {
                faults.push(format!("{name} must not depend on {other}"));
            }
        }
        if name != "sandkasten-server" && graph.direct(name).any(|other| other == "axum") {
            faults.push(format!("{name} must not use axum: only the server does"));
        }
    }
    let init = graph.all("sandkasten-init").len();
    if init > INIT_PACKAGES_MAX {
        faults
            .push(format!("sandkasten-init has {init} packages, {INIT_PACKAGES_MAX} are allowed"));
    }
    faults
}

/// Who depends on whom in the product; what only tests or builds need is left out.
struct Graph {
    ours: BTreeSet<String>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn new(metadata: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut names = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            names.insert(text(&package["id"]), text(&package["name"]));
        }
        let name = |id: &Value| names.get(&text(id)).cloned().unwrap_or_default();
        let ours = list(&metadata["workspace_members"]).iter().map(name).collect();
        let mut edges = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let normal = list(&node["deps"]).into_iter().filter(|dependency| {
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
            });
            edges.insert(name(&node["id"]), normal.map(|d| name(&d["pkg"])).collect());
        }
        Self { ours, edges }
    }

    fn direct(&self, name: &str) -> impl Iterator<Item = &str> {
        self.edges.get(name).into_iter().flatten().map(String::as_str)
    }

    fn all(&self, name: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::from([name.to_owned()]);
        let mut open = vec![name.to_owned()];
        while let Some(name) = open.pop() {
            for other in self.direct(&name) {
                if found.insert(other.to_owned()) {
                    open.push(other.to_owned());
                }
            }
        }
        found
    }
}

/// The crates that init is made of and its build script does not watch: a change there would leave an
/// old init in the daemon.
fn unwatched(metadata: &Value, script: &str) -> Vec<String> {
    let graph = Graph::new(metadata);
    let mut parts = graph.all("sandkasten-init");
    parts.retain(|name| graph.ours.contains(name));
    let folders = parts.iter().filter_map(|name| name.strip_prefix("sandkasten-"));
    folders
        .map(|name| format!("\"crates/{name}\""))
        .filter(|folder| !script.contains(folder.as_str()))
        .map(|folder| format!("{EMBEDS_INIT} does not watch {folder}"))
        .collect()
}

/// A text that must not stand in some files, and why.
struct Ban {
    text: String,
    why: &'static str,
    /// Whether a file is concerned.
    within: fn(&str) -> bool,
}

fn bans() -> Vec<Ban> {
    let ban =
        |text: &str, why, within: fn(&str) -> bool| Ban { text: text.to_owned(), why, within };
    let library: fn(&str) -> bool = |file| {
        let part = ["types", "protocol", "files", "jail", "engine", "server"];
        // Fault injection, compiled into test builds alone, has a variable of its own.
        file != "crates/jail/src/fault.rs"
            && part.iter().any(|name| file.starts_with(&format!("crates/{name}/src/")))
    };
    let engine: fn(&str) -> bool = |file| file.starts_with("crates/engine/src/");
    let mut all = Vec::new();
    for text in ["println!", "print!(", "process::exit"] {
        all.push(ban(text, "only `sandkasten` prints and exits", library));
    }
    for text in ["env::var", "env::args", "env::vars"] {
        all.push(ban(text, "only `sandkasten` reads argv and the environment", library));
    }
    all.push(ban("StatusCode", "engine knows no HTTP", engine));
    all.push(ban("RUSTUP_TOOLCHAIN", "the toolchain is the user's to choose", |file| {
        !["xtask/src/cargo.rs", "xtask/src/tidy.rs"].contains(&file)
    }));
    // Written in two parts, so that this file does not break its own rule.
    for (host, rest) in
        [("py", "pi.org"), ("crates", ".io/"), ("npm", "js.org"), ("deb.debian", ".org")]
    {
        all.push(ban(&format!("{host}{rest}"), "no file names a registry", |file| {
            file != "Cargo.lock"
        }));
    }
    if let Some(place) = machine_path() {
        all.push(Ban {
            text: place,
            why: "no file names a path of this machine",
            within: |_| true,
        });
    }
    all
}

/// Where the checkout lies, if that is a path that says something.
fn machine_path() -> Option<String> {
    let checkout = fs::canonicalize(root()).ok()?;
    Some(format!("{}/", checkout.display())).filter(|path| path.len() > 6)
}

fn text_rules(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let bans = bans();
    let mut faults = Vec::new();
    for file in files {
        let bytes =
            fs::read(root().join(file)).with_context(|| format!("read {}", file.display()))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let name = file.to_string_lossy();
        for ban in bans.iter().filter(|ban| (ban.within)(&name)) {
            let product = product_part(&name, &text);
            for (number, line) in
                product.lines().enumerate().filter(|(_, line)| is_code_with(line, ban))
            {
                faults.push(format!("{name}:{}: `{}`: {}", number + 1, line.trim(), ban.why));
            }
        }
        if file.extension().is_some_and(|kind| kind == "rs") {
            faults.extend(rust_rules(&name, &text));
        }
    }
    Ok(faults)
}

/// A Rust file without its tests, which may do what the product may not.
fn product_part<'a>(name: &str, text: &'a str) -> &'a str {
    let end = if name.ends_with(".rs") { text.find("#[cfg(test)]") } else { None };
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

fn is_code_with(line: &str, ban: &Ban) -> bool {
    line.contains(&ban.text) && !line.trim_start().starts_with("//")
}

fn rust_rules(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let in_source =
        name.contains("/src/") || name.contains("/tests/") || name.ends_with("build.rs");
    let head = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!"));
    if in_source && !head.is_some_and(|line| line.starts_with("//!")) {
        faults.push(format!("{name}: no module head (`//!`) that says purpose and invariant"));
    }
    if !UNSAFE.contains(&name) {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| says_unsafe(line)) {
            faults.push(format!("{name}:{}: unsafe: `{}`", number + 1, line.trim()));
        }
    }
    faults
}

/// Whether a line has an unsafe block, function or implementation.
fn says_unsafe(line: &str) -> bool {
    // Every second part between quotes is a text.
    let code: String = line.split('"').step_by(2).collect();
    let code = code.split("//").next().unwrap_or_default();
    ["{", "fn", "impl", "extern", "trait"]
        .iter()
        .any(|next| code.contains(&format!("unsafe {next}")))
}

/// The binary that users get needs no loader. Where it has not been built, it is built.
fn static_binary() -> anyhow::Result<Vec<String>> {
    let binary: &Path = &target_dir()?.join("release/sandkasten");
    if !binary.exists() {
        build::release()?;
    }
    let fine = build::is_static(binary)?;
    Ok(if fine { Vec::new() } else { vec![format!("{} is not static", binary.display())] })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn unsafe_is_seen_and_talk_about_it_is_not() {
        assert!(says_unsafe("    unsafe { f() }") && says_unsafe("pub unsafe fn f() {}"));
        assert!(!says_unsafe("// unsafe { }") && !says_unsafe("unsafe_code = \"deny\""));
        let in_a_text = format!("contains({q}unsafe {{{q})", q = '\u{22}');
        assert!(!says_unsafe(&in_a_text));
    }

    #[test]
    fn a_change_of_init_is_built_anew() {
        let metadata = metadata().expect("cargo metadata");
        let script = fs::read_to_string(root().join(EMBEDS_INIT)).expect("the build script");
        assert_eq!(unwatched(&metadata, &script), Vec::<String>::new());
        let older = script.replace("\"crates/files\"", "");
        assert_eq!(unwatched(&metadata, &older).len(), 1, "a crate that is not watched is found");
    }

    #[test]
    fn heads_and_bans_are_found() {
        assert_eq!(rust_rules("crates/x/src/a.rs", "fn f() {}\n").len(), 1);
        assert!(rust_rules("crates/x/src/a.rs", "//! Head.\nfn f() {}\n").is_empty());
        let print = bans().into_iter().find(|ban| ban.text == "println!").expect("the rule");
        assert!((print.within)("crates/engine/src/lib.rs"));
        assert!(!(print.within)("crates/sandkasten/src/main.rs"));
    }
}
