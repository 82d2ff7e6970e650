//! `cargo xtask`: what contributors and CI run.
//!
//! Invariant: a green end means that all of it ran. What is left out is said.

mod arrows;
mod build;
mod built;
mod cargo;
mod fuzz;
mod runner;
mod suites;
mod surroundings;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask ci              tidy, then every suite
cargo xtask test [NAME…]    suites by name (all: every one; jail:i_07 a part); without a name it lists them
cargo xtask needs NAME…     what suites need, in the words of scripts/packages
cargo xtask tidy            format, lints, crate graph, text rules
cargo xtask build           the release binary, static, at target/release/sandkasten
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ci"] => Ok(tidy::run()? & suites::run(&["all"])?),
        ["test"] => {
            print!("{}", suites::list());
            Ok(true)
        }
        ["test", names @ ..] => suites::run(names),
        ["needs", names @ ..] => {
            println!("{}", suites::needs(names)?.join("\n"));
            Ok(true)
        }
        ["tidy"] => tidy::run(),
        ["build"] => build::release().map(|path| {
            println!("{}", path.display());
            true
        }),
        _ => {
            print!("{HELP}");
            Ok(false)
        }
    }
}
