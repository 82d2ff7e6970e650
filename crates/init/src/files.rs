//! Files of the session for the engine. (Written next.)

use std::os::fd::OwnedFd;

use sandkasten_protocol::{FileDone, FileFault, FileOp};

use crate::rights::Ids;
use crate::world::World;

#[derive(Debug)]
pub(crate) struct Files {
    user: Ids,
}

impl Files {
    pub(crate) fn new(user: Ids) -> Self {
        Self { user }
    }

    pub(crate) fn run(
        &mut self,
        _world: &World,
        _op: FileOp,
    ) -> (Result<FileDone, FileFault>, Option<OwnedFd>) {
        let _ = self.user;
        (Err(FileFault::Busy), None)
    }

    pub(crate) fn abort_all(&mut self, _world: &World) {}
}
