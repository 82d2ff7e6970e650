//! Imports inside a crate: from the module that defines a thing, and in no circle.
//!
//! Invariant: a circle of modules that is not in [`CIRCLES`] is a fault, and so is an import of what the
//! crate's root only passes on: it hides which module is above which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cargo::root;

/// Circles that are still there: crate, and modules that know each other. A module leaves when its circle
/// is broken; none comes.
const CIRCLES: [(&str, &[&str]); 4] = [
    (
        "engine",
        &["db", "figures", "files", "host", "raw", "reserve", "session", "sizes", "workspaces"],
    ),
    ("jail", &["cgroup", "launcher", "plan"]),
    ("protocol", &["message", "work"]),
    ("server", &["openapi", "routes"]),
];

type Edges = BTreeMap<String, BTreeSet<String>>;

/// What breaks the rules, over all crates.
pub fn faults(files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for file in files {
        let Some((name, module)) = place(file) else { continue };
        let text = fs::read_to_string(root().join(file))
            .with_context(|| format!("read {}", file.display()))?;
        crates.entry(name).or_default().push((module, product(&text)));
    }
    for (name, modules) in crates {
        faults.extend(of_crate(&name, &modules));
    }
    Ok(faults)
}

/// The crate of a source file, and the module below the crate's root that the file is part of.
fn place(file: &Path) -> Option<(String, String)> {
    let rest = file.strip_prefix("crates").ok()?;
    let mut parts = rest.iter().map(|part| part.to_str());
    let (name, src, module) = (parts.next()??, parts.next()??, parts.next()??);
    let is_source = src == "src" && file.extension().is_some_and(|kind| kind == "rs");
    let is_test =
        rest.iter().any(|part| ["test.rs", "test", "loopback"].contains(&&*part.to_string_lossy()));
    (is_source && !is_test).then(|| (name.to_owned(), module.trim_end_matches(".rs").to_owned()))
}

/// Code without its tests and comments.
fn product(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod test {").unwrap_or(text.len());
    let code = text.get(..end).unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn of_crate(name: &str, modules: &[(String, String)]) -> Vec<String> {
    let is_root = |module: &str| module == "lib" || module == "main";
    let root = modules.iter().filter(|(module, _)| is_root(module));
    let passed_on: BTreeSet<String> = root.flat_map(|(_, text)| passed_on(text)).collect();
    let known: BTreeSet<&str> = modules.iter().map(|(module, _)| module.as_str()).collect();
    let (mut faults, mut edges) = (Vec::new(), Edges::new());
    for (module, text) in modules.iter().filter(|(module, _)| !is_root(module)) {
        for target in imports(text) {
            if known.contains(target.as_str()) {
                if target != *module {
                    edges.entry(module.clone()).or_default().insert(target);
                }
            } else if passed_on.contains(&target) {
                faults
                    .push(format!("crates/{name}: `{module}` imports `{target}` through the root"));
            }
        }
    }
    faults.extend(new_circles(name, &edges));
    faults
}

/// Names that the root has from its modules.
fn passed_on(text: &str) -> Vec<String> {
    let uses = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let names = uses.flat_map(|path| {
        let list = path.split_once('{').map_or_else(
            || path.rsplit("::").next().unwrap_or_default(),
            |(_, list)| list.trim_end_matches('}'),
        );
        list.split(',')
    });
    names.map(|name| name.rsplit(" as ").next().unwrap_or_default().trim().to_owned()).collect()
}

/// The first names after each `crate::`.
fn imports(text: &str) -> Vec<String> {
    let names = text.split("crate::").skip(1).flat_map(first_names);
    names.filter(|name| !name.is_empty()).collect()
}

fn first_names(path: &str) -> Vec<String> {
    let ident = |text: &str| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        text.trim_start().chars().take_while(|c| is_part(*c)).collect::<String>()
    };
    let Some(list) = path.strip_prefix('{') else { return vec![ident(path)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0_u32, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(ident(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
        if c == '}' && start == at + 1 {
            break;
        }
    }
    names
}

fn new_circles(name: &str, edges: &Edges) -> Vec<String> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|module| (module, reachable(module, edges))).collect();
    let is_in_circle = |module: &String| reach[module].contains(module);
    let allowed =
        |module: &str| CIRCLES.iter().any(|(of, modules)| *of == name && modules.contains(&module));
    let new = edges.keys().filter(|module| is_in_circle(module) && !allowed(module));
    new.map(|module| format!("crates/{name}: `{module}` is in a circle of modules")).collect()
}

fn reachable<'a>(from: &str, edges: &'a Edges) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(edges.get(module).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod test {
    use super::*;

    fn faults_of(modules: &[(&str, &str)]) -> Vec<String> {
        let modules: Vec<_> =
            modules.iter().map(|(name, text)| ((*name).to_owned(), product(text))).collect();
        of_crate("x", &modules)
    }

    #[test]
    fn what_the_root_passes_on_is_imported_from_its_module() {
        let lib = "pub use a::{One, Two as Other};\npub use b::three;\n";
        let of = |text| faults_of(&[("lib", lib), ("a", ""), ("b", ""), ("c", text)]).len();
        assert_eq!(of("use crate::a::One;\nuse crate::{a::{One, Two}, b};\n"), 0);
        assert_eq!(of("use crate::One;\n"), 1);
        assert_eq!(of("use crate::{\n    b, Other,\n};\nfn f() { crate::three() }\n"), 2);
        assert_eq!(of("// use crate::One;\n#[cfg(test)]\nmod test {\n    use crate::One;\n}\n"), 0);
    }

    #[test]
    fn circles_are_found() {
        let (a, b, c) =
            (("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "use crate::a::A;"));
        assert_eq!(faults_of(&[a, b, ("c", "")]), Vec::<String>::new());
        assert_eq!(faults_of(&[a, b, c]).len(), 3);
    }

    #[test]
    fn known_circles_are_circles_still() {
        let files = crate::tidy::files().expect("the files");
        assert_eq!(faults(&files).expect("the sources"), Vec::<String>::new());
    }
}
