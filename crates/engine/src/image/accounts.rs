//! Puts the user `sandbox` into an image's passwd, group, shadow and gshadow. Pure text.
//!
//! Invariant: the name `sandbox` means id 1000 and id 1000 is shown as `sandbox`; every other line is
//! kept byte for byte, whatever it looks like.

use sandkasten_protocol::id;

/// The session's user.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    pub(super) shell: &'static str,
    /// The image has a shadow file, so that passwd points there.
    pub(super) is_shadowed: bool,
}

impl Account {
    pub(super) const SANDBOX: Self = Self { shell: "/bin/sh", is_shadowed: false };
}

/// The new text of a file, from the old one where there was one; `None`: the image needs none.
type Merge = fn(Option<&[u8]>, &Account) -> Option<Vec<u8>>;

/// Name in `/etc`, mode bits it has at least, and how it is made.
pub(super) const FILES: [(&str, u32, Merge); 4] = [
    ("passwd", 0o644, passwd),
    ("group", 0o644, group),
    ("shadow", 0o600, shadow),
    ("gshadow", 0o600, gshadow),
];

fn passwd(old: Option<&[u8]>, account: &Account) -> Option<Vec<u8>> {
    let password = if account.is_shadowed { "x" } else { "*" };
    let (uid, shell) = (id::SANDBOX, account.shell);
    let ours = format!("sandbox:{password}:{uid}:{uid}:sandbox:/home/sandbox:{shell}");
    let root = format!("root:{password}:0:0:root:/root:{shell}");
    Some(merge_by_id(old.unwrap_or_default(), &ours, &root))
}

fn group(old: Option<&[u8]>, _account: &Account) -> Option<Vec<u8>> {
    let ours = format!("sandbox:x:{}:", id::SANDBOX);
    Some(merge_by_id(old.unwrap_or_default(), &ours, "root:x:0:"))
}

/// Locked, like a system account: `su` by root works, a password never does.
fn shadow(old: Option<&[u8]>, _account: &Account) -> Option<Vec<u8>> {
    old.map(|old| merge_by_name(old, "sandbox:!:20000:0:99999:7:::"))
}

fn gshadow(old: Option<&[u8]>, _account: &Account) -> Option<Vec<u8>> {
    old.map(|old| merge_by_name(old, "sandbox:!::"))
}

/// Ours goes to the end, but before everything else where another name has our id: look-ups by id
/// take the first line.
fn merge_by_id(old: &[u8], ours: &str, root: &str) -> Vec<u8> {
    let kept: Vec<&[u8]> = lines(old).filter(|line| field(line, 0) != b"sandbox").collect();
    let is_taken = kept.iter().any(|line| field(line, 2) == id::SANDBOX.to_string().as_bytes());
    let has_root = kept.iter().any(|line| field(line, 0) == b"root");
    let mut all = Vec::new();
    if !has_root {
        all.push(root.as_bytes());
    }
    if is_taken {
        all.push(ours.as_bytes());
    }
    all.extend(kept);
    if !is_taken {
        all.push(ours.as_bytes());
    }
    join(&all)
}

fn merge_by_name(old: &[u8], ours: &str) -> Vec<u8> {
    let mut all: Vec<&[u8]> = lines(old).filter(|line| field(line, 0) != b"sandbox").collect();
    all.push(ours.as_bytes());
    join(&all)
}

/// Lines without their ends; one without an end counts too.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').filter(|line| !line.is_empty())
}

fn field(line: &[u8], n: usize) -> &[u8] {
    line.split(|b| *b == b':').nth(n).unwrap_or_default()
}

fn join(lines: &[&[u8]]) -> Vec<u8> {
    let mut text = lines.join(&b'\n');
    text.push(b'\n');
    text
}

#[cfg(test)]
mod test {
    use super::*;

    const BASH: Account = Account { shell: "/bin/bash", is_shadowed: true };

    fn text(merged: Option<Vec<u8>>) -> String {
        String::from_utf8(merged.unwrap()).unwrap()
    }

    #[test]
    fn a_free_id_is_taken_at_the_end() {
        let old = b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false";
        assert_eq!(
            text(passwd(Some(old), &BASH)),
            "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n\
             sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash\n"
        );
        assert_eq!(text(group(Some(b"root:x:0:\n"), &BASH)), "root:x:0:\nsandbox:x:1000:\n");
    }

    #[test]
    fn a_taken_id_is_ours_first() {
        let merged =
            text(passwd(Some(b"node:x:1000:1000::/home/node:/bin/sh\nroot:x:0:0:::\n"), &BASH));
        assert!(merged.starts_with("sandbox:x:1000:"), "{merged}");
        assert!(merged.contains("\nnode:x:1000:"), "{merged}");
    }

    #[test]
    fn another_sandbox_goes() {
        let old = b"root:x:0:0:::\nsandbox:x:42:42:::\nsandboxer:x:43:43:::\n";
        let merged = text(passwd(Some(old), &BASH));
        assert!(!merged.contains(":42:"), "{merged}");
        assert!(merged.contains("sandboxer:x:43"), "{merged}");
        assert_eq!(
            text(shadow(Some(b"sandbox::1:::::\n"), &BASH)),
            "sandbox:!:20000:0:99999:7:::\n"
        );
    }

    #[test]
    fn nothing_gives_root_and_sandbox() {
        let account = Account::SANDBOX;
        assert_eq!(
            text(passwd(None, &account)),
            "root:*:0:0:root:/root:/bin/sh\nsandbox:*:1000:1000:sandbox:/home/sandbox:/bin/sh\n"
        );
        assert_eq!(shadow(None, &account), None);
    }

    #[test]
    fn odd_lines_are_kept() {
        let old = b"+::::::\nroot:x:0:0:::\n#\xff\xfe\nx\n\n";
        let merged = passwd(Some(old), &BASH).unwrap();
        assert!(merged.starts_with(b"+::::::\nroot:x:0:0:::\n#\xff\xfe\nx\nsandbox:"));
    }

    #[test]
    fn it_is_idempotent() {
        for (_, _, merge) in FILES {
            let once = merge(Some(b"root:x:0:0:::\nnode:x:1000:1000:::\n"), &BASH).unwrap();
            assert_eq!(merge(Some(&once), &BASH).unwrap(), once);
        }
    }
}
