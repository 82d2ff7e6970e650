//! Exact replacement in a file's bytes: one edit after the other, all or none.

use memchr::memmem;
use sandkasten_types::ErrorCode;
use sandkasten_types::files::Edit;
use sandkasten_types::limits::EDITS_MAX;

use crate::error::ApiError;

/// Applies the edits in order to what the ones before them left, and counts the replacements. The
/// result is `limit` bytes at most.
///
/// # Errors
/// 409 where a text is there another number of times than asked; 400, 413.
pub(crate) fn apply(
    mut bytes: Vec<u8>,
    edits: &[Edit],
    limit: u64,
) -> Result<(Vec<u8>, u64), ApiError> {
    check(edits)?;
    let mut replaced = 0;
    for (number, edit) in edits.iter().enumerate() {
        let asked = edit.count.unwrap_or(1);
        // From the left, without overlaps.
        let places: Vec<usize> = memmem::find_iter(&bytes, edit.old.as_bytes()).collect();
        let found = places.len() as u64;
        if found != asked {
            return Err(another_count(number + 1, found, asked));
        }
        let size = bytes.len() as u64 - found * edit.old.len() as u64;
        let size = size.saturating_add(found.saturating_mul(edit.new.len() as u64));
        if size > limit {
            return Err(ApiError::too_large("the edited file", Some(size), limit));
        }
        bytes = replace(&bytes, &places, edit);
        replaced += found;
    }
    Ok((bytes, replaced))
}

fn check(edits: &[Edit]) -> Result<(), ApiError> {
    if edits.is_empty() || edits.len() > EDITS_MAX {
        let count = edits.len();
        return Err(ApiError::invalid(format!(
            "`edits` has {count} edits; 1 to {EDITS_MAX} are allowed"
        )));
    }
    for (number, edit) in edits.iter().enumerate() {
        if edit.old.is_empty() {
            return Err(ApiError::invalid(format!("`edits[{number}].old` is empty")));
        }
        if edit.count == Some(0) {
            return Err(ApiError::invalid(format!("`edits[{number}].count` must be 1 or more")));
        }
    }
    Ok(())
}

fn another_count(number: usize, found: u64, asked: u64) -> ApiError {
    let message = format!(
        "edit {number}: `old` was found {found} times, asked for {asked}; nothing was written"
    );
    let error = ApiError::new(ErrorCode::Conflict, message);
    error.with("edit", number as u64).with("found", found).with("asked", asked)
}

fn replace(bytes: &[u8], places: &[usize], edit: &Edit) -> Vec<u8> {
    let mut edited = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for at in places {
        edited.extend_from_slice(bytes.get(from..*at).unwrap_or_default());
        edited.extend_from_slice(edit.new.as_bytes());
        from = at + edit.old.len();
    }
    edited.extend_from_slice(bytes.get(from..).unwrap_or_default());
    edited
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn edit(old: &str, new: &str, count: Option<u64>) -> Edit {
        Edit { old: old.into(), new: new.into(), count }
    }

    fn edited(text: &str, edits: &[Edit]) -> Result<(String, u64), ApiError> {
        let (bytes, replaced) = apply(text.into(), edits, 100)?;
        Ok((String::from_utf8(bytes).unwrap(), replaced))
    }

    #[test]
    fn edits_follow_each_other() {
        let both = [edit("one", "two", None), edit("two", "three", Some(2))];
        assert_eq!(edited("one two\n", &both).unwrap(), ("three three\n".into(), 3));
        assert_eq!(edited("aaaa", &[edit("aa", "b", Some(2))]).unwrap(), ("bb".into(), 2));
        assert_eq!(edited("aab", &[edit("ab", "", None)]).unwrap(), ("a".into(), 1));
        let (bytes, _) = apply(b"\xff old \xfe".to_vec(), &[edit("old", "é", None)], 100).unwrap();
        assert_eq!(bytes, b"\xff \xc3\xa9 \xfe");
    }

    #[test]
    fn another_count_is_a_conflict_that_says_both() {
        for (text, edits, found, asked) in [
            ("x", vec![edit("y", "z", None)], 0, 1),
            ("y y", vec![edit("y", "z", None)], 2, 1),
            ("y y", vec![edit("y", "z", Some(3))], 2, 3),
            ("y", vec![edit("y", "z", None), edit("y", "q", None)], 0, 1),
        ] {
            let error = edited(text, &edits).unwrap_err();
            assert_eq!(error.code, ErrorCode::Conflict);
            assert_eq!(
                (&error.details["found"], &error.details["asked"]),
                (&found.into(), &asked.into())
            );
        }
    }

    /// Two loops, one in the other, would take minutes.
    #[test]
    fn a_text_that_nearly_is_there_everywhere_is_looked_for_once() {
        let text = "a".repeat(10 << 20);
        let nearly = "a".repeat(5 << 20) + "b";
        let none = apply(text.clone().into(), &[edit(&nearly, "", None)], 1 << 30).unwrap_err();
        assert_eq!(none.details["found"], 0);
        let (edited, _) = apply((text + "b").into(), &[edit(&nearly, "c", None)], 1 << 30).unwrap();
        assert_eq!((edited.len(), edited.last()), ((5 << 20) + 1, Some(&b'c')));
    }

    #[test]
    fn what_is_no_edit_is_refused() {
        assert!(edited("a", &[]).is_err());
        assert!(edited("a", &[edit("", "b", None)]).is_err());
        assert!(edited("a", &[edit("a", "b", Some(0))]).is_err());
        let error = edited("a", &[edit("a", &"b".repeat(101), None)]).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge);
    }

    proptest! {
        #[test]
        fn as_the_library_replaces(text in "[ab]{0,40}", old in "[ab]{1,3}", new in "[abc]{0,4}") {
            let found = text.matches(&old).count() as u64;
            let result = apply(text.clone().into(), &[edit(&old, &new, Some(found.max(1)))], 1000);
            match found {
                0 => prop_assert!(result.is_err()),
                _ => prop_assert_eq!(result.unwrap().0, text.replace(&old, &new).into_bytes()),
            }
        }
    }
}
