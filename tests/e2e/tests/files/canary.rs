//! A place of the host that no box may see, and a look at whether one has.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sandkasten_e2e::Lab;
use sandkasten_e2e::http::Answer;
use tempfile::TempDir;

/// A directory beside the workspaces' own, with a file that anybody could read and write.
pub(crate) struct Canary {
    dir: TempDir,
    secret: String,
    before: Vec<String>,
}

impl Canary {
    pub(crate) fn in_data_dir(lab: &Lab) -> Self {
        Self::below(&lab.data_dir)
    }

    pub(crate) fn below(above: &Path) -> Self {
        let prefix = "sandkasten-test-canary-";
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(above).expect("a directory");
        let name = dir.path().file_name().expect("a name").to_string_lossy().into_owned();
        let secret = format!("secret-of-{name}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("open it");
        fs::write(dir.path().join("f"), &secret).expect("write the canary");
        fs::set_permissions(dir.path().join("f"), fs::Permissions::from_mode(0o666)).expect("open");
        let before = look(dir.path());
        Self { dir, secret, before }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("f")
    }

    /// Nothing of it stands in an answer.
    #[track_caller]
    pub(crate) fn is_not_in(&self, what: &str, answer: &Answer) {
        let found =
            answer.body.windows(self.secret.len()).any(|part| part == self.secret.as_bytes());
        assert!(!found, "{what} shows the canary: {answer}");
        use base64::Engine as _;
        let text = String::from_utf8_lossy(&answer.body);
        // In base64 it may begin at any of three places.
        for skip in 0..3 {
            let part = self.secret.as_bytes().get(skip..skip + 9).expect("a long secret");
            let part = base64::engine::general_purpose::STANDARD_NO_PAD.encode(part);
            assert!(!text.contains(&part), "{what} shows the canary: {answer}");
        }
    }

    /// It is what it was: names, bytes, modes, owners and times.
    #[track_caller]
    pub(crate) fn is_untouched(&self, what: &str) {
        assert_eq!(look(self.dir.path()), self.before, "{what}");
    }
}

/// What can be seen of a directory and all that is in it.
fn look(dir: &Path) -> Vec<String> {
    let mut seen = vec![describe(dir)];
    for entry in fs::read_dir(dir).expect("list the canary").flatten() {
        let bytes = fs::read(entry.path()).unwrap_or_default();
        seen.push(format!("{} {:?}", describe(&entry.path()), String::from_utf8_lossy(&bytes)));
    }
    seen.sort();
    seen
}

fn describe(path: &Path) -> String {
    let stat = fs::symlink_metadata(path).expect("look at the canary");
    let (mode, uid, nlink) = (stat.mode(), stat.uid(), stat.nlink());
    format!("{} {mode:o} {uid} {nlink} {}.{}", path.display(), stat.mtime(), stat.mtime_nsec())
}
