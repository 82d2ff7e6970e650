//! Inits that are broken or hostile: each costs its link, in time and without a panic.

use std::os::fd::{AsFd as _, OwnedFd};

use proptest::prelude::*;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sandkasten_protocol::{End, FileFault, How, OutputMode, Run, RunUser, Task};
use tokio::io::AsyncWriteExt as _;

use super::*;

/// A link and the other end of it.
fn pair() -> (Link, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Link::new(ours.into_std().unwrap().into()).unwrap(), theirs)
}

fn frame(frame: &FromInit) -> Vec<u8> {
    encode(frame, FROM_INIT_BYTES_MAX).unwrap()
}

fn hello() -> FromInit {
    FromInit::Hello(Hello {
        version: VERSION,
        nonce: [1; 16],
        shell: None,
        cwd: b"/".to_vec(),
        cwd_fault: None,
        runs: 0,
        next_run: 1,
    })
}

fn end(run: u64) -> FromInit {
    let end = End {
        how: How::Exited,
        exit_code: 0,
        cwd: b"/\xff".to_vec(),
        duration_ms: 0,
        shell_restarted: false,
        state_lost: false,
        output_bytes: 0,
        dropped_bytes: 0,
        seq: 2,
    };
    FromInit::End { run, end }
}

fn opened(tag: u32) -> FromInit {
    FromInit::File { tag, result: Ok(FileDone::Opened) }
}

/// Sends bytes with descriptors, as init does.
fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(|one| one.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(stream, &[std::io::IoSlice::new(bytes)], &mut ancillary, SendFlags::empty());
    assert_eq!(sent.unwrap(), bytes.len());
}

fn some_file() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[tokio::test]
async fn frames_come_whole_however_they_are_cut() {
    let (mut link, mut init) = pair();
    let bytes: Vec<u8> = (1..=3).flat_map(|exec| frame(&end(exec))).collect();
    let writer = tokio::spawn(async move {
        for byte in bytes {
            init.write_all(&[byte]).await.unwrap();
        }
        init
    });
    for exec in 1..=3 {
        assert_eq!(link.next().await.unwrap().frame, end(exec));
    }
    drop(writer.await.unwrap());
    assert!(matches!(link.next().await, Err(LinkFault::Closed)));
}

#[tokio::test]
async fn a_length_of_4_gib_takes_no_memory() {
    let (mut link, mut init) = pair();
    init.write_all(&[0xFF; 4]).await.unwrap();
    assert!(matches!(link.next().await, Err(LinkFault::Frame(_))));
}

#[tokio::test]
async fn a_close_in_mid_frame_is_a_close() {
    let (mut link, mut init) = pair();
    let bytes = frame(&hello());
    init.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
    drop(init);
    assert!(matches!(link.next().await, Err(LinkFault::Closed)));
}

#[tokio::test]
async fn a_descriptor_goes_with_its_frame() {
    let (mut link, init) = pair();
    send_with(&init, &frame(&opened(1)), &[some_file()]);
    let refused = FromInit::File { tag: 2, result: Err(FileFault::NotFound) };
    let mut bytes = frame(&refused);
    bytes.extend(frame(&end(1)));
    init.try_write(&bytes).unwrap();
    send_with(&init, &frame(&opened(3)), &[some_file()]);
    let first = link.next().await.unwrap();
    assert!(first.frame == opened(1) && first.descriptor.is_some());
    let second = link.next().await.unwrap();
    assert!(second.frame == refused && second.descriptor.is_none());
    assert!(link.next().await.unwrap().descriptor.is_none());
    assert!(link.next().await.unwrap().descriptor.is_some());
}

#[tokio::test]
async fn descriptors_that_nobody_asked_for_end_the_link() {
    let (mut link, init) = pair();
    let eight: Vec<OwnedFd> = (0..8).map(|_| some_file()).collect();
    send_with(&init, &frame(&end(1)), &eight);
    assert!(matches!(link.next().await, Err(LinkFault::Protocol(_))), "too many at once");

    let (mut link, init) = pair();
    let mut fault = None;
    for exec in 0..20 {
        send_with(&init, &frame(&end(exec)), &[some_file()]);
        fault = fault.or(link.next().await.err());
    }
    assert!(matches!(fault, Some(LinkFault::Protocol(_))), "too many in all");

    let (mut link, init) = pair();
    init.try_write(&frame(&opened(1))).unwrap();
    assert!(matches!(link.next().await, Err(LinkFault::Protocol(_))), "one is missing");
}

#[tokio::test(start_paused = true)]
async fn an_init_that_does_not_read_ends_the_link() {
    let (mut link, init) = pair();
    let cmd = vec![b'x'; 1024 * 1024];
    let (output, user) = (OutputMode::Merged, RunUser::Session);
    let task = Task::Command { cmd, output, user };
    link.send(&ToInit::Begin { run: Run::new(1), task }).unwrap();
    assert!(matches!(link.next().await, Err(LinkFault::Stalled)));
    drop(init);
}

/// Runs the first exchange with an init that answers with those bytes.
async fn attach_to(answer: Vec<u8>) -> Result<(), LinkFault> {
    let dir = tempfile::tempdir().unwrap();
    let listener = tokio::net::UnixListener::bind(dir.path().join("control.sock")).unwrap();
    let init = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&answer).await.unwrap();
        stream
    });
    let folder = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
    let attached = Link::attach(&folder, [1; 16]).await;
    drop(init.await.unwrap());
    attached.map(drop)
}

#[tokio::test(start_paused = true)]
async fn only_the_right_hello_attaches() {
    attach_to(frame(&hello())).await.unwrap();
    assert!(matches!(attach_to(Vec::new()).await, Err(LinkFault::Late)), "silent");
    assert!(matches!(attach_to(frame(&end(1))).await, Err(LinkFault::Protocol(_))), "no hello");
    let FromInit::Hello(right) = hello() else { panic!() };
    let other = FromInit::Hello(Hello { nonce: [2; 16], ..right.clone() });
    assert!(matches!(attach_to(frame(&other)).await, Err(LinkFault::Protocol(_))), "nonce");
    let other = FromInit::Hello(Hello { version: VERSION + 1, ..right });
    assert!(matches!(attach_to(frame(&other)).await, Err(LinkFault::Protocol(_))), "version");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_frames_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut link, mut init) = pair();
            init.write_all(&bytes).await.unwrap();
            drop(init);
            while link.next().await.is_ok() {}
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_init_that_tells_of_its_runs_slowly_does_not_attach() {
    let FromInit::Hello(right) = hello() else { panic!() };
    let many = frame(&FromInit::Hello(Hello { runs: u32::MAX, ..right.clone() }));
    assert!(matches!(attach_to(many).await, Err(LinkFault::Protocol(_))), "too many");
    let known = |run, note| Known { run, note, begun: None, end: None, settled: None };
    let mut two = frame(&FromInit::Hello(Hello { runs: 2, ..right }));
    let mut long = two.clone();
    two.extend(frame(&FromInit::Known(known(1, Vec::new()))));
    assert!(matches!(attach_to(two).await, Err(LinkFault::Late)), "one is missing");
    long.extend(frame(&FromInit::Known(known(1, vec![0; NOTE_BYTES_MAX + 1]))));
    assert!(matches!(attach_to(long).await, Err(LinkFault::Protocol(_))), "a long note");
}

#[tokio::test]
async fn room_is_told_once_there_is_some_again() {
    let (mut link, mut init) = pair();
    let stdin = ToInit::Stdin { run: 1, data: vec![0; DATA_BYTES_MAX], is_last: false };
    let mut sent = 0;
    while link.has_room() {
        link.send(&stdin).unwrap();
        sent += 1;
    }
    let most = link.unsent.len();
    let reader = tokio::spawn(async move {
        let (mut all, mut bytes) = (0, vec![0; DATA_BYTES_MAX]);
        loop {
            match tokio::io::AsyncReadExt::read(&mut init, &mut bytes).await.unwrap() {
                0 => return all,
                read => all += read,
            }
        }
    });
    while sent < 1001 {
        assert!(link.turn().await.unwrap().is_none());
        while link.has_room() {
            link.send(&stdin).unwrap();
            sent += 1;
        }
        // What was sent is not held.
        assert!(link.unsent.len() <= 3 * most, "{}", link.unsent.len());
    }
    drop(link);
    assert!(reader.await.unwrap() > 990 * DATA_BYTES_MAX);
}
