//! What every part of init needs: the poller, the engine's connection, rights, `/proc`, and the
//! directory of its own.

use crate::link::Link;
use crate::poll::Poller;
use crate::processes::Proc;
use crate::rights::Rights;
use crate::runtime::RunDir;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) poller: Poller,
    pub(crate) link: Link,
    pub(crate) rights: Rights,
    pub(crate) proc: Proc,
    pub(crate) run: RunDir,
}
