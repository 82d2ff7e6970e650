//! The dump of a shell's state on its way to init: read as it comes, kept when it is whole.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use sandkasten_protocol::Shell;

use crate::clock::Moment;
use crate::poll::{Poller, Token, Want};
use crate::runtime::Fifo;
use crate::state::{DUMP_BYTES_MAX, Dump, Marks, Saved, Store};
use crate::world::World;

/// Between two looks at a shell that writes nothing.
const LOOK: Duration = Duration::from_millis(50);
/// How long a dump may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read before other events have their turn.
const TURN_BYTES: usize = 1024 * 1024;

/// A dump that was asked for.
#[derive(Debug)]
pub(crate) struct Dumping {
    id: u32,
    fifo: Fifo,
    kind: Shell,
    /// `None`: too big, or it could not be kept.
    text: Option<Store>,
    marks: Marks,
    look: Moment,
    until: Moment,
}

/// What was read so far.
#[derive(Debug)]
pub(crate) enum Got {
    NotYet,
    /// The shell has said all. `None`: more than can be kept.
    Whole(Option<Dump>),
    Broken,
}

impl Dumping {
    /// Makes the way for a dump.
    ///
    /// # Errors
    /// No descriptor or no room for a FIFO.
    pub(crate) fn new(world: &mut World, kind: Shell) -> io::Result<Self> {
        // Open for both, so that it reads as ended at no time: the shell opens it more than once.
        let fifo = world.run.fifo_for_both()?;
        let id = world.poller.fresh_id();
        world.poller.add(&fifo.read, Token::Dump(id), Want::Read)?;
        let now = Moment::now();
        let (look, until) = (now.after(LOOK), now.after(TIMEOUT));
        let (text, marks) = (Some(Store::new()), Marks::default());
        Ok(Self { id, fifo, kind, text, marks, look, until })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn path(&self) -> String {
        self.fifo.path()
    }

    /// Reads what is there, but leaves some of much for the next turn.
    pub(crate) fn read(&mut self, saved: &Saved) -> Got {
        let mut buffer = [0; 16 * 1024];
        let mut turn = 0;
        while turn < TURN_BYTES {
            match rustix::io::read(&self.fifo.read, &mut buffer) {
                Ok(length) => {
                    turn += length;
                    let bytes = buffer.get(..length).unwrap_or_default();
                    self.store(saved, bytes);
                    if self.marks.pass(bytes) {
                        let kind = self.kind;
                        return Got::Whole(self.text.take().map(|text| Dump::new(kind, text)));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Got::NotYet,
                Err(_) => return Got::Broken,
            }
        }
        Got::NotYet
    }

    fn store(&mut self, saved: &Saved, bytes: &[u8]) {
        self.text = self.text.take().filter(|text| text.len() + bytes.len() <= DUMP_BYTES_MAX);
        if let Some(text) = &mut self.text
            && text.push(saved.spool(), bytes).is_err()
        {
            self.text = None;
        }
    }

    pub(crate) fn next_moment(&self) -> Moment {
        self.look.min(self.until)
    }

    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        self.until <= now
    }

    /// Whether it is time to see if the shell still writes.
    pub(crate) fn is_look_due(&mut self, now: Moment) -> bool {
        let is_due = self.look <= now;
        if is_due {
            self.look = now.after(LOOK);
        }
        is_due
    }

    pub(crate) fn close(self, poller: &Poller) {
        poller.remove(&self.fifo.read);
    }
}
