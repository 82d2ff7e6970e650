//! Messages between daemon, launcher and child: fixed bytes and descriptors, on SOCK_SEQPACKET.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::root::RootSettings;
use crate::step::StepError;

/// The kernel takes 253 descriptors a message; seven of a launch are no layers.
pub(crate) const LAYERS_MAX: usize = 240;
const FDS_MAX: usize = 253;

/// Longest message, a failed step included.
const MESSAGE_BYTES: usize = 512;

/// What the launcher is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Launch {
        settings: RootSettings,
        filtered: bool,
    },
    /// A process in a user namespace of its own, made by the host id.
    UserNamespace {
        owner: u32,
    },
    /// A process that waits in the groups of a session to come, for one launch.
    Park,
}

/// What a child says to the daemon, or the launcher in its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is alive under this pid; the pidfd comes with it.
    Cloned { pid: u32 },
    /// All that is left to do is exec, or, for a user namespace: it is made.
    Executes,
    /// A step failed, and the child ends.
    Failed { step: String, errno: i32 },
}

impl From<StepError> for Told {
    fn from(error: StepError) -> Self {
        Self::Failed { step: error.step, errno: error.errno }
    }
}

const LAUNCH: u8 = 1;
const USER_NAMESPACE: u8 = 2;
const PARK: u8 = 3;
const CLONED: u8 = 4;
const EXECUTES: u8 = 5;
const FAILED: u8 = 6;

impl Request {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Launch { settings, filtered } => {
                let flags = [settings.readonly, settings.own_workspace, filtered].map(u8::from);
                let mut bytes = [&[LAUNCH][..], &flags].concat();
                bytes.extend(settings.uid_base.to_ne_bytes());
                bytes.extend(settings.tmp_bytes.to_ne_bytes());
                bytes.extend(settings.shm_bytes.to_ne_bytes());
                bytes
            }
            Self::UserNamespace { owner } => {
                let mut bytes = vec![USER_NAMESPACE];
                bytes.extend(owner.to_ne_bytes());
                bytes
            }
            Self::Park => vec![PARK],
        }
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            LAUNCH => {
                let ([readonly, own_workspace, filtered], rest) = rest.split_first_chunk()?;
                let (uid_base, rest) = rest.split_first_chunk()?;
                let (tmp_bytes, rest) = rest.split_first_chunk()?;
                let settings = RootSettings {
                    readonly: *readonly == 1,
                    own_workspace: *own_workspace == 1,
                    uid_base: u32::from_ne_bytes(*uid_base),
                    tmp_bytes: u64::from_ne_bytes(*tmp_bytes),
                    shm_bytes: u64::from_ne_bytes(rest.try_into().ok()?),
                };
                Some(Self::Launch { settings, filtered: *filtered == 1 })
            }
            USER_NAMESPACE => {
                Some(Self::UserNamespace { owner: u32::from_ne_bytes(rest.try_into().ok()?) })
            }
            PARK => rest.is_empty().then_some(Self::Park),
            _ => None,
        }
    }
}

impl Told {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Cloned { pid } => [&[CLONED][..], &pid.to_ne_bytes()].concat(),
            Self::Executes => vec![EXECUTES],
            Self::Failed { step, errno } => {
                let mut bytes = [&[FAILED][..], &errno.to_ne_bytes(), step.as_bytes()].concat();
                bytes.truncate(MESSAGE_BYTES);
                bytes
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            CLONED => Some(Self::Cloned { pid: u32::from_ne_bytes(rest.try_into().ok()?) }),
            EXECUTES => Some(Self::Executes),
            FAILED => {
                let (errno, step) = rest.split_first_chunk()?;
                Some(Self::Failed {
                    errno: i32::from_ne_bytes(*errno),
                    step: String::from_utf8_lossy(step).into_owned(),
                })
            }
            _ => None,
        }
    }
}

/// Says something to whoever holds the other end.
pub(crate) fn tell(socket: BorrowedFd<'_>, told: &Told) -> io::Result<()> {
    send(socket, &told.to_bytes(), &[])
}

/// Waits for what the other end says, `None` where it has gone.
pub(crate) fn hear(socket: BorrowedFd<'_>) -> io::Result<Option<(Told, Vec<OwnedFd>)>> {
    let Some((bytes, fds)) = receive(socket)? else { return Ok(None) };
    match Told::from_bytes(&bytes) {
        Some(told) => Ok(Some((told, fds))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Says that a child lives, and hands its pidfd over.
pub(crate) fn tell_cloned(
    socket: BorrowedFd<'_>,
    pid: u32,
    pidfd: BorrowedFd<'_>,
) -> io::Result<()> {
    send(socket, &Told::Cloned { pid }.to_bytes(), &[pidfd])
}

pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// A message and its descriptors, `None` where the other end has gone.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut take = || {
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    };
    let received = match rustix::io::retry_on_intr(&mut take) {
        // The other end went without reading all. The kernel says so once, before what it had said.
        Err(Errno::CONNRESET) => rustix::io::retry_on_intr(&mut take),
        received => received,
    }?;
    if received.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(Some((bytes, fds)))
}

/// Two ends of a new connection.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends a request with its descriptors.
pub(crate) fn ask(
    socket: BorrowedFd<'_>,
    request: Request,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send(socket, &request.to_bytes(), fds)
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn requests_survive_the_wire() {
        let settings = RootSettings {
            readonly: true,
            own_workspace: false,
            uid_base: 1 << 20,
            tmp_bytes: 1 << 40,
            shm_bytes: 3,
        };
        for request in [
            Request::Launch { settings, filtered: false },
            Request::Launch {
                settings: RootSettings { readonly: false, own_workspace: true, ..settings },
                filtered: true,
            },
            Request::UserNamespace { owner: 77 },
            Request::Park,
        ] {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        assert_eq!(Request::from_bytes(&[]), None);
        assert_eq!(Request::from_bytes(&[LAUNCH, 1]), None);
    }

    #[test]
    fn last_words_are_heard_though_nobody_read_ours() {
        let (a, b) = pair().unwrap();
        send(b.as_fd(), &[1], &[]).unwrap();
        tell(a.as_fd(), &Told::Executes).unwrap();
        drop(a);
        assert_eq!(hear(b.as_fd()).unwrap().unwrap().0, Told::Executes);
        assert!(hear(b.as_fd()).unwrap().is_none());
    }

    #[test]
    fn what_is_told_survives_the_wire_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        tell(a.as_fd(), &Told::Failed { step: "mount".into(), errno: 22 }).unwrap();
        tell_cloned(a.as_fd(), 9, b.as_fd()).unwrap();
        drop(a);
        let failed = Told::Failed { step: "mount".into(), errno: 22 };
        assert_eq!(hear(b.as_fd()).unwrap().unwrap().0, failed);
        let (told, fds) = hear(b.as_fd()).unwrap().unwrap();
        assert_eq!((told, fds.len()), (Told::Cloned { pid: 9 }, 1));
        assert!(hear(b.as_fd()).unwrap().is_none());
    }
}
