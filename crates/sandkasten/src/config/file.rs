//! `sandkasten.yaml`. Walks the document key by key, so that whatever is wrong has a line.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::settings::Settings;
use super::table::{self, Row};
use super::value::{Raw, shown};
use crate::failure::{Failure, Result, Tried};

/// A configuration is a page; more than this is another file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file that was read: which keys it sets.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    text: String,
    keys: Vec<&'static str>,
}

/// Who named a file: one that the user named must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    ByUser,
    ByDefault,
}

/// The text of `path`; `None` where it may be missing and is.
pub(super) fn read(path: &Path, named: Named) -> Result<Option<String>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == ErrorKind::NotFound && named == Named::ByDefault => {
            return Ok(None);
        }
        Err(why) => return Err(Failure::because(path.display(), &why)),
    };
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let length = read.tried(|| path.display().to_string())?;
    if length as u64 > FILE_BYTES_MAX {
        let why = format!("{}: is longer than {FILE_BYTES_MAX} bytes", path.display());
        return Err(Failure::new(why));
    }
    Ok(Some(text))
}

/// Sets what the file sets.
pub(super) fn parse(path: &Path, text: String, settings: &mut Settings) -> Result<File> {
    let mut walk =
        Walk { settings, seen: BTreeSet::new(), keys: Vec::new(), why: None, stop: None };
    match walk.document(&text) {
        Ok(()) => Ok(File { path: path.to_owned(), keys: walk.keys, text }),
        Err(error) => Err(refusal(path, &walk, &error)),
    }
}

impl File {
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains(&key)
    }

    /// The line of a key that the file has. Found by walking again up to there: the parser tells
    /// places in its errors alone, and this is on the way to an error anyway.
    pub(super) fn line(&self, key: &str) -> Option<usize> {
        let mut unused = Settings::default();
        let mut walk = Walk {
            settings: &mut unused,
            seen: BTreeSet::new(),
            keys: Vec::new(),
            why: None,
            stop: Some(key),
        };
        let error = walk.document(&self.text).err()?;
        error.location().map(|place| place.line())
    }
}

fn refusal(path: &Path, walk: &Walk<'_>, error: &yaml_serde::Error) -> Failure {
    let place = match error.location() {
        Some(place) => format!("{}:{}", path.display(), place.line()),
        None => path.display().to_string(),
    };
    let why = walk.why.clone().unwrap_or_else(|| {
        let text = error.to_string();
        // The parser's own words end with the place, which stands in front already.
        shown(text.split(" at line ").next().unwrap_or(&text))
    });
    Failure::new(format!("{place}: {why}"))
}

/// The state of one walk.
struct Walk<'a> {
    settings: &'a mut Settings,
    seen: BTreeSet<String>,
    keys: Vec<&'static str>,
    /// Why it ended, in our words; the parser's error has the place.
    why: Option<String>,
    /// A key at which to end with an error, to learn its place.
    stop: Option<&'a str>,
}

impl Walk<'_> {
    fn document(&mut self, text: &str) -> Result<(), yaml_serde::Error> {
        let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if text.lines().all(is_blank) {
            return Ok(());
        }
        let whole = yaml_serde::Deserializer::from_str(text);
        Section { walk: self, prefix: String::new() }.deserialize(whole)
    }

    fn fail<E: Error>(&mut self, why: String) -> E {
        let error = E::custom(&why);
        self.why = Some(why);
        error
    }

    /// What the key `name` of the section `prefix` stands for.
    fn slot<E: Error>(&mut self, prefix: &str, name: &str) -> Result<Slot, E> {
        let key = format!("{prefix}{name}");
        if self.stop == Some(key.as_str()) {
            return Err(self.fail("here".into()));
        }
        if !self.seen.insert(key.clone()) {
            return Err(self.fail(format!("duplicate key `{}`", shown(&key))));
        }
        if let Some(row) = table::by_key(&key) {
            return Ok(Slot::Row(row));
        }
        if table::is_section(&key) {
            return Ok(Slot::Section(format!("{key}.")));
        }
        let hint = match table::nearest(&key) {
            Some(near) => format!("; did you mean `{near}`?"),
            None => String::new(),
        };
        Err(self.fail(format!("unknown key `{}`{hint}", shown(&key))))
    }

    fn set<E: Error>(&mut self, row: &'static Row, raw: Raw) -> Result<(), E> {
        let done = row.set(self.settings, raw);
        done.map_err(|why| self.fail(format!("`{}`: {why}", row.key)))?;
        self.keys.push(row.key);
        Ok(())
    }
}

/// What a key stands for.
enum Slot {
    Row(&'static Row),
    Section(String),
}

/// A mapping of keys; nothing (`pool:` and no more) is an empty one.
struct Section<'w, 'a> {
    walk: &'w mut Walk<'a>,
    prefix: String,
}

impl<'de> DeserializeSeed<'de> for Section<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Section<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("keys and values")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        loop {
            let key = Key { walk: &mut *self.walk, prefix: &self.prefix };
            let Some(slot) = map.next_key_seed(key)? else { return Ok(()) };
            let walk = &mut *self.walk;
            match slot {
                Slot::Section(prefix) => map.next_value_seed(Section { walk, prefix })?,
                Slot::Row(row) => map.next_value_seed(Leaf { walk, row })?,
            }
        }
    }
}

/// One key of a mapping. It is judged here, where the parser still knows its place.
struct Key<'w, 'a> {
    walk: &'w mut Walk<'a>,
    prefix: &'w str,
}

impl<'de> DeserializeSeed<'de> for Key<'_, '_> {
    type Value = Slot;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Slot, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_, '_> {
    type Value = Slot;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Slot, E> {
        self.walk.slot(self.prefix, name)
    }
}

/// One value. A key without one is as good as absent.
struct Leaf<'w, 'a> {
    walk: &'w mut Walk<'a>,
    row: &'static Row,
}

impl<'de> DeserializeSeed<'de> for Leaf<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Leaf<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    /// The shape is asked for by the key: a scalar asked for as text keeps its spelling, so that
    /// an API key `0123` stays what it is.
    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        match self.row.shape {
            table::Shape::One => from.deserialize_str(self),
            table::Shape::Many => from.deserialize_any(self),
            table::Shape::Counts => from.deserialize_map(self),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.walk.set(self.row, Raw::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element::<String>()? {
            parts.push(part);
        }
        self.walk.set(self.row, Raw::List(parts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut count = 0;
        while let Some((name, size)) = map.next_entry::<String, Size>()? {
            if size.is_wrong() {
                let why = format!(
                    "`{}.{}`: must be a number or {{min, max}}",
                    self.row.key,
                    shown(&name)
                );
                return Err(self.walk.fail(why));
            }
            count += 1;
        }
        self.walk.set(self.row, Raw::Count(count))
    }
}

/// The size of an image's pool. Only its shape is looked at until there is a pool.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Fixed(#[expect(dead_code, reason = "there is no pool yet")] u64),
    Range { min: u64, max: u64 },
    Wrong(IgnoredAny),
}

impl Size {
    fn is_wrong(&self) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::Range { min, max } => min > max,
            Self::Wrong(_) => true,
        }
    }
}
