//! The routes: one file a noun. The router and the OpenAPI document come from one list.

mod archive;
mod attach;
mod daemon;
pub(crate) mod docs;
pub(crate) mod exec;
mod files;
mod images;
mod processes;
mod raw;
pub(crate) mod sessions;
mod tree;
mod watch;
mod workspaces;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use hyper::Method;
use sandkasten_types::ErrorCode;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::edge::note_route;
use crate::error::ApiError;
use crate::openapi::{Document, loosen_optional_parts};
use crate::query::{QueryNames, known_query};

pub(crate) fn router_and_document() -> (Router<App>, OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(daemon::healthz))
        .routes(routes!(daemon::readyz))
        .routes(routes!(daemon::metrics))
        .routes(routes!(daemon::document))
        .routes(routes!(daemon::info))
        .routes(routes!(images::list))
        .routes(routes!(images::get, images::delete))
        .routes(routes!(docs::page))
        .routes(routes!(docs::script))
        .routes(routes!(docs::style))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::update, sessions::delete))
        .routes(routes!(sessions::stats))
        .routes(routes!(exec::exec))
        .routes(routes!(exec::stream))
        .routes(routes!(exec::list))
        .routes(routes!(exec::get, exec::cancel))
        .routes(routes!(exec::events))
        .routes(routes!(exec::stdin))
        .routes(routes!(exec::restart_shell))
        .routes(routes!(processes::start, processes::list))
        .routes(routes!(processes::get, processes::kill))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
        .routes(routes!(processes::events))
        .routes(routes!(attach::attach))
        .routes(routes!(files::write))
        .routes(routes!(files::read))
        .routes(routes!(files::upload))
        .routes(routes!(tree::list))
        .routes(routes!(raw::get, raw::put, raw::delete))
        .routes(routes!(raw::stat))
        .routes(routes!(raw::mkdir))
        .routes(routes!(raw::r#move))
        .routes(routes!(raw::chmod))
        .routes(routes!(raw::edit))
        .routes(routes!(raw::workspace_get, raw::workspace_put, raw::workspace_delete))
        .routes(routes!(raw::workspace_stat))
        .routes(routes!(raw::workspace_mkdir))
        .routes(routes!(raw::workspace_move))
        .routes(routes!(raw::workspace_chmod))
        .routes(routes!(raw::workspace_edit))
        .routes(routes!(archive::pack, archive::unpack))
        .routes(routes!(tree::glob))
        .routes(routes!(tree::grep))
        .routes(routes!(tree::copy))
        .routes(routes!(watch::watch))
        .routes(routes!(workspaces::list))
        .routes(routes!(workspaces::get, workspaces::put, workspaces::delete))
        .routes(routes!(workspaces::entries))
        .routes(routes!(workspaces::write))
        .routes(routes!(workspaces::read))
        .routes(routes!(workspaces::upload))
        .routes(routes!(tree::workspace_list))
        .routes(routes!(archive::workspace_pack, archive::workspace_unpack))
        .routes(routes!(tree::workspace_glob))
        .routes(routes!(tree::workspace_grep))
        .routes(routes!(tree::workspace_copy))
        .routes(routes!(watch::workspace_watch))
        .split_for_parts();
    loosen_optional_parts(&mut document);
    let names = Arc::new(QueryNames::of(&document));
    let router = router.route_layer(from_fn_with_state(names, known_query));
    (with_fallbacks(router), document)
}

/// What is not in the list has the one error shape too.
pub(crate) fn with_fallbacks<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .route_layer(from_fn(note_route))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(no_route)
}

async fn no_route() -> ApiError {
    ApiError::new(ErrorCode::RouteNotFound, "no such route in this version")
}

async fn method_not_allowed(method: Method) -> ApiError {
    let method: String = method.as_str().chars().take(16).collect();
    let message = format!("{method} is not allowed here; `Allow` has what is");
    ApiError::new(ErrorCode::MethodNotAllowed, message)
}
