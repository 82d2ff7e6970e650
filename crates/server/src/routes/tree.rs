//! Trees of files, in a session or in a workspace: what a worker does.

use axum::extract::State;
use sandkasten_engine::work::{Item, Job, Match, Search};
use sandkasten_engine::{FileUser, Place, described};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::{CopyFiles, FoundLine, Globbed, Grepped, Listing};
use sandkasten_types::limits::{
    BODY_BYTES_MAX, GLOB_LIMIT, GLOB_LIMIT_MAX, GREP_CONTEXT_MAX, GREP_LIMIT, GREP_LIMIT_MAX,
    LIST_BYTES_MAX, LIST_DEPTH_MAX, LIST_ENTRIES_MAX,
};
use sandkasten_types::session::Ok as Done;
use sandkasten_types::{Base64, ErrorCode};

use crate::app::{Answer, App, SessionPath, WorkspacePath, ok};
use crate::error::ApiError;
use crate::json::Json;
use crate::query::{Query, field_path};

/// Lists a directory, some levels deep. Links are shown, not followed.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/list", tag = "files", operation_id = "list_directory",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("depth" = Option<u64>, Query, minimum = 1, maximum = 64),
        ("user" = Option<String>, Query),
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
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("depth" = Option<u64>, Query, minimum = 1, maximum = 64),
        ("user" = Option<String>, Query),
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
    let (path, user) = (query.path()?, app.file_user(&place, query).await?);
    let above = shown(&place, &path);
    let job = Job::List {
        path,
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
        entries.push(described(entry.meta, &below(&above, &entry.path)));
    }
    let truncated = is_cut || worker.is_truncated();
    let path = String::from_utf8_lossy(&above).into_owned();
    Ok(ok(Listing { path, entries, truncated }))
}

/// Finds paths by a glob: `*` stops at a slash, `**` does not; hidden names are names like others.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/glob", tag = "files", operation_id = "glob",
    params(
        ("id" = String, Path),
        ("pattern" = String, Query),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 100_000),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Globbed),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn glob(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Answer<Globbed>, ApiError> {
    glob_in(&app, Place::Session(id), &query).await
}

/// Finds paths of a workspace by a glob: `*` stops at a slash, `**` does not.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/glob", tag = "workspaces",
    operation_id = "glob_workspace",
    params(
        ("id" = String, Path),
        ("pattern" = String, Query),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 100_000),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Globbed),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_glob(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Answer<Globbed>, ApiError> {
    glob_in(&app, Place::Workspace(id), &query).await
}

async fn glob_in(app: &App, place: Place, query: &Query) -> Result<Answer<Globbed>, ApiError> {
    let limit = query.whole("limit", 1, GLOB_LIMIT_MAX)?.unwrap_or(GLOB_LIMIT);
    let (mut path, user) = (top(query)?, app.file_user(&place, query).await?);
    let mut pattern = query.require("pattern")?;
    if pattern.starts_with('/') {
        // The pattern says where it begins.
        (path, pattern) = match &place {
            Place::Session(_) => (b"/".to_vec(), pattern.trim_start_matches('/')),
            Place::Workspace(_) => {
                let below = pattern.strip_prefix("/workspace/");
                let left =
                    || ApiError::new(ErrorCode::PathNotAllowed, "`pattern` leaves the workspace");
                (b".".to_vec(), below.ok_or_else(left)?)
            }
        };
    }
    let above = shown(&place, &path);
    let job = Job::Glob { pattern: pattern.into(), path, limit };
    let mut worker = app.engine.work(place, job, user).await?;
    let (mut found, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    while let Some(item) = worker.next().await? {
        let Item::Path(path) = item else { return Err(ApiError::internal("not a path")) };
        let path = below(&above, &path);
        bytes += path.len();
        is_cut = bytes > LIST_BYTES_MAX || found.len() as u64 == limit;
        if is_cut {
            break;
        }
        found.push(path);
    }
    let truncated = is_cut || worker.is_truncated();
    let paths = found.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    let is_text = found.iter().all(|path| std::str::from_utf8(path).is_ok());
    let paths_base64 = (!is_text).then(|| found.into_iter().map(Base64).collect());
    Ok(ok(Globbed { paths, paths_base64, truncated }))
}

/// Where a search begins.
pub(super) fn top(query: &Query) -> Result<Vec<u8>, ApiError> {
    Ok(query.optional_path()?.unwrap_or_else(|| b".".to_vec()))
}

/// Searches files for lines that match a regular expression. Hidden files are searched, binary ones skipped,
/// links not followed.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/grep", tag = "files", operation_id = "grep",
    params(
        ("id" = String, Path),
        ("pattern" = String, Query),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("include" = Option<Vec<String>>, Query),
        ("ignore_case" = Option<bool>, Query),
        ("context" = Option<u64>, Query, maximum = 100),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 10_000),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Grepped),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn grep(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Answer<Grepped>, ApiError> {
    grep_in(&app, Place::Session(id), &query).await
}

/// Searches files of a workspace for lines that match a regular expression.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/grep", tag = "workspaces",
    operation_id = "grep_workspace",
    params(
        ("id" = String, Path),
        ("pattern" = String, Query),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("include" = Option<Vec<String>>, Query),
        ("ignore_case" = Option<bool>, Query),
        ("context" = Option<u64>, Query, maximum = 100),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 10_000),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Grepped),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_grep(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Answer<Grepped>, ApiError> {
    grep_in(&app, Place::Workspace(id), &query).await
}

async fn grep_in(app: &App, place: Place, query: &Query) -> Result<Answer<Grepped>, ApiError> {
    let context = query.whole("context", 0, GREP_CONTEXT_MAX)?.unwrap_or(0);
    let search = Search {
        pattern: query.require("pattern")?.to_owned(),
        include: query.all("include"),
        ignore_case: query.flag("ignore_case")?,
        context: u32::try_from(context).unwrap_or(0),
        limit: query.whole("limit", 1, GREP_LIMIT_MAX)?.unwrap_or(GREP_LIMIT),
    };
    let (path, user, limit) = (top(query)?, app.file_user(&place, query).await?, search.limit);
    let above = shown(&place, &path);
    let mut worker = app.engine.work(place, Job::Grep { path, search }, user).await?;
    let (mut matches, mut bytes, mut is_cut) = (Vec::new(), 0, false);
    while let Some(item) = worker.next().await? {
        let Item::Match(found) = item else { return Err(ApiError::internal("not a match")) };
        let around = found.before.iter().chain(&found.after).map(Vec::len).sum::<usize>();
        bytes += found.path.len() + found.text.len() + around;
        is_cut = bytes > LIST_BYTES_MAX || matches.len() as u64 == limit;
        if is_cut {
            break;
        }
        matches.push(found_line(&above, found));
    }
    Ok(ok(Grepped { matches, truncated: is_cut || worker.is_truncated() }))
}

fn found_line(above: &[u8], found: Match) -> FoundLine {
    let text = |line: &Vec<u8>| String::from_utf8_lossy(line).into_owned();
    let (path, path_base64) = said(below(above, &found.path));
    FoundLine {
        path,
        path_base64,
        line: found.line,
        text: text(&found.text),
        before: found.before.iter().map(text).collect(),
        after: found.after.iter().map(text).collect(),
    }
}

/// A path as text, and in base64 where that does not say it.
pub(super) fn said(path: Vec<u8>) -> (String, Option<Base64>) {
    match String::from_utf8(path) {
        Ok(path) => (path, None),
        Err(error) => {
            let path = String::from_utf8_lossy(error.as_bytes()).into_owned();
            (path, Some(Base64(error.into_bytes())))
        }
    }
}

/// Copies a file, or a directory with all in it. Mode and time of change are kept, links stay links.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/copy", tag = "files", operation_id = "copy",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = CopyFiles,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn copy(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    body: Json<CopyFiles, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    copy_in(&app, Place::Session(id), &query, body.value).await
}

/// Copies a file of a workspace, or a directory with all in it.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/copy", tag = "workspaces",
    operation_id = "copy_in_workspace",
    params(
        ("id" = String, Path),
        ("user" = Option<String>, Query),
    ), request_body = CopyFiles,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_copy(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    body: Json<CopyFiles, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    copy_in(&app, Place::Workspace(id), &query, body.value).await
}

async fn copy_in(
    app: &App,
    place: Place,
    query: &Query,
    request: CopyFiles,
) -> Result<Answer<Done>, ApiError> {
    let user = app.file_user(&place, query).await?;
    let from = field_path("from", request.from, request.from_base64)?;
    let to = field_path("to", request.to, request.to_base64)?;
    let recursive = request.recursive.unwrap_or(false);
    let overwrite = request.overwrite.unwrap_or(false);
    finish(app, place, Job::Copy { from, to, recursive, overwrite }, user).await
}

/// Runs a job that has nothing to tell. It ends where the client goes.
pub(super) async fn finish(
    app: &App,
    place: Place,
    job: Job,
    user: FileUser,
) -> Result<Answer<Done>, ApiError> {
    let mut worker = app.engine.work(place, job, user).await?;
    match worker.next().await? {
        None => Ok(ok(Done::TRUE)),
        Some(_) => Err(ApiError::internal("a job told what it has not to tell")),
    }
}

/// How answers call a path: in a session absolute, in a workspace relative to it. `..` stays in a session,
/// where a link may be before it.
pub(super) fn shown(place: &Place, path: &[u8]) -> Vec<u8> {
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
pub(super) fn below(above: &[u8], path: &[u8]) -> Vec<u8> {
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
