//! F-14: archives that want out. What is unpacked stays below its directory, whatever the entries say.

use sandkasten_e2e::session::escape;
use sandkasten_e2e::{Lab, host};
use tar::{Builder, EntryType, Header};

use crate::canary::Canary;
use crate::{Files, Workspace};

/// An archive that is put together entry by entry, whatever a name may say.
struct Hostile(Builder<Vec<u8>>);

impl Hostile {
    fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn entry(mut self, kind: EntryType, name: &str, link: &str, bytes: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o6777);
        header.set_size(bytes.len() as u64);
        // By hand: the library refuses what is wanted here.
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, bytes).expect("write to memory");
        self
    }

    fn file(self, name: &str) -> Self {
        self.entry(EntryType::Regular, name, "", b"evil")
    }

    fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("write to memory")
    }
}

/// Unpacks it by a session and by a workspace; the host and what is beside the target stay as they were.
#[track_caller]
fn is_contained(make: impl Fn(&Canary) -> Hostile) {
    let lab = Lab::shared();
    let canary = Canary::below(std::path::Path::new("/var/tmp"));
    let workspace = Workspace::new(&lab, "f14");
    let session = workspace.session();
    for files in [Files::of(&session), workspace.files()] {
        session.run("rm -rf target; mkdir target; echo mine > beside");
        let target = files.url(&format!("/archive?path={}", escape("target")));
        let answer = lab.client.request("PUT", &target).body(make(&canary).finish()).send();
        assert!(answer.status() < 500, "{answer}");
        canary.is_not_in("an archive", &answer);
        canary.is_untouched("an archive");
        assert_eq!(session.run("cat beside; ls -A | sort"), "mine\nbeside\ntarget\n", "{answer}");
        let odd = "find target ! -type f ! -type d ! -type l; find target -perm /6000 -type f";
        assert_eq!(session.run(odd), "", "{answer}");
        // What was made is read back without leading out.
        let back = lab.client.get(&target);
        assert!(back.status() < 500, "{back}");
        canary.is_not_in("the archive back", &back);
    }
    for name in ["evil", "evil-f14"] {
        for dir in ["/", "/tmp", "/etc"] {
            assert!(!host::names(std::path::Path::new(dir)).iter().any(|found| found == name));
        }
    }
    session.alive();
}

macro_rules! archives {
    ($($name:ident: $make:expr;)+) => {
        mod f_14 {
            #[allow(unused_imports, reason = "not every row has kinds")]
            use super::{EntryType, Hostile};

            $(
                #[test]
                fn $name() {
                    super::is_contained($make);
                }
            )+
        }
    };
}

archives! {
    parent: |_| Hostile::new().file("../evil");
    parents: |_| Hostile::new().file("../../../../../../tmp/evil");
    parent_in_the_middle: |_| Hostile::new().file("a/../../evil");
    absolute: |_| Hostile::new().file("/tmp/evil");
    to_the_canary: |canary| Hostile::new().file(&canary.file().to_string_lossy());
    through_a_link: |canary| {
        let to = canary.path().to_string_lossy().into_owned();
        Hostile::new().entry(EntryType::Symlink, "l", &to, b"").file("l/f")
    };
    through_a_link_to_the_root: |_| {
        Hostile::new().entry(EntryType::Symlink, "l", "/", b"").file("l/tmp/evil")
    };
    through_a_link_to_the_parent: |_| {
        Hostile::new().entry(EntryType::Symlink, "l", "..", b"").file("l/evil")
    };
    over_a_link: |canary| {
        let to = canary.file().to_string_lossy().into_owned();
        Hostile::new().entry(EntryType::Symlink, "f", &to, b"").file("f")
    };
    link_in_place_of_a_directory: |canary| {
        let to = canary.path().to_string_lossy().into_owned();
        Hostile::new()
            .entry(EntryType::Directory, "d", "", b"")
            .entry(EntryType::Symlink, "d", &to, b"")
            .file("d/f")
    };
    hard_link_out: |canary| {
        let to = canary.file().to_string_lossy().into_owned();
        Hostile::new().entry(EntryType::Link, "h", &to, b"").file("h")
    };
    hard_link_to_a_parent: |_| Hostile::new().entry(EntryType::Link, "h", "../beside", b"").file("h");
    hard_link_to_a_link: |canary| {
        let to = canary.file().to_string_lossy().into_owned();
        Hostile::new()
            .entry(EntryType::Symlink, "s", &to, b"")
            .entry(EntryType::Link, "h", "s", b"")
            .file("h")
    };
    devices: |_| {
        Hostile::new()
            .entry(EntryType::Char, "null", "", b"")
            .entry(EntryType::Block, "disk", "", b"")
            .entry(EntryType::Fifo, "fifo", "", b"")
    };
    setuid: |_| Hostile::new().file("suid");
    name_of_nothing: |_| Hostile::new().file("");
    name_of_dots: |_| Hostile::new().file(".").file("./..").file("..");
    size_that_lies: |_| {
        let mut hostile = Hostile::new();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_path("big").expect("a short name");
        header.set_size(1 << 60);
        header.set_cksum();
        hostile.0.get_mut().extend_from_slice(header.as_bytes());
        hostile
    };
}
