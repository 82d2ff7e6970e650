//! Files of sessions. Workspaces use the same three operations, see [`super::workspaces`].

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use sandkasten_engine::{CreateFile, Expect, FileUser, FileWriter, Parents, Place};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::{FileContent, Uploaded, WriteFile};
use sandkasten_types::limits::{
    PATH_BYTES_MAX, READ_BYTES_MAX, UPLOAD_FILES_MAX, UPLOAD_OVERHEAD_BYTES_MAX,
};
use sandkasten_types::session::Ok as Done;
use sandkasten_types::strict::unknown;
use sandkasten_types::{Base64, ErrorCode};

use crate::app::held::Held;
use crate::app::{Answer, App, SessionPath, ok};
use crate::body::Reader;
use crate::budget::Share;
use crate::content;
use crate::edge::JSON;
use crate::error::ApiError;
use crate::json::refuse_coding;
use crate::multipart::{Multipart, check_file_name};
use crate::openapi::UploadForm;
use crate::query::{Query, field_path};

/// Bytes encoded at once; a multiple of three, so that only the last piece is padded.
const ENCODE_BYTES: usize = 48 * 1024;

/// Writes a file, whole or not at all.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/write", tag = "files", operation_id = "write_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = WriteFile,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn write(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Done>, ApiError> {
    refuse_coding(&headers)?;
    write_file(&app, Place::Session(id), &query, body).await
}

/// Reads a file.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/read", tag = "files", operation_id = "read_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("max_bytes" = Option<u64>, Query, maximum = 67_108_864),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = FileContent),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn read(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Response, ApiError> {
    read_file(&app, Place::Session(id), &query).await
}

/// Writes the files of a form into a directory.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/upload", tag = "files", operation_id = "upload_files",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body(content = UploadForm, content_type = "multipart/form-data"),
    responses(
        (status = 200, description = "Done", body = Uploaded),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn upload(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Uploaded>, ApiError> {
    let place = Place::Session(id);
    let user = app.file_user(&place, &query).await?;
    Upload::new(&app, place, user).run(&headers, body).await
}

pub(super) async fn write_file(
    app: &App,
    place: Place,
    query: &Query,
    body: Body,
) -> Result<Answer<Done>, ApiError> {
    let user = app.file_user(&place, query).await?;
    let (request, content, _share) = content::write_file(body, &app.budget).await?;
    app.engine.put_file(place, create_file(request, user)?, content).await?;
    Ok(ok(Done::TRUE))
}

fn create_file(request: WriteFile, user: FileUser) -> Result<CreateFile, ApiError> {
    let mode = request.mode.as_deref().map(octal).transpose()?;
    let parents = match request.create_parents {
        None | Some(true) => Parents::Make,
        Some(false) => Parents::MustExist,
    };
    let path = field_path("path", request.path, request.path_base64)?;
    Ok(CreateFile { path, user, mode, parents, expect: Expect::Anything })
}

pub(super) fn octal(text: &str) -> Result<u32, ApiError> {
    let is_octal = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    match u32::from_str_radix(text, 8) {
        Ok(mode) if is_octal && mode <= 0o7777 => Ok(mode),
        _ => Err(ApiError::invalid("`mode` must be an octal string like \"0644\"")),
    }
}

pub(super) async fn read_file(
    app: &App,
    place: Place,
    query: &Query,
) -> Result<Response, ApiError> {
    let path = query.path()?;
    let max_bytes = query.bytes("max_bytes", READ_BYTES_MAX)?;
    let user = app.file_user(&place, query).await?;
    let mut share = app.budget.take(max_bytes.unwrap_or(app.config.max_read_bytes)).await?;
    let file = app.engine.read_file(place, &path, user, max_bytes).await?;
    share.shrink_to(file.bytes.len() as u64);
    let text = String::from_utf8_lossy(&path).into_owned();
    let text = serde_json::to_string(&text).map_err(|e| ApiError::internal(e.to_string()))?;
    let base64 = match query.get("path_base64")? {
        Some(_) => format!("\"path_base64\":\"{}\",", Base64(path)),
        None => String::new(),
    };
    let head = format!("{{\"path\":{text},{base64}\"content_base64\":\"");
    let tail = format!("\",\"truncated\":{},\"size\":{}}}", file.truncated, file.size);
    let length = head.len() + file.bytes.len().div_ceil(3) * 4 + tail.len();
    // The base64 text is made as it leaves; only the bytes are held.
    let bytes = Bytes::from(file.bytes);
    let starts = (0..bytes.len()).step_by(ENCODE_BYTES);
    let encoded = starts.map(move |start| {
        let piece = bytes.slice(start..(start + ENCODE_BYTES).min(bytes.len()));
        Bytes::from(STANDARD.encode(piece))
    });
    let pieces =
        std::iter::once(Bytes::from(head)).chain(encoded).chain(std::iter::once(Bytes::from(tail)));
    let mut response = Response::new(Held::body(pieces, Some(share)));
    response.headers_mut().extend([JSON, (CONTENT_LENGTH, HeaderValue::from(length))]);
    Ok(response)
}

/// One upload. The files are put in place together at the end; before that, dropping it leaves nothing.
pub(super) struct Upload<'a> {
    app: &'a App,
    place: Place,
    user: FileUser,
    /// The target directory, once its part has come.
    target: Option<Vec<u8>>,
    /// Files that came before the target is known.
    early: Vec<EarlyFile>,
    writers: Vec<FileWriter>,
    bytes: u64,
}

/// How a field has a path.
#[derive(Debug, Clone, Copy)]
enum Spelling {
    Text,
    Base64,
}

impl Spelling {
    /// The field's name.
    fn field(self) -> &'static str {
        match self {
            Self::Text => "path",
            Self::Base64 => "path_base64",
        }
    }

    fn read(self, text: Vec<u8>) -> Result<Vec<u8>, ApiError> {
        let field = self.field();
        let text = String::from_utf8(text)
            .map_err(|_cause| ApiError::invalid_path(format!("`{field}` is not UTF-8")))?;
        match self {
            Self::Text => Ok(text.into_bytes()),
            Self::Base64 => Base64::decode(text)
                .map(|path| path.0)
                .map_err(|error| ApiError::invalid_path(format!("`{field}` is {error}"))),
        }
    }
}

struct EarlyFile {
    name: String,
    pieces: Vec<Bytes>,
    _share: Share,
}

impl<'a> Upload<'a> {
    pub(super) fn new(app: &'a App, place: Place, user: FileUser) -> Self {
        let (early, writers) = (Vec::new(), Vec::new());
        Self { app, place, user, target: None, early, writers, bytes: 0 }
    }

    pub(super) async fn run(
        mut self,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Answer<Uploaded>, ApiError> {
        refuse_coding(headers)?;
        let reader = Reader::new(body);
        let limit = self.app.config.max_upload_bytes;
        if reader.length().is_some_and(|length| length > limit + UPLOAD_OVERHEAD_BYTES_MAX) {
            return Err(too_large(limit));
        }
        let mut form = Multipart::new(headers, reader)?;
        while let Some(head) = form.next_part().await? {
            match head.name.as_str() {
                "path" => self.target(&mut form, Spelling::Text).await?,
                "path_base64" => self.target(&mut form, Spelling::Base64).await?,
                "file" | "files" => {
                    let name = head.file_name.unwrap_or_default();
                    self.file(&mut form, name).await?;
                }
                other => {
                    let known = ["path", "path_base64", "file", "files"];
                    return Err(ApiError::invalid(unknown("form field", other, &known)));
                }
            }
        }
        self.finish().await
    }

    async fn target(&mut self, form: &mut Multipart, spelling: Spelling) -> Result<(), ApiError> {
        let mut text = Vec::new();
        while let Some(bytes) = form.data().await? {
            text.extend_from_slice(&bytes);
            // base64 is longer than what it stands for; the engine looks at that.
            if text.len() > 2 * PATH_BYTES_MAX {
                let field = spelling.field();
                let message = format!("`{field}` is too long; the limit is {PATH_BYTES_MAX} bytes");
                return Err(ApiError::invalid_path(message));
            }
        }
        if self.target.replace(spelling.read(text)?).is_some() {
            return Err(ApiError::invalid("more than one field `path` or `path_base64`"));
        }
        self.place_early().await
    }

    async fn file(&mut self, form: &mut Multipart, name: String) -> Result<(), ApiError> {
        check_file_name(&name)?;
        if self.early.len() + self.writers.len() == UPLOAD_FILES_MAX {
            let message = format!("more than {UPLOAD_FILES_MAX} files; that is the limit");
            let error = ApiError::new(ErrorCode::TooLarge, message);
            return Err(error.with("limit", UPLOAD_FILES_MAX as u64));
        }
        if self.target.is_none() {
            return self.hold(form, name).await;
        }
        let mut writer = self.create(&name).await?;
        while let Some(bytes) = form.data().await? {
            self.count(&bytes)?;
            writer.write(bytes).await?;
        }
        self.writers.push(writer);
        Ok(())
    }

    /// Keeps a file in memory until it is known where it goes.
    async fn hold(&mut self, form: &mut Multipart, name: String) -> Result<(), ApiError> {
        let mut share = self.app.budget.try_take(0)?;
        let mut pieces = Vec::new();
        let mut held = 0;
        while let Some(bytes) = form.data().await? {
            self.count(&bytes)?;
            held += bytes.len() as u64;
            share.grow_to(held)?;
            pieces.push(Bytes::copy_from_slice(&bytes));
        }
        self.early.push(EarlyFile { name, pieces, _share: share });
        Ok(())
    }

    fn count(&mut self, bytes: &Bytes) -> Result<(), ApiError> {
        self.bytes += bytes.len() as u64;
        let limit = self.app.config.max_upload_bytes;
        if self.bytes > limit { Err(too_large(limit)) } else { Ok(()) }
    }

    async fn place_early(&mut self) -> Result<(), ApiError> {
        for file in std::mem::take(&mut self.early) {
            let mut writer = self.create(&file.name).await?;
            for piece in file.pieces {
                writer.write(piece).await?;
            }
            self.writers.push(writer);
        }
        Ok(())
    }

    async fn create(&self, name: &str) -> Result<FileWriter, ApiError> {
        let path = match self.target.as_deref().unwrap_or_default() {
            b"" => name.as_bytes().to_vec(),
            directory => [directory, b"/", name.as_bytes()].concat(),
        };
        let request = CreateFile {
            path,
            user: self.user,
            mode: None,
            parents: Parents::Make,
            expect: Expect::Anything,
        };
        Ok(self.app.engine.create_file(self.place.clone(), request).await?)
    }

    async fn finish(mut self) -> Result<Answer<Uploaded>, ApiError> {
        self.place_early().await?;
        if self.writers.is_empty() {
            return Err(ApiError::invalid("the upload has no part named `file` or `files`"));
        }
        let mut made = Vec::new();
        for writer in self.writers {
            made.push(Base64(writer.path().to_owned()));
            writer.commit().await?;
        }
        let is_text = made.iter().all(|path| std::str::from_utf8(&path.0).is_ok());
        let paths = made.iter().map(|path| String::from_utf8_lossy(&path.0).into_owned()).collect();
        Ok(ok(Uploaded { ok: true, paths, paths_base64: (!is_text).then_some(made) }))
    }
}

fn too_large(limit: u64) -> ApiError {
    ApiError::too_large("the upload", None, limit)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_write_has_one_path() {
        let create = |path: Option<&str>, base64: Option<&[u8]>| {
            let path = path.map(str::to_owned);
            let path_base64 = base64.map(|bytes| Base64(bytes.to_vec()));
            let request = WriteFile { path, path_base64, ..WriteFile::default() };
            create_file(request, FileUser::Session).map(|request| request.path)
        };
        assert_eq!(create(Some("a"), None).unwrap(), b"a");
        assert_eq!(create(None, Some(b"\xff")).unwrap(), b"\xff");
        assert!(create(None, None).is_err());
        assert!(create(Some("a"), Some(b"a")).is_err());
    }

    #[test]
    fn a_target_is_told_by_the_name_of_its_field() {
        let told = |spelling: Spelling, text: &[u8]| {
            spelling.read(text.to_vec()).map_err(|error| error.message)
        };
        assert_eq!(told(Spelling::Base64, b"YQ=="), Ok(b"a".to_vec()));
        assert_eq!(told(Spelling::Text, b"\xff"), Err("`path` is not UTF-8".into()));
        assert_eq!(told(Spelling::Base64, b"\xff"), Err("`path_base64` is not UTF-8".into()));
    }

    #[test]
    fn modes_are_octal_strings() {
        assert_eq!(octal("0644").unwrap(), 0o644);
        assert_eq!(octal("755").unwrap(), 0o755);
        assert_eq!(octal("07777").unwrap(), 0o7777);
        for bad in ["", "8", "0o644", "+644", "-1", "10000", "000644", "rw"] {
            assert!(octal(bad).is_err(), "{bad}");
        }
    }
}
