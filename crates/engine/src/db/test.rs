//! The database: rows come back, the first end stays, a key makes one session, damage is refused.

use std::collections::BTreeMap;

use sandkasten_types::session::Status;
use sandkasten_types::{SessionId, Timestamp};

use super::*;
use crate::clock::BootTime;
use crate::session::{Cause, Spec};

fn open(dir: &tempfile::TempDir) -> Result<Db, StartError> {
    Db::open(&dir.path().join("test.db"))
}

fn row(key: Option<KeyUse>) -> NewRow {
    let now = Timestamp::now();
    NewRow {
        id: SessionId::random().unwrap(),
        spec: Spec::for_tests(),
        boot_id: "boot".into(),
        nonce: [7; 16],
        created_at: now,
        lease: Lease {
            last_activity: now,
            expires_at: now.plus_seconds(60),
            deadline: Some(BootTime::now()),
        },
        key,
    }
}

fn key(fingerprint: u8) -> Option<KeyUse> {
    Some(KeyUse { client: "c".into(), key: "k".into(), fingerprint: vec![fingerprint] })
}

#[tokio::test]
async fn a_row_comes_back_as_it_was_written_also_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let new = row(None);
    let db = open(&dir).unwrap();
    assert_eq!(db.insert_session(new.clone()).await.unwrap(), Claimed::New);
    let init = Identity { pid: 7, start_time: 99 };
    let hello = Hello { shell: Some(sandkasten_types::session::Shell::Sh), cwd: "/x".into() };
    db.set_running(new.id.clone(), init, 300_000, hello).await.unwrap();
    db.close();

    let db = open(&dir).unwrap();
    let rows = db.living_sessions().await.unwrap();
    let [found] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((&found.id, found.status), (&new.id, Status::Running));
    assert_eq!((found.init, found.uid_base), (Some(init), Some(300_000)));
    assert_eq!((found.spec.clone(), found.nonce), (new.spec, [7; 16]));
    assert_eq!(found.lease.deadline, new.lease.deadline);
    assert_eq!(found.cwd, "/x");
}

#[tokio::test]
async fn the_first_cause_of_an_end_stays() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir).unwrap();
    let new = row(None);
    db.insert_session(new.clone()).await.unwrap();
    let first = Cause { status: Status::Expired, reason: "ttl".into() };
    let second = Cause { status: Status::Destroyed, reason: "deleted".into() };
    db.set_stopping(new.id.clone(), first.clone()).await.unwrap();
    db.set_stopping(new.id.clone(), second.clone()).await.unwrap();
    let found = db.session(new.id.clone()).await.unwrap().unwrap();
    assert_eq!((found.status, found.cause), (Status::Stopping, Some(first.clone())));
    db.set_over(new.id.clone(), first.clone(), "/".into()).await.unwrap();
    db.set_over(new.id.clone(), second, "/".into()).await.unwrap();
    let found = db.session(new.id.clone()).await.unwrap().unwrap();
    assert_eq!((found.status, found.cause), (Status::Expired, Some(first)));
    assert!(db.living_sessions().await.unwrap().is_empty());
    db.prune(Timestamp::now().plus_seconds(5)).await.unwrap();
    assert!(db.session(new.id).await.unwrap().is_none());
}

#[tokio::test]
async fn a_key_makes_one_session() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir).unwrap();
    let first = row(key(1));
    assert_eq!(db.insert_session(first.clone()).await.unwrap(), Claimed::New);
    let again = db.insert_session(row(key(1))).await.unwrap();
    assert_eq!(again, Claimed::Before(first.id.clone()));
    assert_eq!(db.insert_session(row(key(2))).await.unwrap(), Claimed::Mismatch);
    db.forget_session(first.id).await.unwrap();
    assert_eq!(db.insert_session(row(key(2))).await.unwrap(), Claimed::New);
}

#[tokio::test]
async fn a_workspace_in_use_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir).unwrap();
    let id: sandkasten_types::WorkspaceId = "ws".parse().unwrap();
    let mut new = row(None);
    new.spec.workspace = Some(id.clone());
    db.insert_session(new.clone()).await.unwrap();
    assert!(db.add_workspace(id.clone(), None).await.unwrap());
    assert!(!db.add_workspace(id.clone(), None).await.unwrap());
    let [found] = &db.workspaces().await.unwrap()[..] else { panic!() };
    assert_eq!((found.sessions, found.active_sessions), (1, 1));
    assert_eq!(found.labels, BTreeMap::new());
    assert_eq!(db.remove_workspace(id.clone()).await.unwrap(), Removable::InUse);
    let cause = Cause { status: Status::Destroyed, reason: "deleted".into() };
    db.set_over(new.id, cause, "/".into()).await.unwrap();
    assert_eq!(db.remove_workspace(id.clone()).await.unwrap(), Removable::Yes);
    assert_eq!(db.remove_workspace(id.clone()).await.unwrap(), Removable::NotFound);
    assert!(!db.has_workspace(id).await.unwrap());
}

#[tokio::test]
async fn a_change_leaves_what_it_does_not_name() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir).unwrap();
    let id: sandkasten_types::WorkspaceId = "ws".parse().unwrap();
    let labels = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    db.add_workspace(id.clone(), None).await.unwrap();
    let first = WorkspaceChange { labels: Some(labels.clone()), quota_mb: None };
    db.change_workspace(id.clone(), first).await.unwrap();
    let second = WorkspaceChange { labels: None, quota_mb: Some(7) };
    db.change_workspace(id.clone(), second).await.unwrap();
    db.close();
    let found = open(&dir).unwrap().workspace(id).await.unwrap().unwrap();
    assert_eq!((found.labels, found.quota_mb), (labels, Some(7)));
}

#[tokio::test]
async fn a_workspace_is_its_makers_until_somebody_else_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir).unwrap();
    let id: sandkasten_types::WorkspaceId = "ws".parse().unwrap();
    let [maker, other] = [(); 2].map(|()| SessionId::random().unwrap());
    let is_made_for = |session: &SessionId| db.is_made_for(id.clone(), session.clone());
    assert!(db.add_workspace(id.clone(), Some(maker.clone())).await.unwrap());
    assert!(is_made_for(&maker).await.unwrap());
    assert!(!is_made_for(&other).await.unwrap());
    assert!(!db.add_workspace(id.clone(), None).await.unwrap());
    assert!(!is_made_for(&maker).await.unwrap());
}

/// A database of the version before, with torn rows.
#[tokio::test]
async fn rows_of_before_and_torn_ones_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.db");
    open(&dir).unwrap().close();
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "DROP INDEX sessions_ended_in_order;
             ALTER TABLE workspaces DROP COLUMN quota_mb;
             ALTER TABLE workspaces DROP COLUMN made_for;
             INSERT INTO workspaces VALUES ('of-before', 1, '{\"k\": \"v\"}');
             INSERT INTO workspaces VALUES ('torn', 2, '{\"k');
             INSERT INTO workspaces VALUES ('No Id', 3, '{}');
             PRAGMA user_version = 1;",
        )
        .unwrap();
    drop(connection);
    let rows = open(&dir).unwrap().workspaces().await.unwrap();
    let [before, torn] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((before.id.as_str(), before.labels["k"].as_str()), ("of-before", "v"));
    assert_eq!((torn.id.as_str(), torn.labels.len(), torn.quota_mb), ("torn", 0, None));
}

#[tokio::test]
async fn a_lost_or_damaged_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.db");
    let db = open(&dir).unwrap();
    db.insert_session(row(None)).await.unwrap();
    db.close();
    let whole = std::fs::read(&path).unwrap();

    std::fs::write(&path, b"").unwrap();
    assert!(open(&dir).is_err(), "emptied");
    std::fs::write(&path, vec![0xAA; whole.len()]).unwrap();
    assert!(open(&dir).is_err(), "overwritten");
    let mut half = whole.clone();
    half.truncate(whole.len() / 2);
    std::fs::write(&path, half).unwrap();
    assert!(open(&dir).is_err(), "cut in half");

    std::fs::write(&path, &whole).unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let error = open(&dir).unwrap_err().to_string();
    assert!(error.contains("version 99"), "{error}");
}
