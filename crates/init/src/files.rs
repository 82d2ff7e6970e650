//! Files of the session for the engine: opened or made here, read and written there.
//!
//! A write is a temporary file beside its target, which the engine fills and then commits: a reader
//! sees the old file or the new one. All is done with the file rights of the session's user or of
//! root; the one thing beyond is giving a replaced file its owner back.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Uid};
use rustix::thread::CapabilitySet;
use sandkasten_files::identity;
use sandkasten_protocol::{Expect, FileDone, FileFault, FileOp, FileUser, Parents, id};

use crate::accounts::Account;
use crate::lookup::{self, Follow, Place, fault};
use crate::names::{self, Existing};
use crate::rights::Ids;
use crate::runtime::random_name;
use crate::state::write_at;
use crate::worker::Workers;
use crate::world::World;

/// Writes that are open at once.
const PENDING_MAX: usize = 128;
const NEW_FILE_MODE: u32 = 0o644;
const MODE_BITS: u32 = 0o7777;
/// What a replaced file keeps when root has not replaced it: a set-id bit was for other contents.
const KEPT_MODE_BITS: u32 = 0o1777;

#[derive(Debug)]
pub(crate) struct Files {
    user: Ids,
    pending: BTreeMap<u32, Pending>,
    next_token: u32,
    workers: Workers,
    /// Files that others have replaced, open until the answer has left: the last close of one gives its
    /// blocks back, which may wait for the disk.
    replaced: Vec<OwnedFd>,
}

/// A temporary file.
#[derive(Debug)]
struct Pending {
    user: Ids,
    place: Place,
    temporary: String,
    file: OwnedFd,
    mode: Option<u32>,
    expect: Expect,
}

type Answer = Result<(FileDone, Option<OwnedFd>), FileFault>;

impl Files {
    pub(crate) fn new(user: Ids) -> Self {
        Self {
            user,
            pending: BTreeMap::new(),
            next_token: 1,
            workers: Workers::default(),
            replaced: Vec::new(),
        }
    }

    /// The answers have left.
    pub(crate) fn let_go(&mut self) {
        self.replaced.clear();
    }

    /// Does one operation; a descriptor goes with the answer where it says so.
    pub(crate) fn run(
        &mut self,
        world: &World,
        op: FileOp,
    ) -> (Result<FileDone, FileFault>, Option<OwnedFd>) {
        let answer = match op {
            FileOp::Read { path, user } => {
                world.rights.act_as(self.ids(user), || open_for_reading(&path))
            }
            FileOp::Work { job, user } => {
                let user = self.ids(user);
                let started = self.workers.start(world.rights, job, user);
                started.map(|socket| (FileDone::Opened, Some(socket)))
            }
            FileOp::Create { path, user, mode, parents, expect } => {
                let user = self.ids(user);
                self.create(world, &path, user, (mode, parents, expect))
            }
            FileOp::Put { path, user, mode, parents, expect, data } => {
                let how = (mode, parents, expect);
                let pending = lookup::absolute(&path)
                    .and_then(|path| Pending::begin(world, &path, self.ids(user), how));
                pending.and_then(|pending| self.put(world, &pending, &data))
            }
            FileOp::FindUser { name } => match Account::named(world.rights, self.user, &name) {
                Some(Account { ids: Ids { uid, gid }, .. }) => {
                    Ok((FileDone::User { uid, gid }, None))
                }
                None => Err(FileFault::UnknownUser),
            },
            FileOp::Commit { token } => self.commit(world, token),
            FileOp::Abort { token } => self.abort(world, token),
            FileOp::OpenDir { token } => self.open_dir(world, token),
            FileOp::Stat { path, user, follow } => {
                let follow = if follow { Follow::Yes } else { Follow::No };
                let found = world.rights.act_as(self.ids(user), || names::stat(&path, follow));
                found.map(|meta| (FileDone::Found(meta), None))
            }
            FileOp::MakeDir { path, user, mode, parents } => {
                self.act(world, user, || names::make_dir(&path, mode, parents))
            }
            FileOp::Move { from, to, user, overwrite } => {
                let existing = if overwrite { Existing::Replace } else { Existing::Keep };
                self.act(world, user, || names::rename(&from, &to, existing))
            }
            FileOp::Chmod { path, user, mode } => {
                self.act(world, user, || names::chmod(&path, mode))
            }
            FileOp::Remove { path, user, expect } => {
                self.act(world, user, || names::remove(&path, &expect))
            }
        };
        match answer {
            Ok((done, descriptor)) => (Ok(done), descriptor),
            Err(fault) => (Err(fault), None),
        }
    }

    /// The engine has gone, and with it all that it was writing.
    pub(crate) fn abort_all(&mut self, world: &World) {
        self.workers.end_forsaken(world.rights);
        for pending in std::mem::take(&mut self.pending).into_values() {
            pending.remove(world);
        }
    }

    /// init has reaped a process, perhaps a worker.
    pub(crate) fn on_reaped(&mut self, pid: Pid) {
        self.workers.on_reaped(pid);
    }

    fn act(
        &self,
        world: &World,
        user: FileUser,
        act: impl FnOnce() -> Result<(), FileFault>,
    ) -> Answer {
        world.rights.act_as(self.ids(user), act).map(|()| (FileDone::Done, None))
    }

    fn ids(&self, user: FileUser) -> Ids {
        match user {
            FileUser::Session => self.user,
            FileUser::Root => Ids::ROOT,
            FileUser::Ids { uid, gid } => Ids { uid, gid },
        }
    }

    fn create(
        &mut self,
        world: &World,
        path: &[u8],
        user: Ids,
        how: (Option<u32>, Parents, Expect),
    ) -> Answer {
        if self.pending.len() >= PENDING_MAX {
            return Err(FileFault::Busy);
        }
        let path = lookup::absolute(path)?;
        let pending = Pending::begin(world, &path, user, how)?;
        let Ok(theirs) = rustix::io::fcntl_dupfd_cloexec(&pending.file, 0) else {
            pending.remove(world);
            return Err(FileFault::Busy);
        };
        let token = self.next_token;
        self.next_token = self.next_token.wrapping_add(1);
        self.pending.insert(token, pending);
        Ok((FileDone::Created { token, path }, Some(theirs)))
    }

    /// Fills a file and puts it in its place.
    fn put(&mut self, world: &World, pending: &Pending, data: &[u8]) -> Answer {
        let written = write_at(&pending.file, 0, data)
            .map_err(|error| fault(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
        let done = written.and_then(|()| pending.commit(world)).and_then(|replaced| {
            self.replaced.extend(replaced);
            let stat = rustix::fs::fstat(&pending.file).map_err(fault)?;
            Ok((FileDone::Written(identity(&stat)), None))
        });
        if done.is_err() {
            pending.remove(world);
        }
        done
    }

    fn commit(&mut self, world: &World, token: u32) -> Answer {
        let pending = self.pending.remove(&token).ok_or(FileFault::UnknownToken)?;
        match pending.commit(world) {
            Ok(replaced) => {
                self.replaced.extend(replaced);
                Ok((FileDone::Done, None))
            }
            Err(fault) => {
                pending.remove(world);
                Err(fault)
            }
        }
    }

    /// What may be written in need not be readable: that is no matter here.
    fn open_dir(&self, world: &World, token: u32) -> Answer {
        let pending = self.pending.get(&token).ok_or(FileFault::UnknownToken)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let capabilities = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
        let dir = world.rights.with(capabilities, || lookup::reopen(&pending.place.dir, flags));
        Ok((FileDone::Opened, Some(dir.map_err(fault)?)))
    }

    fn abort(&mut self, world: &World, token: u32) -> Answer {
        let pending = self.pending.remove(&token).ok_or(FileFault::UnknownToken)?;
        pending.remove(world);
        Ok((FileDone::Done, None))
    }
}

impl Pending {
    fn begin(
        world: &World,
        path: &[u8],
        user: Ids,
        (mode, parents, expect): (Option<u32>, Parents, Expect),
    ) -> Result<Self, FileFault> {
        let temporary = temporary_name()?;
        let (place, file) = world.rights.act_as(user, || {
            let place = lookup::place(path, parents)?;
            let existing = check_writable(&place)?;
            names::judge(&expect, existing.as_ref().map(|(_, stat)| stat))?;
            let file = make_temporary(&place, &temporary)?;
            Ok((place, file))
        })?;
        Ok(Self { user, place, temporary, file, mode, expect })
    }

    /// Judges the place again, since the upload may have taken long, and puts the file there. Gives the
    /// one that was there.
    fn commit(&self, world: &World) -> Result<Option<OwnedFd>, FileFault> {
        let existing = world.rights.act_as(self.user, || {
            self.check_temporary()?;
            let existing = check_writable(&self.place)?;
            names::judge(&self.expect, existing.as_ref().map(|(_, stat)| stat))?;
            Ok(existing)
        })?;
        let mode = match (&existing, self.mode) {
            (_, Some(mode)) => mode & MODE_BITS,
            (None, None) => NEW_FILE_MODE,
            (Some((_, stat)), None) if self.user.uid == id::ROOT => stat.st_mode & MODE_BITS,
            (Some((_, stat)), None) => stat.st_mode & KEPT_MODE_BITS,
        };
        if let Some((_, stat)) = &existing {
            self.give_to(world, stat.st_uid, stat.st_gid)?;
        }
        // After the change of owner, which clears set-id bits and takes the right to do this.
        let capabilities = CapabilitySet::FOWNER | CapabilitySet::FSETID;
        world
            .rights
            .with(capabilities, || rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)))
            .map_err(fault)?;
        world.rights.act_as(self.user, || {
            let (dir, name) = (self.place.dir.as_fd(), self.place.name.as_slice());
            let flags = match self.expect {
                Expect::Nothing => RenameFlags::NOREPLACE,
                Expect::Anything | Expect::Something | Expect::OneOf(_) => RenameFlags::empty(),
            };
            rustix::fs::renameat_with(dir, self.temporary.as_str(), dir, name, flags).map_err(fault)
        })?;
        Ok(existing.map(|(file, _)| file))
    }

    fn give_to(&self, world: &World, uid: u32, gid: u32) -> Result<(), FileFault> {
        let now = rustix::fs::fstat(&self.file).map_err(fault)?;
        if (now.st_uid, now.st_gid) == (uid, gid) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        world
            .rights
            .with(CapabilitySet::CHOWN, || rustix::fs::fchown(&self.file, Some(uid), Some(gid)))
            .map_err(fault)
    }

    /// The name still is the file's that was written.
    fn check_temporary(&self) -> Result<(), FileFault> {
        let named = self.place.dir.as_fd();
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let named = rustix::fs::statat(named, self.temporary.as_str(), flags).map_err(fault)?;
        let ours = rustix::fs::fstat(&self.file).map_err(fault)?;
        if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) {
            Ok(())
        } else {
            Err(FileFault::NotFound)
        }
    }

    fn remove(&self, world: &World) {
        world.rights.act_as(self.user, || {
            if self.check_temporary().is_ok() {
                let dir = self.place.dir.as_fd();
                // The payload may have been quicker; then it is gone, as wanted.
                let _ = rustix::fs::unlinkat(dir, self.temporary.as_str(), AtFlags::empty());
            }
        });
    }
}

fn open_for_reading(path: &[u8]) -> Answer {
    let found = lookup::find(&lookup::absolute(path)?)?;
    lookup::regular(&found)?;
    let file = lookup::reopen(&found, OFlags::RDONLY).map_err(fault)?;
    Ok((FileDone::Opened, Some(file)))
}

/// Refuses what open(2) for writing would refuse. Gives the file that will be replaced.
fn check_writable(place: &Place) -> Result<Option<(OwnedFd, Stat)>, FileFault> {
    let Some(existing) = place.existing()? else { return Ok(None) };
    let stat = lookup::regular(&existing)?;
    match lookup::reopen(&existing, OFlags::WRONLY) {
        // A program that runs can't be written, but it can be replaced.
        Ok(_) | Err(Errno::TXTBSY) => Ok(Some((existing, stat))),
        Err(errno) => Err(fault(errno)),
    }
}

fn make_temporary(place: &Place, name: &str) -> Result<OwnedFd, FileFault> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let file = rustix::fs::openat(&place.dir, name, flags, mode).map_err(fault)?;
    // Some file systems give something else than they were asked for.
    lookup::regular(&file).map(|_stat| file)
}

fn temporary_name() -> Result<String, FileFault> {
    random_name().map(|name| format!(".sandkasten-{name}")).map_err(|_no_random| FileFault::Busy)
}
