//! Workers of the real init: whose ids they have, and what happens to them.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail loudly")]

mod boxed;

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use boxed::{Kind, Sandbox};
use sandkasten_protocol::work::{Item, Job, WATCHES_MAX, WORK_BYTES_MAX};
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

#[test]
fn watches_are_limited_and_end_with_their_socket() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let watch = |sandbox: &mut Sandbox| {
        let job = Job::Watch { path: b".".into(), recursive: false };
        sandbox.work(job, FileUser::Session)
    };
    let open: Vec<_> = (0..WATCHES_MAX).map(|_| watch(sandbox).unwrap()).collect();
    assert_eq!(watch(sandbox).unwrap_err(), FileFault::TooManyWatches);
    assert_eq!(sandbox.list(".", FileUser::Session).len(), 1);
    // One that is stopped does not end by itself: init ends it.
    let stop = "for p in /proc/[0-9]*; do [ $p != /proc/1 ] && ! [ -r $p/environ ] && kill -STOP ${p#/proc/}; done; true";
    sandbox.run(stop);
    drop(open);
    let start = Instant::now();
    while let Err(fault) = watch(sandbox) {
        assert_eq!(fault, FileFault::TooManyWatches);
        assert!(start.elapsed() < Duration::from_secs(10), "workers go on");
    }
    sandbox.is_alive();
}

#[test]
fn a_killed_worker_ends_without_a_word() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let job = Job::Watch { path: b".".into(), recursive: false };
    let socket = sandbox.work(job, FileUser::Session).unwrap();
    let mut first = [0; 1];
    (&socket).read_exact(&mut first).unwrap();
    sandbox.run("for p in /proc/[0-9]*; do [ $p != /proc/1 ] && ! [ -r $p/environ ] && kill -KILL ${p#/proc/}; done; true");
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut rest = Vec::new();
    (&socket).read_to_end(&mut rest).unwrap();
    assert_eq!(sandbox.list(".", FileUser::Session).len(), 1);
    sandbox.is_alive();
}
