//! The documented table, row by row, and what is refused.

use super::*;
use crate::log::Level;

/// A directory that holds one `sandkasten.yaml`, and sources that read it as `./sandkasten.yaml`.
struct Case {
    dir: tempfile::TempDir,
    sources: Sources,
}

impl Case {
    fn file(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE_IN_CWD), text).unwrap();
        let sources = Sources { cwd: dir.path().to_owned(), ..Sources::default() };
        Self { dir, sources }
    }

    fn nothing() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { cwd: dir.path().to_owned(), ..Sources::default() };
        Self { dir, sources }
    }

    fn variable(mut self, name: &str, text: &str) -> Self {
        self.sources.environment.insert(name.into(), text.into());
        self
    }

    fn insecure(mut self) -> Self {
        self.sources.insecure = Insecure::Allowed;
        self
    }

    fn settings(&self) -> Settings {
        self.sources.load().unwrap_or_else(|why| panic!("{why:?}")).settings
    }

    fn warnings(&self) -> Vec<String> {
        self.sources.load().unwrap().warnings
    }

    /// The message without the directory's name.
    fn refusal(&self) -> String {
        let message = self.sources.load().unwrap_err().message;
        message.replace(&format!("{}/", self.dir.path().display()), "")
    }
}

/// One row of the documented table: how its file line and its variable look, and what they do.
struct Row {
    key: &'static str,
    /// In the file.
    line: &'static str,
    variable: &'static str,
    /// For the variable: another value than the file's, to see which wins.
    text: &'static str,
    check_default: fn(&Settings) -> bool,
    check_file: fn(&Settings) -> bool,
    check_variable: fn(&Settings) -> bool,
}

macro_rules! row {
    ($key:literal, $line:literal, $variable:literal=$text:literal,
     $field:ident: $default:expr, $file:expr, $value:expr) => {
        Row {
            key: $key,
            line: $line,
            variable: $variable,
            text: $text,
            check_default: |settings| settings.$field == $default,
            check_file: |settings| settings.$field == $file,
            check_variable: |settings| settings.$field == $value,
        }
    };
}

const MIB: u64 = 1 << 20;

fn documented() -> Vec<Row> {
    vec![
        row!("listen", "listen: 127.0.0.1:1", "LISTEN" = "127.0.0.1:0", listen: "127.0.0.1:8080", "127.0.0.1:1", "127.0.0.1:0"),
        row!("api_key", "api_key: one", "API_KEY" = "two", api_key: "", "one", "two"),
        row!("data_dir", "data_dir: /a", "DATA_DIR" = "/b", data_dir: Path::new("/var/lib/sandkasten"), Path::new("/a"), Path::new("/b")),
        row!("db_path", "db_path: ./a.db", "DB_PATH" = "/b.db", db_path: None, Some("./a.db".into()), Some("/b.db".into())),
        row!("default_image", "default_image: python", "DEFAULT_IMAGE" = "node", default_image: "base", "python", "node"),
        row!("allowed_images", "allowed_images: [base, python]", "ALLOWED_IMAGES" = "base, node", allowed_images: [""; 0], ["base", "python"], ["base", "node"]),
        row!("session_ttl_seconds", "session_ttl_seconds: 60", "SESSION_TTL_SECONDS" = "86400", session_ttl_seconds: 1800, 60, 86400),
        row!("defaults.cpu_limit", "defaults: {cpu_limit: 0.5}", "CPU_LIMIT" = "0.25", cpu_limit: 1.0, 0.5, 0.25),
        row!("defaults.mem_limit_mb", "defaults: {mem_limit_mb: 64}", "MEM_LIMIT_MB" = "65", mem_limit_mb: 512, 64, 65),
        row!("defaults.pids_limit", "defaults: {pids_limit: 64}", "PIDS_LIMIT" = "65", pids_limit: 256, 64, 65),
        row!("defaults.max_exec_timeout_ms", "defaults: {max_exec_timeout_ms: 120000}", "MAX_EXEC_TIMEOUT_MS" = "30000", max_exec_timeout_ms: 600_000, 120_000, 30_000),
        row!("defaults.readonly_rootfs", "defaults: {readonly_rootfs: yes}", "READONLY_ROOTFS" = "false", readonly_rootfs: false, true, false),
        row!("defaults.shell_prefer", "defaults: {shell_prefer: sh}", "SHELL_PREFER" = "bash", shell_prefer: settings::Shell::Bash, settings::Shell::Sh, settings::Shell::Bash),
        row!("security.seccomp", "security: {seccomp: mvp}", "SECCOMP" = "strict", seccomp: Seccomp::Strict, Seccomp::Mvp, Seccomp::Strict),
        row!("pool.enabled", "pool: {enabled: true}", "POOL_ENABLED" = "false", pool_enabled: false, true, false),
        row!("workspace.enabled", "workspace: {enabled: false}", "WORKSPACE_ENABLED" = "true", workspace_enabled: true, false, true),
        row!("workspace.persist_by_default", "workspace: {persist_by_default: true}", "WORKSPACE_PERSIST_BY_DEFAULT" = "false", persist_by_default: false, true, false),
        row!("dashboard.enabled", "dashboard: {enabled: true}", "DASHBOARD_ENABLED" = "false", dashboard_enabled: false, true, false),
        row!("max_sessions", "max_sessions: 5", "MAX_SESSIONS" = "6", max_sessions: 1000, 5, 6),
        row!("max_output_bytes", "max_output_bytes: 2 MiB", "MAX_OUTPUT_BYTES" = "3145728", max_output_bytes: MIB, 2 * MIB, 3 * MIB),
        row!("max_read_bytes", "max_read_bytes: 5", "MAX_READ_BYTES" = "6", max_read_bytes: 10 * MIB, 5, 6),
        row!("max_upload_bytes", "max_upload_bytes: 5", "MAX_UPLOAD_BYTES" = "1GiB", max_upload_bytes: 10 * MIB, 5, 1024 * MIB),
        row!("ceilings.cpu", "ceilings: {cpu: 1}", "CEILINGS_CPU" = "1.5", ceilings_cpu: None, Some(1.0), Some(1.5)),
        row!("ceilings.mem_mb", "ceilings: {mem_mb: 600}", "CEILINGS_MEM_MB" = "700", ceilings_mem_mb: None, Some(600), Some(700)),
        row!("ceilings.pids", "ceilings: {pids: 600}", "CEILINGS_PIDS" = "700", ceilings_pids: 4096, 600, 700),
        row!("ceilings.disk_mb", "ceilings: {disk_mb: 600}", "CEILINGS_DISK_MB" = "unlimited", ceilings_disk_mb: None, Some(600), None),
        row!("disk_limits", "disk_limits: [image]", "DISK_LIMITS" = "none", disk_limits: [settings::DiskLimit::Project, settings::DiskLimit::Image, settings::DiskLimit::Memory], [settings::DiskLimit::Image], [settings::DiskLimit::Project; 0]),
        row!("cors_origins", "cors_origins: ['https://a.example']", "CORS_ORIGINS" = "http://b.example:1", cors_origins: [""; 0], ["https://a.example"], ["http://b.example:1"]),
        row!("durability", "durability: fsync", "DURABILITY" = "rename", durability: settings::Durability::Rename, settings::Durability::Fsync, settings::Durability::Rename),
        row!("log.level", "log: {level: warn}", "LOG_LEVEL" = "debug", log_level: Level::Info, Level::Warn, Level::Debug),
        row!("log.max_mb", "log: {max_mb: 1}", "LOG_MAX_MB" = "2", log_max_mb: 10, 1, 2),
        row!("log.keep", "log: {keep: 1}", "LOG_KEEP" = "2", log_keep: 5, 1, 2),
    ]
}

#[test]
fn each_key_has_its_default_its_place_in_the_file_and_a_variable_that_wins() {
    for row in documented() {
        let variable = format!("SANDKASTEN_{}", row.variable);
        let default = Case::nothing().settings();
        assert!((row.check_default)(&default), "{}: default", row.key);
        let file = Case::file(row.line).settings();
        assert!((row.check_file)(&file), "{}: file", row.key);
        let alone = Case::nothing().variable(&variable, row.text).settings();
        assert!((row.check_variable)(&alone), "{}: variable alone", row.key);
        let both = Case::file(row.line).variable(&variable, row.text).settings();
        assert!((row.check_variable)(&both), "{}: variable over file", row.key);
    }
}

#[test]
fn every_row_of_the_table_is_tested() {
    let known: Vec<_> = documented().iter().map(|row| row.key).collect();
    // These hold one value only in this version; `a_later_features_value_is_refused` has them.
    let fixed = [
        "defaults.network_mode",
        "defaults.exec_mode",
        "extra_ca",
        "upstream_proxy",
        "pool.images",
        "playground_config_path",
    ];
    for row in table::rows() {
        assert!(known.contains(&row.key) || fixed.contains(&row.key), "{}", row.key);
    }
}

#[test]
fn a_bad_value_is_refused_with_key_file_and_line() {
    let cases = [
        ("listen: 8080", "`8080` is not `HOST:PORT`"),
        ("listen: 127.0.0.1:70000", "`70000` is not a port"),
        ("listen: ::1:80", "`::1:80` is not `HOST:PORT`"),
        ("api_key: 'a b'", "must be visible ASCII"),
        ("default_image: ../x", "invalid image name"),
        ("allowed_images: [ok, Bad]", "invalid image name `Bad`"),
        ("session_ttl_seconds: 0", "0 is too low"),
        ("session_ttl_seconds: 86401", "86401 is too high; the most is 86400"),
        ("session_ttl_seconds: soon", "`soon` is not a whole number"),
        ("defaults: {cpu_limit: 0}", "0 cores"),
        ("defaults: {cpu_limit: .nan}", "`.nan` is not a number"),
        ("defaults: {cpu_limit: nan}", "NaN cores"),
        ("listen: [a, b]", "invalid type: sequence"),
        ("defaults: {mem_limit_mb: -1}", "`-1` is not a whole number"),
        ("defaults: {mem_limit_mb: 1.5}", "`1.5` is not a whole number"),
        ("defaults: {pids_limit: 1}", "1 is too low"),
        ("defaults: {max_exec_timeout_ms: 29999}", "29999 is below 30000"),
        ("defaults: {readonly_rootfs: maybe}", "`maybe` is not true or false"),
        ("defaults: {shell_prefer: zsh}", "`zsh` is not `bash` or `sh`"),
        ("defaults: {network_mode: wifi}", "`wifi` is not `none`"),
        ("security: {seccomp: medium}", "`medium` is not `strict` or `mvp` or `off`"),
        ("pool: {images: {python: many}}", "must be a number or {min, max}"),
        ("max_sessions: 0", "0 is too low"),
        ("max_output_bytes: 65 MiB", "is too high"),
        ("max_read_bytes: 10 MB", "`10 MB` is not a whole number"),
        ("cors_origins: [example.com]", "is not an origin"),
        ("ceilings: {disk_mb: 1}", "1 is too low"),
        ("disk_limits: [image, disk]", "`disk` is not `project` or `image` or `memory`"),
        ("durability: maybe", "`maybe` is not `rename` or `fsync`"),
        ("log: {level: loud}", "`loud` is not `error` or `warn` or `info` or `debug` or `trace`"),
        ("log: {keep: 0}", "0 is too low"),
    ];
    for (line, why) in cases {
        let refusal = Case::file(&format!("# first line\n\n{line}\n")).refusal();
        assert!(refusal.starts_with("sandkasten.yaml:3: "), "{line}: {refusal}");
        assert!(refusal.contains(why), "{line}: {refusal}");
    }
}

#[test]
fn a_bad_variable_is_refused_by_its_name() {
    let refusal = Case::nothing().variable("SANDKASTEN_PIDS_LIMIT", "few").refusal();
    assert_eq!(
        refusal,
        "SANDKASTEN_PIDS_LIMIT: `defaults.pids_limit`: `few` is not a whole number"
    );
}

#[test]
fn a_later_features_value_is_refused_with_the_reason() {
    let cases = [
        ("defaults:\n  network_mode: bridge\n", 2, "sessions have no network yet"),
        ("defaults:\n  network_mode: proxy\n", 2, "sessions have no network yet"),
        ("defaults:\n  exec_mode: stateless\n", 2, "not available in this version"),
        ("extra_ca: /etc/ca.pem\n", 1, "it comes with the network"),
        ("upstream_proxy: http://proxy:3128\n", 1, "it comes with the network"),
    ];
    for (text, line, why) in cases {
        let refusal = Case::file(text).refusal();
        assert!(refusal.starts_with(&format!("sandkasten.yaml:{line}: ")), "{refusal}");
        assert!(refusal.contains(why), "{refusal}");
    }
    let same = Case::file("defaults: {network_mode: none, exec_mode: stateful}").settings();
    assert_eq!(same, Settings::default());
}

#[test]
fn dashboard_and_pool_warn_and_stay_off() {
    let text = "dashboard:\n  enabled: true\npool:\n  enabled: true\n  images:\n    python: 3\n    base: {min: 1, max: 2}\n";
    let warnings = Case::file(text).warnings();
    assert!(warnings.iter().any(|text| text.contains("the dashboard is not in this version")));
    assert!(warnings.iter().any(|text| text.contains("the pool is not in this version")));
    assert_eq!(warnings.len(), 2);
}

#[test]
fn unknown_and_duplicate_keys_have_file_and_line() {
    let refusal = Case::file("listen: 127.0.0.1:1\nlisten_adress: x\n").refusal();
    assert_eq!(refusal, "sandkasten.yaml:2: unknown key `listen_adress`");
    let refusal = Case::file("defaults:\n  cpu_limit: 1\n  mem_limit: 5\n").refusal();
    assert_eq!(refusal, "sandkasten.yaml:3: unknown key `defaults.mem_limit`");
    let refusal = Case::file("api_kye: x").refusal();
    assert_eq!(refusal, "sandkasten.yaml:1: unknown key `api_kye`; did you mean `api_key`?");
    let refusal = Case::file("cpu_limit: 1").refusal();
    assert_eq!(
        refusal,
        "sandkasten.yaml:1: unknown key `cpu_limit`; did you mean `defaults.cpu_limit`?"
    );
    let refusal = Case::file("max_sessions: 5\n\nmax_sessions: 6\n").refusal();
    assert_eq!(refusal, "sandkasten.yaml:3: duplicate key `max_sessions`");
    let refusal = Case::file("pool: {enabled: false}\npool: {enabled: false}\n").refusal();
    assert_eq!(refusal, "sandkasten.yaml:2: duplicate key `pool`");
}

#[test]
fn what_is_no_yaml_has_file_and_line() {
    for (text, line) in [
        ("allowed_images: [1, 2\n", 2),
        ("a: b: c\n", 1),
        ("- one\n", 1),
        ("just text\n", 1),
        ("defaults: 5\n", 1),
    ] {
        let refusal = Case::file(text).refusal();
        assert!(refusal.starts_with(&format!("sandkasten.yaml:{line}: ")), "{text}: {refusal}");
    }
}

#[test]
fn an_empty_key_is_for_loopback_only() {
    for listen in ["127.0.0.1:80", "127.1.2.3:80", "localhost:80", "[::1]:80"] {
        Case::nothing().variable("SANDKASTEN_LISTEN", listen).settings();
    }
    for listen in ["0.0.0.0:80", ":80", "[::]:80", "192.0.2.1:80"] {
        let case = Case::file(&format!("session_ttl_seconds: 5\nlisten: '{listen}'\n"));
        let refusal = case.refusal();
        assert!(refusal.starts_with("sandkasten.yaml:2: `listen`: "), "{refusal}");
        assert!(refusal.contains("`api_key` is empty"), "{refusal}");
        case.variable("SANDKASTEN_API_KEY", "k").settings();
    }
}

#[test]
fn seccomp_off_needs_insecure() {
    let off = || Case::file("security:\n  seccomp: off\n");
    assert!(off().refusal().starts_with("sandkasten.yaml:2: `security.seccomp`: "));
    assert_eq!(off().insecure().settings().seccomp, Seccomp::Off);
    assert!(!off().insecure().warnings().is_empty());
    let by_variable = Case::nothing().variable("SANDKASTEN_SECCOMP", "off").refusal();
    assert!(by_variable.starts_with("SANDKASTEN_SECCOMP: "));
}

#[test]
fn a_default_above_its_ceiling_is_a_contradiction() {
    let refusal = Case::file("defaults:\n  pids_limit: 300\nceilings:\n  pids: 200\n").refusal();
    assert_eq!(
        refusal,
        "sandkasten.yaml:2: `defaults.pids_limit`: 300 is above `ceilings.pids`, which is 200"
    );
    // A ceiling that nobody set follows from the host, and the default gives way.
    let case = Case::file("defaults: {pids_limit: 5000}");
    assert_eq!(case.settings().pids_limit, 4096);
    assert_eq!(case.warnings().len(), 1);
}

#[test]
fn files_of_today_go_on_working() {
    let text = r#"
# Server
listen: "0.0.0.0:8080"
api_key: "sk-test"
data_dir: "/var/lib/sandkasten"
db_path: "/data/sandkasten.db"
default_image: "python"
allowed_images:
  - "base"
  - "python"
session_ttl_seconds: 1800  # 30 minutes
playground_config_path: ./playground.yaml
defaults:
  cpu_limit: 1
  mem_limit_mb: 512   # MB
  pids_limit: 256
  max_exec_timeout_ms: 120000
  network_mode: "none"
  readonly_rootfs: true
pool:
  enabled: true
  images:
    python: 3
workspace:
  enabled: true
  persist_by_default: false
security:
  seccomp: "strict"
dashboard:
"#;
    let settings = Case::file(text).settings();
    assert_eq!(settings.api_key, "sk-test");
    assert_eq!(settings.max_exec_timeout_ms, 120_000);
    assert!(settings.readonly_rootfs);
}

#[test]
fn scalars_keep_their_spelling_and_nothing_is_absent() {
    assert_eq!(Case::file("api_key: 0123").settings().api_key, "0123");
    assert_eq!(Case::file("api_key: 1e5").settings().api_key, "1e5");
    for empty in [
        "",
        "\n",
        "# only a comment\n",
        "---\n",
        "api_key:\n",
        "defaults:\n",
        "api_key: ~\n",
        "allowed_images:\n",
    ] {
        assert_eq!(Case::file(empty).settings(), Settings::default(), "{empty:?}");
    }
    let empty = Case::file("api_key: one").variable("SANDKASTEN_API_KEY", "");
    assert_eq!(empty.settings().api_key, "one");
}

#[test]
fn an_unknown_variable_of_ours_is_told() {
    let case =
        Case::nothing().variable("SANDKASTEN_APIKEY", "x").variable("SANDKASTEN_CACHE_DIR", "/c");
    assert_eq!(case.warnings(), ["unknown variable `SANDKASTEN_APIKEY` has no effect"]);
}

#[test]
fn the_data_directory_is_looked_up_in_one_order() {
    let named = tempfile::tempdir().unwrap();
    let path = named.path().join("other.yaml");
    std::fs::write(&path, "data_dir: /named\n").unwrap();
    let mut case = Case::file("data_dir: /here\n").variable("SANDKASTEN_DATA_DIR", "/variable");
    assert_eq!(case.settings().data_dir, Path::new("/variable"));
    case.sources.config = Some(path.clone());
    assert_eq!(case.settings().data_dir, Path::new("/named"));
    std::fs::write(&path, "max_sessions: 5\n").unwrap();
    assert_eq!(case.settings().data_dir, Path::new("/variable"));
    case.sources.environment.clear();
    assert_eq!(case.settings().data_dir, Path::new("/var/lib/sandkasten"));
    case.sources.config = None;
    assert_eq!(case.settings().data_dir, Path::new("/here"));
    case.sources.data_dir = Some("/flag".into());
    assert_eq!(case.settings().data_dir, Path::new("/flag"));
    case.sources.config = Some(named.path().join("missing.yaml"));
    assert!(case.refusal().contains("missing.yaml"));
}

#[test]
fn the_flag_wins_over_all() {
    let mut case = Case::file("listen: 127.0.0.1:1").variable("SANDKASTEN_LISTEN", "127.0.0.1:2");
    case.sources.listen = Some("127.0.0.1:3".into());
    assert_eq!(case.settings().listen, "127.0.0.1:3");
    case.sources.listen = Some("x".into());
    assert!(case.refusal().starts_with("--listen: `listen`: "));
}

#[test]
fn a_tilde_is_the_home_of_who_runs_it() {
    let home = |text: &str| Case::file(text).variable("HOME", "/home/ann");
    let settings = home("data_dir: ~/sand\ndb_path: ~/db/x.db\n").settings();
    assert_eq!(settings.data_dir, Path::new("/home/ann/sand"));
    assert_eq!(settings.db_path.as_deref(), Some(Path::new("/home/ann/db/x.db")));
    assert_eq!(home("data_dir: \"~\"\n").settings().data_dir, Path::new("/home/ann"));
    let variable = home("").variable("SANDKASTEN_DATA_DIR", "~/v");
    assert_eq!(variable.settings().data_dir, Path::new("/home/ann/v"));
    let mut flag = home("");
    flag.sources.data_dir = Some("~/f".into());
    assert_eq!(flag.settings().data_dir, Path::new("/home/ann/f"));
    for plain in ["/a/~/b", "./~", "./~ann", "a~"] {
        assert_eq!(
            home(&format!("data_dir: {plain}\n")).settings().data_dir,
            Path::new(plain),
            "{plain}"
        );
    }
}

#[test]
fn other_homes_are_refused() {
    let refusal = |case: Case| case.refusal();
    let other = refusal(Case::file("data_dir: ~bob/x\n").variable("HOME", "/home/ann"));
    assert!(other.contains("sandkasten.yaml:1: `data_dir`: `~bob/x` is another user's"), "{other}");
    let nobody = refusal(Case::nothing().variable("SANDKASTEN_DB_PATH", "~/x"));
    assert!(nobody.starts_with("SANDKASTEN_DB_PATH: `db_path`: `~` is no place"), "{nobody}");
    let mut flag = Case::nothing();
    flag.sources.config = Some("~bob/x.yaml".into());
    assert!(flag.refusal().starts_with("--config: `~bob/x.yaml` is another user's"));
}

#[test]
fn where_data_directory_and_key_come_from_is_known() {
    let from = |case: &Case| {
        let loaded = case.sources.load().unwrap();
        let file = |origin: Origin| match origin {
            Origin::File(_, line) => format!("file:{}", line.unwrap_or(0)),
            other @ (Origin::Flag(_) | Origin::Variable(_) | Origin::Default) => other.to_string(),
        };
        [file(loaded.data_dir_from), file(loaded.api_key_from)]
    };
    assert_eq!(from(&Case::nothing()), ["default", "default"]);
    let mut case = Case::file("api_key: k\ndata_dir: /d\n");
    assert_eq!(from(&case), ["file:2", "file:1"]);
    case = case.variable("SANDKASTEN_DATA_DIR", "/v").variable("SANDKASTEN_API_KEY", "v");
    assert_eq!(from(&case), ["SANDKASTEN_DATA_DIR", "SANDKASTEN_API_KEY"]);
    case.sources.config = Some(case.dir.path().join(FILE_IN_CWD));
    assert_eq!(from(&case)[0], "file:2");
    case.sources.data_dir = Some("/f".into());
    assert_eq!(from(&case)[0], "--data-dir");
}
