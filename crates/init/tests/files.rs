//! File operations against the real init.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail loudly")]

mod boxed;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;

use boxed::{Image, Kind, Sandbox};
use sandkasten_protocol::{
    Expect, FileDone, FileFault, FileOp, FileUser, Parents, ShellPreference,
};

impl Sandbox {
    fn read(&mut self, path: &str) -> Result<Vec<u8>, FileFault> {
        self.read_as(path, FileUser::Session)
    }

    fn read_as(&mut self, path: &str, user: FileUser) -> Result<Vec<u8>, FileFault> {
        let (result, descriptor) = self.file(FileOp::Read { path: path.into(), user });
        assert_eq!(result.is_ok(), descriptor.is_some());
        let mut bytes = Vec::new();
        if result? == FileDone::Opened {
            File::from(descriptor.unwrap()).read_to_end(&mut bytes).unwrap();
        }
        Ok(bytes)
    }

    fn create(&mut self, path: &str) -> Result<(u32, String, File), FileFault> {
        self.create_as(path, FileUser::Session, None)
    }

    fn create_as(
        &mut self,
        path: &str,
        user: FileUser,
        mode: Option<u32>,
    ) -> Result<(u32, String, File), FileFault> {
        let op = FileOp::Create {
            path: path.into(),
            user,
            mode,
            parents: Parents::Make,
            expect: Expect::Anything,
        };
        let (result, descriptor) = self.file(op);
        match result? {
            FileDone::Created { token, path } => {
                let path = String::from_utf8(path).unwrap();
                Ok((token, path, File::from(descriptor.unwrap())))
            }
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<String, FileFault> {
        self.write_as(path, bytes, FileUser::Session, None)
    }

    fn write_as(
        &mut self,
        path: &str,
        bytes: &[u8],
        user: FileUser,
        mode: Option<u32>,
    ) -> Result<String, FileFault> {
        let (token, path, mut file) = self.create_as(path, user, mode)?;
        file.write_all(bytes).unwrap();
        self.commit(token)?;
        Ok(path)
    }

    fn commit(&mut self, token: u32) -> Result<(), FileFault> {
        self.file(FileOp::Commit { token }).0.map(|done| assert_eq!(done, FileDone::Done))
    }
}

#[test]
fn the_directory_of_a_file_to_be_comes_for_its_sync() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    // Its user may write in it and not read it.
    sandbox.run("mkdir drop; chmod 300 drop");
    let (token, _, mut file) = sandbox.create("drop/f").unwrap();
    file.write_all(b"x").unwrap();
    let (done, dir) = sandbox.file(FileOp::OpenDir { token });
    assert_eq!(done, Ok(FileDone::Opened));
    sandbox.commit(token).unwrap();
    rustix::fs::fsync(dir.unwrap()).unwrap();
    assert_eq!(sandbox.file(FileOp::OpenDir { token }).0, Err(FileFault::UnknownToken));
    assert_eq!(sandbox.read("drop/f").unwrap(), b"x");
}

#[test]
fn bytes_go_in_and_out() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let all: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    assert_eq!(sandbox.write("b.bin", &all).unwrap(), "/workspace/b.bin");
    assert_eq!(sandbox.read("b.bin").unwrap(), all);
    sandbox.run("stat -c '%s %a %U' b.bin; ls -A").is(0, "1000000 644 sandbox\nb.bin\n");
    sandbox.write("empty", b"").unwrap();
    assert_eq!(sandbox.read("/workspace/empty").unwrap(), b"");
    sandbox.run("umask 077; mkdir p; echo s > p/q");
    assert_eq!(sandbox.read("p/q").unwrap(), b"s\n");
}

#[test]
fn c60_parents_belong_to_the_user() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    assert_eq!(sandbox.write("./a//b/c.sh", b"").unwrap(), "/workspace/a/b/c.sh");
    let cmd =
        "echo x >> a/b/c.sh && mv a/b/c.sh a/b/d && touch a/b/new; stat -c '%U %a' a a/b; rm -r a";
    sandbox.run(cmd).is(0, "sandbox 755\nsandbox 755\n");
    let op = FileOp::Create {
        path: "no/x".into(),
        user: FileUser::Session,
        mode: None,
        parents: Parents::MustExist,
        expect: Expect::Anything,
    };
    assert_eq!(sandbox.file(op).0, Err(FileFault::NotFound));
}

#[test]
fn c62_mode_owner_and_links_survive() {
    let sandbox = &mut Sandbox::with(Image::Debian, ShellPreference::Bash, 1000);
    sandbox.run(
        "printf '#!/bin/sh\\necho hi\\n' > r.sh; chmod 755 r.sh; ln -s r.sh l.sh; \
         echo k > ro; chmod 444 ro; cp r.sh s; chmod 6755 s",
    );
    sandbox.write("r.sh", b"#!/bin/sh\necho ho\n").unwrap();
    sandbox.run("./r.sh; stat -c %a r.sh").is(0, "ho\n755\n");
    sandbox.write("l.sh", b"#!/bin/sh\necho ha\n").unwrap();
    sandbox.run("test -L l.sh; echo $?; cmp r.sh l.sh; ./r.sh").is(0, "0\nha\n");
    assert_eq!(sandbox.write("ro", b"x"), Err(FileFault::PermissionDenied));
    sandbox.write("s", b"x").unwrap();
    sandbox.run("stat -c %a s").is(0, "755\n");
    sandbox.write_as("m", b"x", FileUser::Session, Some(0o600)).unwrap();
    sandbox.run("stat -c %a m; cat ro").is(0, "600\nk\n");
    // Somebody else's file that everybody may write stays theirs.
    sandbox.write_as("/workspace/r", b"root", FileUser::Root, Some(0o666)).unwrap();
    sandbox.write("r", b"mine").unwrap();
    sandbox.run("stat -c '%U %a' r; cat r").is(0, "root 666\nmine");
    // A running program is replaced.
    sandbox.run("cp /bin/sleep z; ./z 60 & sleep 0.05");
    sandbox.write("z", b"new").unwrap();
}

#[test]
fn c63_paths_stay_in_the_box_and_rights_count() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run(
        "ln -s /etc/passwd leak; ln -s / up; ln -s /nonexistent/x dangling; ln -s new far; \
         mkdir real; ln -s real ok; ln -s loop2 loop1; ln -s loop1 loop2; ln -s real/ slash",
    );
    assert!(sandbox.read("leak").unwrap().starts_with(b"root:x:0"));
    assert!(sandbox.read("../etc/passwd").unwrap().starts_with(b"root:x:0"));
    assert_eq!(sandbox.write("leak", b""), Err(FileFault::PermissionDenied));
    assert_eq!(sandbox.write("up/etc/new", b""), Err(FileFault::PermissionDenied));
    assert_eq!(sandbox.write("up/tmp/fine", b"f").unwrap(), "/workspace/up/tmp/fine");
    assert_eq!(sandbox.read("dangling"), Err(FileFault::NotFound));
    assert_eq!(sandbox.write("dangling", b""), Err(FileFault::NotFound));
    sandbox.write("far", b"through a dangling link").unwrap();
    assert_eq!(sandbox.read("new").unwrap(), b"through a dangling link");
    sandbox.write("ok/f", b"f").unwrap();
    sandbox.run("cat real/f; test -L far && echo link").is(0, "flink\n");
    assert_eq!(sandbox.read("loop1"), Err(FileFault::InvalidPath));
    assert_eq!(sandbox.write("loop1", b""), Err(FileFault::InvalidPath));
    assert_eq!(sandbox.write("slash", b""), Err(FileFault::IsADirectory));
    assert_eq!(sandbox.read("/root/x"), Err(FileFault::NotFound));
    sandbox.write_as("/root/x", b"r", FileUser::Root, Some(0o600)).unwrap();
    assert_eq!(sandbox.read("/root/x"), Err(FileFault::PermissionDenied));
    assert_eq!(sandbox.read_as("/root/x", FileUser::Root).unwrap(), b"r");
    for bad in ["", "a\0b", &"x".repeat(256), &"y/".repeat(2049)] {
        assert_eq!(sandbox.read(bad), Err(FileFault::InvalidPath));
        assert_eq!(sandbox.write(bad, b""), Err(FileFault::InvalidPath));
    }
}

#[test]
fn inits_own_proc_is_out_of_reach() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run(
        "ln -s /proc/self/mem mem; ln -s /proc/thread-self/environ env; ln -s /proc/self p; \
         ln -s /proc/self/fd fd; ln -s /dev/stdin in",
    );
    for user in [FileUser::Session, FileUser::Root] {
        for path in ["mem", "env", "p/maps", "/proc/1/status", "/proc/1/task/1/mem", "/proc/self/x"]
        {
            let fault = sandbox.read_as(path, user).unwrap_err();
            let expected = [FileFault::PermissionDenied, FileFault::NotFound];
            assert!(expected.contains(&fault), "{path}: {fault:?}");
        }
        for path in ["fd/3", "in", "/proc/self/exe", "/proc/self/root/etc/passwd", "/proc/1/cwd/x"]
        {
            assert_eq!(sandbox.read_as(path, user), Err(FileFault::InvalidPath), "{path}");
        }
        for path in ["p/x", "/proc/self/oom_score_adj", "fd/3", "p/a/b"] {
            let fault = sandbox.write_as(path, b"1", user, None).unwrap_err();
            assert_eq!(fault, FileFault::PermissionDenied, "{path}");
        }
    }
    assert!(!sandbox.read("/proc/meminfo").unwrap().is_empty());
}

#[test]
fn c64_special_files_are_refused_at_once() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run(
        "mkfifo p; mkdir dir; ln -s /dev/zero z; echo > file; \
         perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local=>\"s\",Listen=>1)'",
    );
    for (path, fault) in [
        ("p", FileFault::NotAFile),
        ("s", FileFault::NotAFile),
        ("z", FileFault::NotAFile),
        ("dir", FileFault::IsADirectory),
        ("dir/", FileFault::IsADirectory),
        (".", FileFault::IsADirectory),
        ("/", FileFault::IsADirectory),
        ("file/x", FileFault::NotADirectory),
    ] {
        assert_eq!(sandbox.read(path), Err(fault), "{path}");
        assert_eq!(sandbox.write(path, b""), Err(fault), "{path}");
    }
    assert_eq!(sandbox.read("nope"), Err(FileFault::NotFound));
    assert_eq!(sandbox.read("file/"), Err(FileFault::NotADirectory));
    sandbox.run("ls -A | grep -c sandkasten").is(1, "0\n");
    sandbox.is_alive();
}

#[test]
fn a_write_is_atomic_and_can_be_given_up() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.write("f", b"old").unwrap();
    let (token, _, mut file) = sandbox.create("f").unwrap();
    file.write_all(b"new and longer").unwrap();
    assert_eq!(sandbox.read("f").unwrap(), b"old");
    assert_eq!(file.metadata().unwrap().uid(), 1000);
    sandbox.commit(token).unwrap();
    assert_eq!(sandbox.read("f").unwrap(), b"new and longer");
    assert_eq!(sandbox.commit(token), Err(FileFault::UnknownToken));

    let (token, ..) = sandbox.create("g").unwrap();
    assert_eq!(sandbox.file(FileOp::Abort { token }).0, Ok(FileDone::Done));
    assert_eq!(sandbox.file(FileOp::Abort { token }).0, Err(FileFault::UnknownToken));
    // An engine that goes away leaves nothing.
    sandbox.create("h").unwrap();
    sandbox.reattach();
    sandbox.run("ls -A").is(0, "f\n");
    // What has come into the way meanwhile is judged at the end.
    let (token, ..) = sandbox.create("d").unwrap();
    sandbox.run("mkdir d");
    assert_eq!(sandbox.commit(token), Err(FileFault::IsADirectory));
    // A temporary file that the payload has exchanged is not put in place.
    let (token, ..) = sandbox.create("x").unwrap();
    sandbox.run("for t in .sandkasten-*; do rm $t; echo evil > $t; done");
    assert_eq!(sandbox.commit(token), Err(FileFault::NotFound));
    sandbox.run("test -e x").is(1, "");
}

#[test]
fn open_writes_are_limited() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let made: Vec<_> = (0..200).map(|n| sandbox.create(&format!("f{n}"))).collect();
    assert_eq!(made.iter().filter(|m| m.is_ok()).count(), 128);
    assert!(made.iter().filter_map(|m| m.as_ref().err()).all(|f| *f == FileFault::Busy));
    sandbox.reattach();
    sandbox.write("g", b"").unwrap();
    sandbox.is_alive();
}

#[test]
fn files_do_not_wait_for_a_command() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let exec = sandbox.begin("sleep 60", |exec| exec.timeout_ms = 1500);
    sandbox.write("w", b"1").unwrap();
    assert_eq!(sandbox.read("w").unwrap(), b"1");
    sandbox.finish(exec);
}

#[test]
fn no_space() {
    let sandbox = &mut Sandbox::with(Image::Busybox, ShellPreference::Bash, 1000);
    // The harness's /.sandkasten is small; root may write there.
    let (token, _, mut file) = sandbox.create_as("/.sandkasten/big", FileUser::Root, None).unwrap();
    let full = file.write_all(&vec![0; 9_000_000]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(28));
    // Even so a short command works.
    assert_eq!(sandbox.file(FileOp::Abort { token }).0, Ok(FileDone::Done));
    sandbox.is_alive();
}
