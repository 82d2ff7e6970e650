//! Trees of files, in a session or in a workspace: what a worker does.

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandkasten_engine::Place;
use sandkasten_engine::work::{Entry, Item, Job, Kind};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::{DirEntry, FileType, Listing};
use sandkasten_types::limits::{LIST_BYTES_MAX, LIST_DEPTH_MAX, LIST_ENTRIES_MAX};
use sandkasten_types::time::rfc3339_nanos;

use crate::app::{Answer, App, SessionPath, WorkspacePath, ok};
use crate::error::ApiError;
use crate::query::Query;

/// Lists a directory, some levels deep. Links are shown, not followed.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/list", tag = "files", operation_id = "list_directory",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query, description = "this or `path_base64`"),
        ("path_base64" = Option<String>, Query, description = "in place of `path`, for one that is not UTF-8"),
        ("depth" = Option<u64>, Query, minimum = 1, maximum = 64),
        ("user" = Option<String>, Query, description = "`sandbox` or `root`"),
    ),
    responses(
        (status = 200, description = "Done", body = Listing),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Answer<Listing>, ApiError> {
    list_in(&app, Place::Session(id), &query).await
}

/// Lists a directory of a workspace, some levels deep. Links are shown, not followed.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/list", tag = "workspaces",
    operation_id = "list_workspace_tree",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query, description = "this or `path_base64`"),
        ("path_base64" = Option<String>, Query, description = "in place of `path`, for one that is not UTF-8"),
        ("depth" = Option<u64>, Query, minimum = 1, maximum = 64),
    ),
    responses(
        (status = 200, description = "Done", body = Listing),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_list(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Answer<Listing>, ApiError> {
    list_in(&app, Place::Workspace(id), &query).await
}

async fn list_in(app: &App, place: Place, query: &Query) -> Result<Answer<Listing>, ApiError> {
    let depth = query.whole("depth", 1, u64::from(LIST_DEPTH_MAX))?.unwrap_or(1);
    let (path, user) = (query.path()?, query.file_user()?);
    let above = shown(&place, &path);
    let job = Job::List {
        path: path.clone(),
        depth: u32::try_from(depth).unwrap_or(LIST_DEPTH_MAX),
        limit: LIST_ENTRIES_MAX as u64,
    };
    let mut worker = app.engine.work(place, job, user).await?;
    let (mut entries, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    while let Some(item) = worker.next().await? {
        let Item::Entry(entry) = item else { return Err(ApiError::internal("not an entry")) };
        bytes += entry.path.len() + entry.meta.target.as_ref().map_or(0, Vec::len);
        is_cut = bytes > LIST_BYTES_MAX || entries.len() == LIST_ENTRIES_MAX;
        if is_cut {
            break;
        }
        entries.push(dir_entry(&above, entry));
    }
    let truncated = is_cut || worker.is_truncated();
    let path = String::from_utf8_lossy(&path).into_owned();
    Ok(ok(Listing { path, entries, truncated }))
}

fn dir_entry(above: &[u8], entry: Entry) -> DirEntry {
    let Entry { path, meta } = entry;
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let whole = below(above, &path);
    let (seconds, nanos) = meta.mtime;
    DirEntry {
        name: String::from_utf8_lossy(name).into_owned(),
        is_dir: meta.kind == Kind::Dir,
        path: String::from_utf8_lossy(&whole).into_owned(),
        r#type: file_type(meta.kind),
        size: meta.size,
        mode: format!("{:04o}", meta.mode & 0o7777),
        uid: meta.uid,
        gid: meta.gid,
        mtime: rfc3339_nanos(seconds, nanos),
        target: meta.target.map(|target| String::from_utf8_lossy(&target).into_owned()),
        name_base64: not_text(name),
        path_base64: not_text(&whole),
    }
}

/// What JSON can't say.
fn not_text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).is_err().then(|| STANDARD.encode(bytes))
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::File,
        Kind::Dir => FileType::Dir,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Device => FileType::Device,
    }
}

/// How answers call a path: in a session absolute, in a workspace relative to it. `..` stays in a session,
/// where a link may be before it.
fn shown(place: &Place, path: &[u8]) -> Vec<u8> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."));
        names.map(<[u8]>::to_vec).collect()
    };
    match place {
        Place::Session(_) => {
            let base = if path.starts_with(b"/") { &b""[..] } else { b"/workspace/" };
            let names = names(&[base, path].concat());
            let shown = names.iter().flat_map(|name| [b"/", name.as_slice()].concat());
            if names.is_empty() { b"/".to_vec() } else { shown.collect() }
        }
        Place::Workspace(_) => {
            let mut shown: Vec<Vec<u8>> = Vec::new();
            for name in names(path).into_iter().skip(usize::from(path.starts_with(b"/"))) {
                if name == b".." {
                    shown.pop();
                } else {
                    shown.push(name);
                }
            }
            if shown.is_empty() { Vec::new() } else { shown.join(&b'/') }
        }
    }
}

/// The path of something below what [`shown`] gave.
fn below(above: &[u8], path: &[u8]) -> Vec<u8> {
    match (above, path.is_empty()) {
        (_, true) => above.to_vec(),
        (b"" | b"/", false) => [above, path].concat(),
        (_, false) => [above, path].join(&b'/'),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn paths_are_shown_as_their_place_has_them() {
        let text = |place: &Place, path: &str, entry: &str| {
            String::from_utf8(below(&shown(place, path.as_bytes()), entry.as_bytes())).unwrap()
        };
        let session = Place::Session("00000000000000000000000000000000".parse().unwrap());
        assert_eq!(text(&session, "a//./b", "c"), "/workspace/a/b/c");
        assert_eq!(text(&session, "/", "etc"), "/etc");
        assert_eq!(text(&session, "/etc/", "d/x"), "/etc/d/x");
        let workspace = Place::Workspace("ws".parse().unwrap());
        assert_eq!(text(&workspace, ".", "c"), "c");
        assert_eq!(text(&workspace, "/workspace/a/", "c"), "a/c");
        assert_eq!(text(&workspace, "a/../b", "c"), "b/c");
    }
}
