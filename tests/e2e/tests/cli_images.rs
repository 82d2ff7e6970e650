//! `image`: what is no root file system is named; whatever is interrupted leaves nothing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use sandkasten_e2e::image::Rootfs;
use sandkasten_e2e::lab::Signal;
use sandkasten_e2e::{Lab, host, lab, wait};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The signals that end a command at a terminal, and the exit code after each.
const SIGNALS: [(Signal, i32); 3] = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)];

fn import(lab: &Lab, file: &Path) -> Output {
    lab.cli(&["image", "import", &file.to_string_lossy(), "--name", "given"])
}

/// What an import says of a file, without the file's own path.
#[track_caller]
fn refusal(lab: &Lab, file: &Path) -> String {
    let output = import(lab, file);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty());
    said.replace(&*file.to_string_lossy(), "FILE")
}

/// Runs a shell script in the lab's directory.
#[track_caller]
fn sh(lab: &Lab, script: &str) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(lab.dir()).output();
    let output = output.expect("run sh");
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
}

fn gzip(lab: &Lab, name: &str) {
    sh(lab, &format!("gzip -c {name} > {name}.gz"));
}

const ROOTFS: &str = "hint: give a root file system as tar or tar.gz, as `docker export` and `mmdebstrap` write it\n";
const LAYERS: &str = "hint: images in layers come in a later version; until then export the root file system: \
    `docker create --name x IMAGE`, `docker export x > rootfs.tar`\n";
const MOUNT: &str = "hint: mount it and pack what is in it: `mount -o ro FILE /mnt`, `tar -C /mnt -c . > rootfs.tar`\n";
const UNPACK: &str = "hint: unpack it and pack it as tar: `tar -C DIR -c . > rootfs.tar`\n";

/// Files with the first bytes that make them what they are: name, bytes, what is said, the way out.
fn by_bytes() -> Vec<(&'static str, Vec<u8>, &'static str, &'static str)> {
    let at = |offset: usize, mark: &[u8]| {
        let mut bytes = vec![1; offset];
        bytes.extend_from_slice(mark);
        bytes.extend_from_slice(&[2; 600]);
        bytes
    };
    vec![
        ("text", b"just some words\n".repeat(100), "text", ROOTFS),
        ("json", b"{\"a\": [1]}\n".to_vec(), "JSON text", ROOTFS),
        (
            "page",
            b"\n<!DOCTYPE html><html><body>404".to_vec(),
            "an HTML page",
            "hint: was a page saved in place of the file? look at the address it came from\n",
        ),
        (
            "empty",
            Vec::new(),
            "empty",
            "hint: was the download or the program before the pipe broken off?\n",
        ),
        (
            "xz",
            at(0, b"\xfd7zXZ\0"),
            "compressed with xz",
            "hint: decompress it first: `xz -d FILE`, or `xz -dc FILE |` and - as the file\n",
        ),
        (
            "zstd",
            at(0, b"\x28\xb5\x2f\xfd"),
            "compressed with zstd",
            "hint: decompress it first: `zstd -d FILE`, or `zstd -dc FILE |` and - as the file\n",
        ),
        (
            "bzip2",
            at(0, b"BZh91AY&SY"),
            "compressed with bzip2",
            "hint: decompress it first: `bzip2 -d FILE`, or `bzip2 -dc FILE |` and - as the file\n",
        ),
        ("zip", at(0, b"PK\x03\x04"), "a zip archive", UNPACK),
        ("squashfs", at(0, b"hsqs"), "a squashfs file system", MOUNT),
        ("program", at(0, b"\x7fELF"), "a program (ELF)", ROOTFS),
        ("noise", vec![0xfe; 5000], "of no kind that is known here", ROOTFS),
    ]
}

#[test]
fn what_is_no_root_file_system_is_named() {
    let lab = Lab::builder().prepare();
    for (name, bytes, kind, hint) in by_bytes() {
        let file = lab.dir().join(name);
        fs::write(&file, bytes).expect("write");
        let said = |kind: &str| {
            format!(
                "error: invalid image: it is no root file system as tar or tar.gz: it is {kind}\n{hint}"
            )
        };
        assert_eq!(refusal(&lab, &file), said(kind), "{name}");
        gzip(&lab, name);
        let zipped = lab.dir().join(format!("{name}.gz"));
        assert_eq!(refusal(&lab, &zipped), said(&format!("{kind}, in gzip")), "{name}");
    }
    nothing_is_imported(&lab);
}

#[test]
fn layers_and_file_systems_are_named() {
    let lab = Lab::builder().prepare();
    let said = |kind: &str, hint: &str| {
        format!(
            "error: invalid image: it is no root file system as tar or tar.gz: it is {kind}\n{hint}"
        )
    };
    let save = "an archive of `docker save` (layers and their manifest)";
    // Of today's docker: an OCI layout with a manifest beside.
    sh(
        &lab,
        "mkdir -p oci/blobs/sha256 && echo '{\"imageLayoutVersion\":\"1.0.0\"}' > oci/oci-layout && \
         echo '{}' > oci/index.json && echo x > oci/blobs/sha256/$(printf %064d 1) && \
         tar -C oci -cf oci.tar . && cp -r oci save && echo '[]' > save/manifest.json && \
         tar -C save -cf save.tar blobs index.json manifest.json oci-layout && gzip -k save.tar && \
         mkdir -p old/$(printf %064d 2) && echo x > old/$(printf %064d 2)/layer.tar && \
         echo '{}' > old/$(printf %064d 3).json && echo '[]' > old/manifest.json && \
         echo '{}' > old/repositories && tar -C old -cf old.tar $(ls old) && \
         truncate -s 4M ext4 && mkfs.ext4 -q ext4",
    );
    let of = |name: &str| refusal(&lab, &lab.dir().join(name));
    assert_eq!(of("oci.tar"), said("an OCI image layout (layers and their index)", LAYERS));
    assert_eq!(of("save.tar"), said(save, LAYERS));
    assert_eq!(of("save.tar.gz"), said(&format!("{save}, in gzip"), LAYERS));
    assert_eq!(of("old.tar"), said(save, LAYERS));
    assert_eq!(of("ext4"), said("an ext2, ext3 or ext4 file system", MOUNT));
    assert_eq!(
        of("oci"),
        format!("error: FILE: is a directory with an OCI image layout\n{LAYERS}")
    );
    assert_eq!(
        of("data"),
        "error: FILE: is a directory\n\
         hint: pack it, if it is a root file system: `tar -C FILE -c . | sandkasten image import - --name NAME`\n"
    );
    nothing_is_imported(&lab);
}

#[track_caller]
fn nothing_is_imported(lab: &Lab) {
    let list = lab.must(&["image", "list"]);
    assert!(!list.contains("given"), "{list}");
    assert_eq!(unfinished(lab), [""; 0]);
}

/// Layers that were begun, and records.
fn unfinished(lab: &Lab) -> Vec<String> {
    let dirs = ["layers", "images"].map(|dir| lab.data_dir.join(dir));
    let names = dirs.iter().flat_map(|dir| host::names(dir));
    names.filter(|name| name.starts_with(".new")).collect()
}

#[test]
fn a_tar_is_taken_zipped_or_not_from_a_file_or_a_pipe() {
    let lab = Lab::builder().prepare();
    let file = lab.dir().join("rootfs");
    fs::write(&file, Rootfs::tiny().finish()).expect("write");
    gzip(&lab, "rootfs");
    for name in ["rootfs", "rootfs.gz"] {
        let output = import(&lab, &lab.dir().join(name));
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let mut piped = lab.command(&["image", "import", "-", "--name", "given"]);
        let output = piped.stdin(File::open(lab.dir().join(name)).expect("open")).output();
        let output = output.expect("run sandkasten");
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    }
}

/// An import waits for bytes that do not come; each signal ends it, and nothing is left.
#[test]
fn an_interrupted_import_leaves_nothing() {
    let lab = Lab::builder().prepare();
    let tar = Rootfs::tiny().finish();
    for (signal, code) in SIGNALS {
        let mut command = lab.command(&["image", "import", "-", "--name", "given"]);
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("run sandkasten");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(&tar[..tar.len() - 2048]).expect("write the start");
        wait::until("a layer is begun", Duration::from_secs(20), || !unfinished(&lab).is_empty());
        host::signal(child.id(), signal);
        ended(child, code);
        nothing_is_imported(&lab);
        drop(stdin);
    }
}

/// Waits for the end of a command that was interrupted.
#[track_caller]
fn ended(mut child: Child, code: i32) {
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("read");
    assert_eq!(child.wait().expect("its end").code(), Some(code), "{said}");
    assert!(said.ends_with("error: interrupted\n"), "{said}");
}

/// A build that does not touch the host's cache folder, and whose `/tmp` is the lab's.
struct Build {
    lab: Lab,
}

impl Build {
    /// With what the host's cache folder has of downloads, and of built layers if they are named.
    fn new(kept: &[&str]) -> Self {
        // This fills the host's cache folder, if it is not yet.
        let lab = Lab::builder().recipe("python").prepare();
        fs::create_dir_all(lab.dir().join("tmp")).expect("make /tmp");
        let cache = lab.dir().join("cache");
        fs::create_dir_all(cache.join("debs")).expect("make the cache folder");
        for name in host::names(&lab::cache_dir()) {
            if kept.iter().any(|kept| name.starts_with(kept) || name.ends_with(kept)) {
                sh(&lab, &format!("cp -a '{}' cache/", lab::cache_dir().join(&name).display()));
            }
        }
        Self { lab }
    }

    fn command(&self, recipe: &[&str]) -> Command {
        let plain = self.lab.command(&[&["image", "build"], recipe].concat());
        let mut command = Command::new("unshare");
        lab::clear_settings(&mut command);
        command.args(["--mount", "sh", "-c", "mount --bind tmp /tmp && exec \"$@\"", "sh"]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("SANDKASTEN_CACHE_DIR", self.cache()).env_remove("TMPDIR");
        command.env("SANDKASTEN_DATA_DIR", self.data_dir());
        command.current_dir(self.lab.dir()).stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn cache(&self) -> PathBuf {
        self.lab.dir().join("cache")
    }

    /// Another one than the lab's, which has the layers already.
    fn data_dir(&self) -> PathBuf {
        self.lab.dir().join("other")
    }

    /// Builds until a line with `stage` is said, and interrupts it there.
    #[track_caller]
    fn interrupted_at(&self, recipe: &[&str], stage: &str, (signal, code): (Signal, i32)) {
        let before = host::names(&self.cache());
        let mut child = self.command(recipe).spawn().expect("run sandkasten");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut said = String::new();
        while !said.lines().last().is_some_and(|line| line.contains(stage)) {
            let read = lines.read_line(&mut said).expect("read");
            assert!(read > 0, "it ended before `{stage}`: {said}");
        }
        host::signal(child.id(), signal);
        lines.read_to_string(&mut said).expect("read");
        assert_eq!(child.wait().expect("its end").code(), Some(code), "{stage}: {said}");
        assert!(said.ends_with("error: interrupted\n"), "{stage}: {said}");
        self.assert_clean(stage, before);
    }

    #[track_caller]
    fn assert_clean(&self, stage: &str, mut before: Vec<String>) {
        before.push("lock".to_owned());
        let new: Vec<String> =
            host::names(&self.cache()).into_iter().filter(|name| !before.contains(name)).collect();
        assert_eq!(new, [""; 0], "{stage}: in the cache folder");
        let debs = host::names(&self.cache().join("debs"));
        assert!(debs.iter().all(|name| name.ends_with(".deb")), "{stage}: {debs:?}");
        for dir in ["layers", "images", "sessions"] {
            let left = host::names(&self.data_dir().join(dir));
            let left: Vec<_> = left.into_iter().filter(|name| name != "lock").collect();
            assert_eq!(left, [""; 0], "{stage}: {dir} of the data directory");
        }
        assert_eq!(host::names(&self.lab.dir().join("tmp")), [""; 0], "{stage}: in /tmp");
        let dir = self.lab.dir().to_string_lossy().into_owned();
        let own = std::process::id();
        let is_left = |pid: &u32| {
            let all = ["cmdline", "environ"].map(|name| host::proc_file(*pid, name));
            *pid != own && all.iter().any(|text| text.contains(&dir))
        };
        let left: Vec<u32> = host::pids().into_iter().filter(is_left).collect();
        assert_eq!(left, [0; 0], "{stage}: processes");
        let mounts: Vec<String> =
            host::mounts().into_iter().filter(|line| line.contains(&dir)).collect();
        assert_eq!(mounts, [""; 0], "{stage}: mounts");
    }
}

#[test]
fn an_interrupted_build_of_base_leaves_nothing() {
    let build = Build::new(&["debs"]);
    let stages = ["running apt-get update", "extracting archives", "installing essential"];
    for (stage, signal) in stages.into_iter().zip(SIGNALS) {
        build.interrupted_at(&["base"], stage, signal);
    }
}

#[test]
fn a_build_of_base_that_packs_can_be_interrupted() {
    let build = Build::new(&["debs"]);
    build.interrupted_at(&["base"], "packing the base layer", SIGNALS[0]);
}

/// Its layers are built; what is interrupted is their way into the store.
#[test]
fn an_installation_can_be_interrupted() {
    let build = Build::new(&[".tar"]);
    for signal in SIGNALS {
        build.interrupted_at(&["python"], "installing python", signal);
    }
}

#[test]
fn an_interrupted_build_of_python_leaves_no_box() {
    let build = Build::new(&["debs", "wheels-", ".tar"]);
    let stages = ["Building dependency tree", "Setting up", "packing the layer"];
    for (stage, signal) in stages.into_iter().zip(SIGNALS) {
        build.interrupted_at(&["python", "--rebuild"], stage, signal);
    }
}
