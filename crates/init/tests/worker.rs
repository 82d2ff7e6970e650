//! Workers of the real init: whose ids they have, and what happens to them.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail loudly")]

mod boxed;

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use boxed::{Kind, Sandbox};
use sandkasten_protocol::work::{Item, Job, WORK_BYTES_MAX};
use sandkasten_protocol::{Decoder, FileDone, FileFault, FileOp, FileUser};

impl Sandbox {
    fn work(&mut self, job: Job, user: FileUser) -> Result<UnixStream, FileFault> {
        let (result, descriptor) = self.file(FileOp::Work { job, user });
        result.map(|done| {
            assert_eq!(done, FileDone::Opened);
            UnixStream::from(descriptor.unwrap())
        })
    }

    fn list(&mut self, path: &str, user: FileUser) -> Vec<Item> {
        let job = Job::List { path: path.into(), depth: 3, limit: 1000 };
        items(self.work(job, user).unwrap())
    }
}

/// All that a worker says.
fn items(mut socket: UnixStream) -> Vec<Item> {
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    let mut decoder = Decoder::new(WORK_BYTES_MAX);
    decoder.push(&bytes);
    let mut items = Vec::new();
    while let Some(item) = decoder.next_frame().unwrap() {
        items.push(item);
    }
    items
}

#[test]
fn a_worker_has_the_rights_of_its_user() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("mkdir -p a/b shut; echo 12 > a/f; chmod 0 shut");
    let items = sandbox.list(".", FileUser::Session);
    let [Item::Entry(a), Item::Entry(b), Item::Entry(f), Item::Entry(shut), last] =
        items.as_slice()
    else {
        panic!("{items:?}")
    };
    let paths = [a, b, f, shut].map(|entry| entry.path.as_slice());
    assert_eq!(paths, [&b"a"[..], b"a/b", b"a/f", b"shut"]);
    assert_eq!((f.meta.uid, f.meta.size, shut.meta.mode), (1000, 3, 0));
    assert_eq!(*last, Item::Done { truncated: false });
    let denied = Item::Failed { fault: FileFault::PermissionDenied, path: Vec::new() };
    assert_eq!(sandbox.list("shut", FileUser::Session), std::slice::from_ref(&denied));
    assert_eq!(sandbox.list("/proc/self", FileUser::Root), [denied]);
    let done = Item::Done { truncated: false };
    assert_eq!(sandbox.list("shut", FileUser::Root), [done]);
    sandbox.is_alive();
}
