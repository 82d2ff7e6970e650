//! What a new shell takes over from the one before: its directory, and the last whole dump.
//!
//! A dump is text that the shell itself has written to be read again by a shell (`declare -p`,
//! `set`, …), in [`SECTIONS`] parts with a NUL behind each. init takes it apart at the NULs and hands
//! it on as quoted text; it reads only what it has to say in its own words, which functions and
//! aliases of the payload can't change: names of options, marks of functions, the umask.
//!
//! Dumps of up to [`IN_MEMORY_BYTES`] stay in memory, larger ones lie in an unnamed file in the spool
//! directory, where init may write there.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use sandkasten_protocol::Shell;

use crate::line::{push, quote};

/// Bytes of a dump. A bigger one is read and thrown away.
pub(crate) const DUMP_BYTES_MAX: usize = 16 * 1024 * 1024;
const IN_MEMORY_BYTES: usize = 64 * 1024;
/// Parts of a dump; the last one is the mark of its end.
const SECTIONS: usize = 7;
/// Where a new shell finds what it is to load.
const LOAD_PATH: &[u8] = b"/proc/self/fd/3";
/// Functions that would come between a shell and the lines it is given, even behind a backslash.
const NEVER_FUNCTIONS: [&[u8]; 5] = [b"builtin", b"command", b"eval", b"printf", b"exec"];
/// Options that would end the new shell, or say how it was started.
const NEVER_OPTIONS: [&[u8]; 5] = [b"onecmd", b"noexec", b"restricted", b"stdin", b"interactive"];
/// Times that loading one dump may end the shell before the dump is given up.
const LOADS_MAX: u32 = 2;

/// State of the last finished command.
#[derive(Debug)]
pub(crate) struct Saved {
    first_cwd: Vec<u8>,
    cwd: Vec<u8>,
    dump: Option<Dump>,
    spool: Option<OwnedFd>,
    /// A command has finished since the dump was taken.
    is_stale: bool,
    /// A shell was started without all that the last finished command has left.
    is_lost: bool,
    failed_loads: u32,
    /// Names that a new shell has from its start.
    names: Vec<Vec<u8>>,
    /// Options of the bash that has written the last dump.
    options: Options,
}

/// What a dump says of a bash's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Options {
    Usual,
    /// POSIX mode.
    Posix,
    /// Traps or traces may run between the words of a dump.
    Traced,
    /// There is no dump, or it is of another shell.
    Unknown,
}

/// A whole dump.
#[derive(Debug)]
pub(crate) struct Dump {
    kind: Shell,
    text: Store,
    options: Options,
}

/// Bytes in memory or in a file.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(Vec<u8>),
    File(OwnedFd, usize),
}

impl Saved {
    pub(crate) fn new(cwd: Vec<u8>, spool: Option<OwnedFd>, names: Vec<Vec<u8>>) -> Self {
        let (dump, is_stale, is_lost) = (None, false, false);
        let first_cwd = cwd.clone();
        Self {
            first_cwd,
            cwd,
            dump,
            spool,
            is_stale,
            is_lost,
            failed_loads: 0,
            names,
            options: Options::Unknown,
        }
    }

    /// The next shell is to be as the first one was.
    pub(crate) fn forget(&mut self) {
        self.cwd.clone_from(&self.first_cwd);
        self.dump = None;
        self.options = Options::Unknown;
        self.is_stale = false;
        self.is_lost = false;
        self.failed_loads = 0;
    }

    /// A shell is in this directory.
    pub(crate) fn take_over(&mut self, cwd: Vec<u8>) {
        self.cwd = cwd;
    }

    pub(crate) fn cwd(&self) -> &[u8] {
        &self.cwd
    }

    pub(crate) fn spool(&self) -> Option<&OwnedFd> {
        self.spool.as_ref()
    }

    /// Length of the dump that is kept.
    pub(crate) fn dump_bytes(&self) -> Option<usize> {
        self.dump.as_ref().map(|dump| dump.text.len())
    }

    /// A command has finished: its state has to be dumped.
    pub(crate) fn note_finished(&mut self) {
        self.is_stale = true;
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Options of the shell as it is now.
    pub(crate) fn options(&self) -> Options {
        if self.is_stale { Options::Unknown } else { self.options }
    }

    /// How the next dump is to be written.
    pub(crate) fn words(&self) -> Words {
        if self.options == Options::Traced { Words::Guarded } else { Words::Plain }
    }

    pub(crate) fn keep(&mut self, dump: Dump) {
        self.options = dump.options;
        self.dump = Some(dump);
        self.is_stale = false;
        self.failed_loads = 0;
    }

    /// Another shell takes over: what is not in the dump is gone.
    pub(crate) fn note_new_shell(&mut self) {
        self.is_lost |= std::mem::take(&mut self.is_stale);
        self.options = Options::Unknown;
    }

    /// A shell has ended while it loaded the dump. Whether to try again: the dump is given up when
    /// that goes on.
    pub(crate) fn on_failed_load(&mut self) -> bool {
        if self.dump.is_none() {
            return false;
        }
        self.failed_loads += 1;
        if self.failed_loads >= LOADS_MAX {
            self.dump = None;
            self.is_lost = true;
        }
        true
    }

    /// Whether something was lost that nobody was told of.
    pub(crate) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.is_lost)
    }

    /// A sealed file that a new shell reads its state from. `None`: there is nothing for it.
    ///
    /// # Errors
    /// No descriptor, no memory, or the file of the dump can't be read.
    pub(crate) fn load_file(&self, kind: Shell) -> io::Result<Option<OwnedFd>> {
        let Some(dump) = self.dump.as_ref().filter(|dump| dump.kind == kind) else {
            return Ok(None);
        };
        let bytes = dump.text.bytes()?;
        let sections: Vec<&[u8]> = bytes.split(|b| *b == 0).collect();
        let text = match kind {
            Shell::Bash => bash_load(&sections, &self.names),
            Shell::Sh => sh_load(&sections, &self.names),
        };
        let file =
            rustix::fs::memfd_create("state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::write(&file, rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        use rustix::fs::SealFlags as Seal;
        rustix::fs::fcntl_add_seals(&file, Seal::WRITE | Seal::GROW | Seal::SHRINK | Seal::SEAL)?;
        Ok(Some(file))
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::Memory(Vec::new())
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(_, length) => *length,
        }
    }

    /// Appends. What does not fit into a file stays in memory.
    pub(crate) fn push(&mut self, spool: Option<&OwnedFd>, more: &[u8]) -> io::Result<()> {
        if let Self::Memory(bytes) = self
            && bytes.len() + more.len() > IN_MEMORY_BYTES
            && let Some(file) = spool.and_then(|spool| unnamed_file(spool).ok())
            && write_at(&file, 0, bytes).is_ok()
        {
            *self = Self::File(file, bytes.len());
        }
        match self {
            Self::Memory(bytes) => bytes.extend_from_slice(more),
            Self::File(file, length) => {
                write_at(file, *length as u64, more)?;
                *length += more.len();
            }
        }
        Ok(())
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let (file, length) = match self {
            Self::Memory(bytes) => return Ok(bytes.clone()),
            Self::File(file, length) => (file, *length),
        };
        let mut bytes = vec![0; length];
        let mut read = 0;
        while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(file, rest, read as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => read += more,
            }
        }
        Ok(bytes)
    }
}

/// It goes with its descriptor; nobody finds it by a name.
pub(crate) fn unnamed_file(dir: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR)?)
}

/// Writes all of it at that place.
pub(crate) fn write_at(file: &OwnedFd, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        written += rustix::io::pwrite(file, rest, at + written as u64)?;
    }
    Ok(())
}

/// Counts the ends of sections, and keeps the last bytes before the end.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    passed: usize,
    tail: Vec<u8>,
}

/// Longer than the names of all options.
const TAIL_BYTES_MAX: usize = 4096;

impl Marks {
    /// Whether the dump is whole with these bytes.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while self.passed < SECTIONS
            && let Some(end) = rest.iter().position(|b| *b == 0)
        {
            self.note(rest.get(..=end).unwrap_or_default());
            rest = rest.get(end + 1..).unwrap_or_default();
            self.passed += 1;
        }
        if self.passed < SECTIONS {
            self.note(rest);
        }
        self.passed >= SECTIONS
    }

    fn note(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES_MAX);
        self.tail.drain(..surplus);
    }

    /// What the section before the last one says. A trap that has written between the words of a dump
    /// leaves something else there, or the option that let it.
    fn options(&self) -> Options {
        let Some(options) = self.tail.rsplit(|b| *b == 0).nth(2) else { return Options::Traced };
        let mut words = options.split(|b| *b == b':');
        if !words.clone().all(is_word) || words.clone().any(|word| TRACING.contains(&word)) {
            Options::Traced
        } else if words.any(|word| word == b"posix") {
            Options::Posix
        } else {
            Options::Usual
        }
    }
}

/// Options under which something of the payload's may write between the words of a dump.
const TRACING: [&[u8]; 2] = [b"functrace", b"xtrace"];

impl Dump {
    pub(crate) fn new(kind: Shell, text: Store, marks: &Marks) -> Self {
        let options = match kind {
            Shell::Bash => marks.options(),
            Shell::Sh => Options::Unknown,
        };
        Self { kind, text, options }
    }

    /// Whether it may be other than the shell's state, if it was written in these words.
    pub(crate) fn is_doubtful(&self, words: Words) -> bool {
        words == Words::Plain && self.options == Options::Traced
    }
}

/// How a dump is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// To stdout. What a trap or a trace of the payload's writes meanwhile is in it.
    Plain,
    /// To descriptor 9, which is lent; the shell puts its own back. stdout stays `/dev/null`. That costs
    /// ten more system calls a word.
    Guarded,
}

impl Words {
    /// Name of the file with them.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "d",
            Self::Guarded => "e",
        }
    }
}

/// Writes the state of a shell to `path`, in a way that changes none of it. Under `set -e` no status of
/// these ends the shell.
///
/// `file` has the words for bash, in which `eval` may be disabled.
pub(crate) fn dump_line(shell: Shell, words: Words, path: &str, file: Option<&str>) -> Vec<u8> {
    let caller: &[u8] = match shell {
        Shell::Bash => b"\\builtin ",
        Shell::Sh => b"\\command ",
    };
    let mut line = Vec::new();
    match file {
        Some(file) if shell == Shell::Bash => {
            push(&mut line, &[caller, b"source ", file.as_bytes()]);
        }
        _ => push(&mut line, &[caller, b"eval '", &dump_words(shell, words), b"'"]),
    }
    let to: &[u8] = if writes_to_stdout(shell, words) { b" >" } else { b" 9>" };
    push(&mut line, &[to, path.as_bytes(), b" || ", caller, b":\n"]);
    line
}

fn writes_to_stdout(shell: Shell, words: Words) -> bool {
    shell == Shell::Bash && words == Words::Plain
}

/// What writes the parts of a dump. No word of it is `eval`, which may be disabled.
pub(crate) fn dump_words(shell: Shell, words: Words) -> Vec<u8> {
    let to: &[u8] = if writes_to_stdout(shell, words) { b"" } else { b" >&9" };
    let (caller, words): (&[u8], &[&[u8]]) = match shell {
        Shell::Bash => (
            b"\\builtin ",
            &[
                b"declare -p",
                b"printf \"\\0\"",
                b"declare -f",
                b"printf \"\\0\"",
                b"declare -F",
                b"printf \"\\0\"",
                b"alias -p",
                b"printf \"\\0\"",
                b"umask",
                b"printf \"\\0$SHELLOPTS\\0$BASHOPTS\\0\"",
            ],
        ),
        Shell::Sh => (
            b"\\command ",
            &[
                b"set",
                b"printf \"\\0\"",
                b"export -p",
                b"printf \"\\0\"",
                b"readonly -p",
                b"printf \"\\0\"",
                b"alias",
                b"printf \"\\0\"",
                b"umask",
                b"printf \"\\0\"",
                b"set +o",
                b"printf \"\\0\\0\"",
            ],
        ),
    };
    let words: Vec<Vec<u8>> = words.iter().map(|word| [caller, word, to].concat()).collect();
    words.join(&b" && "[..])
}

/// Words of a new shell's first line that load its state from descriptor 3.
pub(crate) fn load_words(shell: Shell) -> Vec<u8> {
    match shell {
        // An error of the variables ends that line alone.
        Shell::Bash => {
            let source = [b"\\builtin source ", LOAD_PATH].concat();
            let rest = b" || \\builtin :\n\\builtin exec 3<&-; ";
            [&source, &b" variables || \\builtin :\n"[..], &source, rest].concat()
        }
        Shell::Sh => {
            [b"\\command . ", LOAD_PATH, b" || \\command :; \\command exec 3<&-; "].concat()
        }
    }
}

/// Functions come after everything that is text of builtins, since they may have their names;
/// options after the functions, since `set -e` would judge the load.
fn bash_load(sections: &[&[u8]], names: &[Vec<u8>]) -> Vec<u8> {
    let [variables, functions, marks, aliases, umask, options, shopts, ..] = sections else {
        return Vec::new();
    };
    let options = on_and_off(options);
    let mut text = b"\\builtin test \"${1-}\" = variables && {\n".to_vec();
    push(&mut text, &[b"\\builtin shopt -u ${BASHOPTS//:/ }\n"]);
    // What the shell has from its start and the state has not.
    push(&mut text, &[b"\\builtin unset -v HOSTNAME HOSTTYPE IFS MACHTYPE OLDPWD OPTERR OPTIND"]);
    push(&mut text, &[b" OSTYPE PATH PS4 PWD SHELL SHLVL TERM"]);
    push_names(&mut text, names);
    push(&mut text, &[b"\n\\builtin eval ", &quote(&without_evaluation(variables)), b"\n"]);
    // Of the shell's own these are the ones that an assignment changes.
    push(&mut text, &[b"LINENO=2\nSECONDS=0\nRANDOM=$BASHPID\n"]);
    push(&mut text, &[b"[[ -z ${PWD-} || $PWD -ef . ]] || \\builtin cd .\n"]);
    push(&mut text, &[b"\\builtin return; }\n"]);
    push(&mut text, &[b"\\builtin eval ", &quote(aliases), b"\n"]);
    push(&mut text, &[b"\\builtin umask ", &umask_of(umask), b"\n"]);
    // In POSIX mode a function with the name of a special builtin ends the shell.
    if options.iter().any(|o| o.name == b"posix" && o.on) {
        push(&mut text, &[b"\\builtin set +o posix\n"]);
    }
    push(&mut text, &[b"\\builtin shopt -u expand_aliases\n\\builtin shopt -s extglob\n"]);
    push(&mut text, &[b"\\builtin eval ", &quote(functions), b"\n"]);
    if marks_of(marks).any(|(_, name)| NEVER_FUNCTIONS.contains(&name)) {
        // An assignment needs no word that a function could have taken, and in POSIX mode `unset`
        // is found before functions.
        push(&mut text, &[b"POSIXLY_CORRECT=1\n\\unset -f ", &NEVER_FUNCTIONS.join(&b' ')]);
        push(&mut text, &[b"\n\\unset -v POSIXLY_CORRECT\n"]);
    }
    for (mark, name) in marks_of(marks) {
        if mark != b"-f" {
            push(&mut text, &[b"\\builtin declare ", mark, b" -- ", &quote(name), b"\n"]);
        }
    }
    push(&mut text, &[b"\\builtin shopt -u extglob\n"]);
    push_options(&mut text, &options, b"\\builtin set");
    let shopts: Vec<_> = shopts.split(|b| *b == b':').filter(|w| is_word(w)).collect();
    push(&mut text, &[b"\\builtin shopt -s", b" ", &shopts.join(&b' '), b" || \\builtin :\n"]);
    text
}

/// Aliases come last, since they hold for the words behind them; functions can't be had.
fn sh_load(sections: &[&[u8]], names: &[Vec<u8>]) -> Vec<u8> {
    let [variables, exports, readonly, aliases, umask, options, ..] = sections else {
        return Vec::new();
    };
    let mut text = b"\\command unset IFS OLDPWD PS1 PS2 PS4".to_vec();
    push_names(&mut text, names);
    // The supervisor is another one now.
    push(&mut text, &[b"\n\\command set -- \"$PPID\" \"$PWD\"\n"]);
    push(&mut text, &[b"\\command eval ", &quote(variables), b"\n"]);
    push(&mut text, &[b"\\command eval ", &quote(exports), b"\nPPID=$1\n"]);
    push(&mut text, &[b"\\command test -z \"${PWD-}\" || \\command test \"$PWD\" -ef . || "]);
    push(&mut text, &[b"PWD=$2\n\\command set --\n"]);
    push(&mut text, &[b"\\command eval ", &quote(readonly), b"\n"]);
    push(&mut text, &[b"\\command umask ", &umask_of(umask), b"\n"]);
    push_options(&mut text, &options_of(options), b"\\command set");
    if !aliases.is_empty() {
        let words = [b"\\command alias ".to_vec(), on_one_line(aliases)].concat();
        push(&mut text, &[b"\\command eval ", &quote(&words), b" || \\command :\n"]);
    }
    text
}

/// An integer variable may hold what is no number (`x=1/0; declare -i x`), and loading that would
/// stop the shell. So integers get their values as others do, and their attribute afterwards.
fn without_evaluation(variables: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(variables.len());
    let mut integers = Vec::new();
    for part in declarations(variables) {
        match integer(part) {
            Some((attributes, rest)) => {
                let plain: Vec<u8> =
                    attributes.iter().copied().filter(|a| !matches!(a, b'i' | b'r')).collect();
                let plain = if plain.is_empty() { b"-".to_vec() } else { plain };
                push(&mut text, &[b"declare -", &plain, b" ", rest]);
                let end = rest.iter().position(|b| matches!(b, b'=' | b'\n')).unwrap_or(rest.len());
                let name = rest.get(..end).unwrap_or_default();
                push(&mut integers, &[b"declare -", attributes, b" ", name, b"\n"]);
            }
            None => text.extend_from_slice(part),
        }
    }
    [text, integers].concat()
}

/// Attributes, name and value of a declaration with the integer attribute.
fn integer(declaration: &[u8]) -> Option<(&[u8], &[u8])> {
    let words = declaration.strip_prefix(b"declare -")?;
    let space = words.iter().position(|b| *b == b' ')?;
    let (attributes, rest) = (words.get(..space)?, words.get(space + 1..)?);
    attributes.contains(&b'i').then_some((attributes, rest))
}

/// Cuts the text behind each newline that stands in no quotes.
fn declarations(text: &[u8]) -> Vec<&[u8]> {
    let mut open = None;
    let mut is_escaped = false;
    let mut before = b'\n';
    text.split_inclusive(move |&b| {
        let is_dollar = std::mem::replace(&mut before, b) == b'$';
        match open {
            _ if std::mem::take(&mut is_escaped) => {}
            Some((_, true)) | None if b == b'\\' => is_escaped = true,
            Some((quote, _)) if b == quote => open = None,
            None if b == b'"' => open = Some((b, true)),
            None if b == b'\'' => open = Some((b, is_dollar)),
            _ => {}
        }
        b == b'\n' && open.is_none()
    })
    .collect()
}

fn push_names(text: &mut Vec<u8>, names: &[Vec<u8>]) {
    for name in names.iter().filter(|name| crate::line::is_name(name)) {
        push(text, &[b" ", name]);
    }
}

/// An option of `set -o`.
#[derive(Debug, PartialEq, Eq)]
struct ShellOption<'a> {
    name: &'a [u8],
    on: bool,
}

/// Reads what `set +o` says: lines like `set -o errexit`.
fn options_of(text: &[u8]) -> Vec<ShellOption<'_>> {
    let lines = text.split(|b| *b == b'\n');
    lines
        .filter_map(|line| {
            let (name, on) = match line.strip_prefix(b"set -o ") {
                Some(name) => (name, true),
                None => (line.strip_prefix(b"set +o ")?, false),
            };
            let is_known = is_word(name) && !NEVER_OPTIONS.contains(&name);
            is_known.then_some(ShellOption { name, on })
        })
        .collect()
}

/// Reads `$SHELLOPTS`: the names of those that are on. A new shell has some that may be off here.
fn on_and_off(text: &[u8]) -> Vec<ShellOption<'_>> {
    const FROM_THE_START: [&[u8]; 3] = [b"braceexpand", b"hashall", b"interactive-comments"];
    let is_known = |name: &&[u8]| is_word(name) && !NEVER_OPTIONS.contains(name);
    let on: Vec<&[u8]> = text.split(|b| *b == b':').filter(is_known).collect();
    let off = FROM_THE_START.into_iter().filter(|name| !on.contains(name));
    let off: Vec<_> = off.map(|name| ShellOption { name, on: false }).collect();
    on.iter().map(|name| ShellOption { name, on: true }).chain(off).collect()
}

/// First those that are off, then those that are on, and what may end the shell or change others at
/// the edge of that: POSIX mode before all, `set -e` behind all.
fn push_options(text: &mut Vec<u8>, options: &[ShellOption<'_>], set: &[u8]) {
    // These two exclude each other: naming one as off turns both off.
    const EDITORS: [&[u8]; 2] = [b"emacs", b"vi"];
    let rank = |o: &ShellOption<'_>| match o.name {
        b"posix" => 0,
        b"errexit" => 3,
        _ if o.on => 2,
        _ => 1,
    };
    let mut ordered: Vec<_> = options.iter().collect();
    ordered.sort_by_key(|o| rank(o));
    for option in ordered {
        let sign: &[u8] = if option.on { b" -o " } else { b" +o " };
        if option.on || !EDITORS.contains(&option.name) {
            push(text, &[set, sign, option.name, b"\n"]);
        }
    }
}

/// Reads what `declare -F` says: lines like `declare -fx name`.
fn marks_of(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|b| *b == b'\n').filter_map(|line| {
        let line = line.strip_prefix(b"declare ")?;
        let space = line.iter().position(|b| *b == b' ')?;
        let (mark, name) = (line.get(..space)?, line.get(space + 1..)?);
        let is_mark = mark.strip_prefix(b"-f")?.iter().all(u8::is_ascii_lowercase);
        is_mark.then_some((mark, name))
    })
}

fn umask_of(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text.iter().copied().take_while(|b| (b'0'..=b'7').contains(b)).collect();
    if digits.is_empty() || digits.len() > 4 { b"0022".to_vec() } else { digits }
}

fn is_word(word: &[u8]) -> bool {
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    word.first().is_some_and(u8::is_ascii_alphabetic) && word.iter().all(is_part)
}

/// `alias` of a plain shell writes words on lines; newlines outside of quotes become spaces.
fn on_one_line(text: &[u8]) -> Vec<u8> {
    let mut open = None;
    let close = |b: u8, open: &mut Option<u8>| match *open {
        None if b == b'\'' || b == b'"' => *open = Some(b),
        Some(quote) if quote == b => *open = None,
        _ => {}
    };
    text.iter()
        .map(|&b| {
            close(b, &mut open);
            if b == b'\n' && open.is_none() { b' ' } else { b }
        })
        .collect()
}
