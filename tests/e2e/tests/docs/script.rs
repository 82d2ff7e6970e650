//! Blocks as one shell script: what a block sets (variables, directory) is there for the next.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sandkasten_e2e::lab::{self, Binary};
use sandkasten_e2e::session::quote;

use crate::blocks::{self, Block, Language, Usage};

/// Makes curl fail where the answer is an error, so that no line of a page fails unseen.
const CURLRC: &str = "fail-with-body\nsilent\nshow-error\n";

/// A script of blocks, and where each one's output goes.
#[derive(Debug)]
pub(crate) struct Script {
    dir: PathBuf,
    text: String,
    /// Blocks of output, with the number of the block that writes it.
    shown: Vec<(usize, Block)>,
    blocks: usize,
}

impl Script {
    /// `dir` is where files of the script go.
    pub(crate) fn new(dir: &Path) -> Self {
        fs::write(dir.join(".curlrc"), CURLRC).expect("write curl's settings");
        let text = "set -euo pipefail\n".to_owned();
        Self { dir: dir.to_owned(), text, shown: Vec::new(), blocks: 0 }
    }

    /// A line of the suite's own.
    pub(crate) fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("to memory");
    }

    /// The blocks of a page; those that are not run are parsed.
    #[track_caller]
    pub(crate) fn page(&mut self, page: &str) {
        for block in blocks::of_page(page) {
            match block.usage {
                Usage::Run(language) => self.block(&block, language),
                Usage::Parse(format) => blocks::parse(&block, format, &self.dir),
                Usage::Output => self.shown.push((self.blocks, block)),
                Usage::Show => {}
            }
        }
    }

    fn block(&mut self, block: &Block, language: Language) {
        self.blocks += 1;
        let out = quote(&self.output(self.blocks).to_string_lossy());
        self.line(&format!("echo {} >&2; exec >{out}", quote(&format!("== {}", block.place))));
        match language {
            Language::Shell => self.line(&block.text),
            Language::Python => {
                let file = self.dir.join(format!("block-{}.py", self.blocks));
                fs::write(&file, &block.text).expect("write a block");
                self.line(&format!("python {}", quote(&file.to_string_lossy())));
            }
        }
    }

    fn output(&self, number: usize) -> PathBuf {
        self.dir.join(format!("block-{number}.out"))
    }

    /// The file of the whole.
    pub(crate) fn write(&self) -> PathBuf {
        let file = self.dir.join("script");
        fs::write(&file, &self.text).expect("write the script");
        file
    }

    /// Runs a command that runs the script, and compares what the pages show of its output.
    #[track_caller]
    pub(crate) fn check(&self, command: &mut Command) {
        let Output { status, stderr, .. } = command.output().expect("run the script");
        let wrote: Vec<String> = (1..=self.blocks)
            .filter_map(|number| fs::read_to_string(self.output(number)).ok())
            .collect();
        let errors = String::from_utf8_lossy(&stderr);
        let last = wrote.last().map(String::as_str).unwrap_or_default();
        assert!(status.success(), "{status}\n{errors}\n{last}");
        for (number, block) in &self.shown {
            let got = number.checked_sub(1).and_then(|number| wrote.get(number));
            let got = got.unwrap_or_else(|| panic!("{}: output of nothing", block.place));
            let Block { place, text, .. } = block;
            assert!(blocks::is_shown_as(got, text), "{place} shows\n{text}\nbut it is\n{got}");
        }
    }
}

/// Sets what every script finds in its environment: the binary, the client, no settings of ours.
pub(crate) fn surroundings(command: &mut Command, dir: &Path) {
    lab::clear_settings(command);
    let venv = lab::venv("client-0.3.0", &["sandkasten[agents]==0.3.0"]);
    let binary = Binary::Release.path();
    let mut path: Vec<PathBuf> =
        [&venv, &binary].map(|program| program.parent().expect("a folder").to_owned()).to_vec();
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let path: OsString = std::env::join_paths(path).expect("PATH");
    command.env("PATH", path).env("CURL_HOME", dir);
}
