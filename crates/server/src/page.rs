//! Lists page by page: `limit`, `cursor`, and the cursor of what follows.
//!
//! A cursor is the place of the last entry of a page, in base64 so that nobody takes it for more. The next
//! page begins right behind that place, whether or not its entry is still there.

use std::fmt::Display;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::ApiError;
use crate::query::Query;

/// Entries of one page at most.
pub(crate) const PAGE_MAX: u64 = 1000;

/// Which page is asked for.
#[derive(Debug)]
pub(crate) struct Page {
    limit: Option<usize>,
    after: Option<String>,
}

impl Page {
    /// # Errors
    /// 400 for a limit that is none, and a cursor that is none of ours.
    pub(crate) fn of(query: &Query) -> Result<Self, ApiError> {
        let limit = query.whole("limit", 1, PAGE_MAX)?;
        let after = query.get("cursor")?.map(|cursor| {
            let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_cause| bad_cursor())?;
            String::from_utf8(bytes).map_err(|_cause| bad_cursor())
        });
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self { limit, after: after.transpose()? })
    }

    /// The place behind which the page begins.
    ///
    /// # Errors
    /// 400 where it is none of such a list.
    pub(crate) fn after<K: FromStr>(&self) -> Result<Option<K>, ApiError> {
        self.after.as_ref().map(|text| text.parse().map_err(|_cause| bad_cursor())).transpose()
    }

    /// One more than the page has shows whether another one follows.
    pub(crate) fn wanted(&self) -> Option<usize> {
        self.limit.map(|limit| limit.saturating_add(1))
    }

    /// With this limit where none was asked for.
    pub(crate) fn or_limit(self, limit: u64) -> Self {
        let default = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { limit: Some(self.limit.unwrap_or(default)), ..self }
    }

    /// The page of a list that is in the order of its keys, and the cursor of the next one.
    ///
    /// # Errors
    /// 400 for the cursor of another list.
    pub(crate) fn cut<T, K: Ord + Display + FromStr>(
        &self,
        mut all: Vec<T>,
        key: impl Fn(&T) -> K,
    ) -> Result<(Vec<T>, Option<String>), ApiError> {
        if let Some(after) = self.after::<K>()? {
            all.retain(|one| key(one) > after);
        }
        let Some(limit) = self.limit.filter(|limit| *limit < all.len()) else {
            return Ok((all, None));
        };
        all.truncate(limit);
        let next = all.last().map(|last| URL_SAFE_NO_PAD.encode(key(last).to_string()));
        Ok((all, next))
    }
}

fn bad_cursor() -> ApiError {
    ApiError::invalid("`cursor` is none that this list has given")
}

#[cfg(test)]
mod test {
    use super::*;

    fn page(limit: usize, after: Option<&str>) -> Page {
        Page { limit: Some(limit), after: after.map(str::to_owned) }
    }

    #[test]
    fn pages_follow_each_other() {
        let (first, next) = page(2, None).cut(vec![1_u64, 2, 3], |n| *n).unwrap();
        assert_eq!(first, [1, 2]);
        let next = String::from_utf8(URL_SAFE_NO_PAD.decode(next.unwrap()).unwrap()).unwrap();
        // What the cursor stands for is gone, and another one has come.
        let (second, next) = page(2, Some(&next)).cut(vec![1_u64, 3, 4], |n| *n).unwrap();
        assert_eq!((second, next), (vec![3, 4], None));
        assert_eq!(page(9, None).cut(Vec::<u64>::new(), |n| *n).unwrap(), (Vec::new(), None));
        assert!(page(1, Some("x")).cut(vec![1_u64], |n| *n).is_err());
    }
}
