//! Finds paths by a glob. Hidden names are names like others; links are found, not followed.

use std::os::fd::AsFd;

use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::Item;

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::Failure;
use crate::list::passable;
use crate::pattern;
use crate::root::Root;
use crate::walk::{Step, Walk};
use crate::walk::{join, open_dir};

pub(crate) fn glob(
    root: &Root,
    (path, asked): (&[u8], &[u8]),
    limit: u64,
    channel: &mut dyn Channel,
) -> Result<Done, Failure> {
    let matcher = pattern::glob(asked).map_err(|_why| FileFault::InvalidPath)?;
    let mut dir = root.open_dir(path)?;
    let (names, depth) = plan(asked);
    // Where the glob says a name as it is, nothing beside it is looked at.
    let mut above = Vec::new();
    for name in names {
        match open_dir(dir.as_fd(), name) {
            Ok(below) => dir = below,
            Err(fault) => {
                return passable(Err(fault)).map(|_no| Done::WHOLE).map_err(Failure::from);
            }
        }
        above = join(&above, name);
    }
    let mut walk = match Walk::new(dir, usize::MAX) {
        Ok(walk) => walk,
        Err(fault) => return Err(Failure::at(fault, &above)),
    };
    let mut told = 0;
    while let Some(step) = walk.next_step()? {
        channel.pulse()?;
        let Step::Entry(found) = step else { continue };
        let path = join(&above, &found.path);
        if pattern::matches(&matcher, &path) {
            if told == limit {
                return Ok(Done { truncated: true });
            }
            told += 1;
            channel.tell(Item::Path(path))?;
        }
        if found.is_dir() && walk.depth() < depth {
            passable(walk.enter(&found)).map_err(|fault| Failure::at(fault, &found.path))?;
        }
    }
    Ok(Done { truncated: walk.is_cut() })
}

/// The directories that a glob names as they are, and how deep below them it can match.
fn plan(pattern: &[u8]) -> (Vec<&[u8]>, usize) {
    let parts: Vec<&[u8]> = pattern.split(|b| *b == b'/').collect();
    let is_plain = |part: &&&[u8]| {
        let special = |b: &u8| b"*?[]{}\\!,".contains(b);
        !part.iter().any(special) && !matches!(**part, b"" | b"." | b"..")
    };
    // Within braces a slash may stand, so that nothing is known of what follows.
    if pattern.iter().any(|b| b"{}\\[".contains(b)) {
        return (Vec::new(), usize::MAX);
    }
    let plain = parts.iter().take(parts.len() - 1).take_while(is_plain).count();
    let (names, rest) = parts.split_at(plain);
    let is_deep = rest.iter().any(|part| part.windows(2).any(|two| two == b"**"));
    (names.to_vec(), if is_deep { usize::MAX } else { rest.len() })
}

#[cfg(test)]
mod test {
    use super::plan;

    #[test]
    fn a_glob_is_planned() {
        let planned = |pattern: &'static str| {
            let (names, depth) = plan(pattern.as_bytes());
            (names.join(&b'/'), depth)
        };
        assert_eq!(planned("*.py"), (vec![], 1));
        assert_eq!(planned("a/b/*.py"), (b"a/b".to_vec(), 1));
        assert_eq!(planned("a/*/c"), (b"a".to_vec(), 2));
        assert_eq!(planned("a/**/c"), (b"a".to_vec(), usize::MAX));
        assert_eq!(planned("{a,b/c}/d"), (vec![], usize::MAX));
        assert_eq!(planned("../x"), (vec![], 2));
    }
}
