//! Each page of `docs` runs on the suite's daemon, with the variables that the index sets, in a folder
//! of its own.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use sandkasten_e2e::{Lab, lab, leaks};

use crate::script::{self, Script};

/// Sets the variables that all pages use.
const INDEX: &str = "docs/README.md";
/// What the index made goes again, however the page ends.
const CLEAN_UP: &str = r#"trap 'curl -X DELETE -H "$AUTH" "$API/sessions/$ID" >/dev/null' EXIT"#;

fn runs(page: &str) {
    let shared = Lab::shared();
    let dir = lab::scratch_dir(&leaks::tag());
    let mut script = Script::new(dir.path());
    script.page(INDEX);
    script.line(CLEAN_UP);
    if page != INDEX {
        script.page(page);
    }
    let mut command = Command::new("bash");
    script::surroundings(&mut command, dir.path());
    command.env("SANDKASTEN_URL", format!("http://{}", shared.client.addr));
    command.env("SANDKASTEN_API_KEY", shared.client.key.clone().unwrap_or_default());
    command.env("SANDKASTEN_DATA_DIR", &shared.data_dir);
    script.check(command.arg(script.write()).current_dir(dir.path()));
}

/// One test a page, by its file's name.
macro_rules! pages {
    ($($name:ident)*) => {
        /// The pages that are run.
        const PAGES: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            runs(&file(stringify!($name)));
        })*
    };
}

pages! { readme agents cli configuration errors execs files images operating processes sessions workspaces }

fn file(name: &str) -> String {
    match name {
        "readme" => INDEX.to_owned(),
        name => format!("docs/{name}.md"),
    }
}

#[test]
fn every_page_is_run_and_in_the_index() {
    let index = fs::read_to_string(lab::checkout().join(INDEX)).expect("the index");
    let mut there = BTreeSet::new();
    for entry in fs::read_dir(lab::checkout().join("docs")).expect("docs") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !name.ends_with(".md") {
            continue;
        }
        assert!(
            name == "README.md" || index.contains(&format!("]({name})")),
            "{name} is in no index"
        );
        there.insert(format!("docs/{name}"));
    }
    assert_eq!(there, PAGES.iter().map(|name| file(name)).collect());
}

/// The pages beside `docs` that have no daemon to talk to.
#[test]
fn other_pages_have_blocks_that_are_known() {
    let dir = tempfile::tempdir().expect("a folder");
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"] {
        Script::new(dir.path()).page(page);
    }
}
