//! The state of the shell on its way to init, after each command.

use sandkasten_protocol::Shell;

use crate::clock::Moment;
use crate::dump::{Dumping, Got};
use crate::shell::ShellProcess;
use crate::state::{self, Words};

use super::Session;

impl Session {
    /// Has the shell write its state, where a command has changed it.
    pub(super) fn start_dump(&mut self, words: Words) {
        if self.dumping.is_some() {
            // What has ended since then has not come to the shell.
            return;
        }
        let ahead = self.dump_ahead.take();
        let is_ready = self.shell.as_ref().is_some_and(ShellProcess::is_ready);
        // No descriptor or no room: the last dump stays.
        if !(self.saved.is_stale() && is_ready && self.say_dump(words, ahead).is_ok()) {
            self.replace_if_broken();
        }
    }

    fn say_dump(&mut self, words: Words, ahead: Option<Dumping>) -> std::io::Result<()> {
        let mut dumping = match ahead {
            Some(dumping) => dumping,
            None => {
                let (dumping, line) = self.new_dump(words)?;
                if let Some(shell) = self.shell.as_mut() {
                    shell.say(&self.world, &line);
                }
                dumping
            }
        };
        dumping.listen(&self.world.poller)?;
        self.dumping = Some(dumping);
        Ok(())
    }

    /// What to say behind a command. Nothing where there is no room: then it is tried when that is over.
    pub(super) fn dump_line_ahead(&mut self) -> Vec<u8> {
        let Ok((dumping, line)) = self.new_dump(self.saved.words()) else { return Vec::new() };
        self.dump_ahead = Some(dumping);
        line
    }

    /// The way of a dump, and the line that asks for it.
    fn new_dump(&mut self, words: Words) -> std::io::Result<(Dumping, Vec<u8>)> {
        let kind = self.shell.as_ref().map_or(Shell::Sh, |shell| shell.kind);
        let dumping = Dumping::new(&mut self.world, (kind, words), &self.saved)?;
        // The box's root may have removed it.
        self.dump_words =
            self.dump_words.take().filter(|(of, file)| *of == words && file.is_there());
        if self.dump_words.is_none() && kind == Shell::Bash {
            let text = state::dump_words(Shell::Bash, words);
            let file = self.world.run.open_text(words.name(), &text).ok();
            self.dump_words = file.map(|file| (words, file));
        }
        let file = self.dump_words.as_ref().map(|(_, file)| file.path());
        let line = state::dump_line(kind, words, &dumping.path(), file.as_deref());
        Ok((dumping, line))
    }

    pub(super) fn on_dump(&mut self) {
        let Some(dumping) = self.dumping.as_mut() else { return };
        match dumping.read(&self.saved) {
            Got::NotYet => {}
            Got::Whole(Some(dump)) if dump.is_doubtful(dumping.words()) => {
                if let Some(doubtful) = self.dumping.take() {
                    doubtful.close(&self.world.poller);
                }
                self.start_dump(Words::Guarded);
                if self.dumping.is_none() {
                    self.end_dump();
                }
            }
            Got::Whole(dump) => {
                if let Some(dump) = dump {
                    self.saved.keep(dump);
                }
                self.end_dump();
            }
            Got::Broken => self.end_dump(),
        }
    }

    fn end_dump(&mut self) {
        if let Some(dumping) = self.dumping.take() {
            dumping.close(&self.world.poller);
        }
        if let Some(running) = self.running.as_mut() {
            running.on_dump_over();
        }
        self.replace_if_broken();
    }

    /// The shell has ended: what it has written may be whole.
    pub(super) fn take_last_dump(&mut self) {
        self.is_to_be_replaced = false;
        let ahead = self.dump_ahead.take();
        self.dumping = self.dumping.take().or(ahead);
        if let Some(dumping) = self.dumping.as_mut()
            && let Got::Whole(Some(dump)) = dumping.read(&self.saved)
            && !dump.is_doubtful(dumping.words())
        {
            self.saved.keep(dump);
        }
        self.end_dump();
    }

    /// A shell that waits for its next line has written all that it will; one that takes for ever is
    /// ended.
    pub(super) fn look_at_dump(&mut self, now: Moment) {
        let Some(dumping) = self.dumping.as_mut() else { return };
        if dumping.is_overdue(now) {
            self.replace_shell();
        } else if dumping.is_look_due(now) {
            let ids = self.setup.ids;
            if self.shell.as_ref().is_some_and(|shell| shell.waits_for_script(&self.world, ids)) {
                // What it has written before it began to wait. Another may have been asked for then.
                let id = dumping.id();
                self.on_dump();
                if self.dumping.as_ref().is_some_and(|dumping| dumping.id() == id) {
                    self.end_dump();
                }
            } else {
                dumping.read_as_it_comes(&self.world.poller);
            }
        }
    }
}
