//! From a request for a session to a [`Spec`]: every rule on its fields, nothing done yet.

use std::collections::BTreeMap;

use sandkasten_protocol::passwd::find;
use sandkasten_types::limits::{CPU_MIN, ENV_STRING_BYTES_MAX, MEMORY_MB_MIN, PIDS_MIN};
use sandkasten_types::session::{CreateSession, Limits, Network, UpdateSession};
use sandkasten_types::{ImageName, WorkspaceId, limits};

use super::spec::{About, BoxUser, Change, NamedUser, Spec};
use super::user::{check_name, is_root, unknown_user};
use crate::config::{Config, WorkspacePolicy};
use crate::error::Error;
use crate::image::Image;

/// Where images come from.
pub(crate) trait Images {
    fn image(&self, name: &ImageName) -> Result<Image, Error>;

    /// The text of its passwd; empty where it has none.
    fn passwd(&self, image: &Image) -> Result<Vec<u8>, Error>;
}

/// Checks a request.
pub(crate) fn check(
    request: CreateSession,
    config: &Config,
    images: &impl Images,
) -> Result<Spec, Error> {
    let CreateSession {
        image,
        ttl_seconds,
        workspace_id,
        name,
        env,
        labels,
        cwd,
        user,
        network,
        limits,
        exec_mode,
        seccomp,
    } = request;
    let name_of_image = image_name(image, config)?;
    // Clients of version 0.3.0 send 0 for none.
    let ttl_seconds = match ttl_seconds {
        None | Some(0) => config.session_ttl_seconds,
        Some(seconds) => ttl(seconds)?,
    };
    let workspace = workspace(workspace_id, config)?;
    check_network(network)?;
    check_exec_mode(exec_mode.as_deref())?;
    check_seccomp(seccomp.as_deref())?;
    let limits = session_limits(limits.unwrap_or_default(), config)?;
    let name = session_name(name)?;
    let env = environment(env.unwrap_or_default())?;
    let labels = check_labels(labels.unwrap_or_default())?;
    let cwd = directory(cwd)?;
    let image = images.image(&name_of_image)?;
    let user = box_user(user.as_deref(), || images.passwd(&image))?;
    Ok(Spec {
        image: name_of_image,
        layers: image.layers,
        image_env: image.config.env,
        about: About { name, labels, ttl_seconds },
        env,
        user,
        workspace,
        cwd,
        cpu: limits.cpu,
        memory_mb: limits.memory_mb,
        pids: limits.pids,
        disk_mb: limits.disk_mb,
        readonly_rootfs: config.defaults.readonly_rootfs,
        shell: config.defaults.shell,
    })
}

/// Checks a change of a session that lives.
pub(crate) fn check_update(request: UpdateSession) -> Result<Change, Error> {
    let UpdateSession { ttl_seconds, labels, name } = request;
    Ok(Change {
        ttl_seconds: ttl_seconds.map(ttl).transpose()?,
        labels: labels.map(check_labels).transpose()?,
        name: name.map(|name| session_name(Some(name))).transpose()?,
    })
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::InvalidRequest(text.into()))
}

fn image_name(image: Option<String>, config: &Config) -> Result<ImageName, Error> {
    let text = image.filter(|name| !name.is_empty());
    let text = text.as_deref().unwrap_or(&config.default_image);
    let name: ImageName = text
        .parse()
        .map_err(|error: sandkasten_types::InvalidId| Error::InvalidImage(error.to_string()))?;
    let allowed = &config.allowed_images;
    if !allowed.is_empty() && !allowed.iter().any(|one| one == name.as_str()) {
        return Err(Error::InvalidImage(format!("image not allowed: {name}")));
    }
    Ok(name)
}

fn ttl(seconds: i64) -> Result<u64, Error> {
    let max = limits::TTL_SECONDS_MAX;
    match u64::try_from(seconds) {
        Ok(seconds) if (1..=max).contains(&seconds) => Ok(seconds),
        _ => invalid(format!("`ttl_seconds` is {seconds}; it must be 1 to {max}")),
    }
}

fn workspace(id: Option<String>, config: &Config) -> Result<Option<WorkspaceId>, Error> {
    // Clients of version 0.3.0 send an empty text for none.
    let id = id.filter(|id| !id.is_empty());
    match (id, config.workspaces) {
        (None, WorkspacePolicy::On { persist_by_default: true }) => {
            let id = WorkspaceId::random()
                .map_err(|error| Error::internal("random workspace id", error))?;
            Ok(Some(id))
        }
        (None, _) => Ok(None),
        (Some(_), WorkspacePolicy::Off) => {
            Err(Error::InvalidWorkspace("workspaces are switched off on this daemon".into()))
        }
        (Some(id), WorkspacePolicy::On { .. }) => {
            let id = id.parse().map_err(|error: sandkasten_types::InvalidId| {
                Error::InvalidWorkspace(error.of_field("workspace_id"))
            })?;
            Ok(Some(id))
        }
    }
}

fn check_network(network: Option<Network>) -> Result<(), Error> {
    let (mode, rules) = match network {
        None => return Ok(()),
        Some(Network::Mode(mode)) => (mode, false),
        Some(Network::Policy(policy)) => {
            (policy.mode, !policy.allow.is_empty() || !policy.deny.is_empty())
        }
    };
    match mode.as_str() {
        "none" if !rules => Ok(()),
        "none" => invalid("`network.allow` and `network.deny` are for modes other than `none`"),
        "proxy" | "bridge" => {
            invalid(format!("network mode `{mode}` is not available in this version"))
        }
        _ => invalid(format!(
            "network mode `{}` is unknown; it must be `none`, `proxy` or `bridge`",
            shortened(&mode)
        )),
    }
}

fn check_exec_mode(mode: Option<&str>) -> Result<(), Error> {
    match mode {
        None | Some("" | "stateful") => Ok(()),
        Some("stateless") => invalid("`exec_mode` `stateless` is not available in this version"),
        Some(other) => invalid(format!(
            "`exec_mode` is `{}`; it must be `stateful` or `stateless`",
            shortened(other)
        )),
    }
}

fn check_seccomp(profile: Option<&str>) -> Result<(), Error> {
    match profile {
        None => Ok(()),
        Some("strict" | "mvp") => invalid("`seccomp` is not available in this version"),
        Some(other) => {
            invalid(format!("`seccomp` is `{}`; it must be `strict` or `mvp`", shortened(other)))
        }
    }
}

/// [`Limits`] with nothing left open.
struct SessionLimits {
    cpu: f64,
    memory_mb: u64,
    pids: u64,
    /// `None`: no limit.
    disk_mb: Option<u64>,
}

fn session_limits(asked: Limits, config: &Config) -> Result<SessionLimits, Error> {
    let (defaults, ceilings) = (&config.defaults, &config.ceilings);
    let cpu = asked.cpu.unwrap_or(defaults.cpu.min(ceilings.cpu));
    if !cpu.is_finite() || cpu < CPU_MIN {
        return invalid(format!("`limits.cpu` is {cpu}; the least is {CPU_MIN}"));
    }
    if cpu > ceilings.cpu {
        return invalid(format!(
            "`limits.cpu` is {cpu}; the ceiling `ceilings.cpu` is {}",
            ceilings.cpu
        ));
    }
    let memory_mb = asked.memory_mb.unwrap_or(defaults.memory_mb.min(ceilings.memory_mb));
    within("limits.memory_mb", memory_mb, MEMORY_MB_MIN, ("ceilings.mem_mb", ceilings.memory_mb))?;
    let pids = asked.pids.unwrap_or(defaults.pids.min(ceilings.pids));
    within("limits.pids", pids, PIDS_MIN, ("ceilings.pids", ceilings.pids))?;
    let disk_mb = asked.disk_mb.or(ceilings.disk_mb);
    if let Some(mb) = asked.disk_mb {
        let ceiling = ceilings.disk_mb.unwrap_or(limits::DISK_MB_MAX);
        within("limits.disk_mb", mb, limits::DISK_MB_MIN, ("ceilings.disk_mb", ceiling))?;
    }
    Ok(SessionLimits { cpu, memory_mb, pids, disk_mb })
}

fn within(what: &str, value: u64, least: u64, ceiling: (&str, u64)) -> Result<(), Error> {
    let (name, most) = ceiling;
    if value < least {
        return invalid(format!("`{what}` is {value}; the least is {least}"));
    }
    if value > most {
        return invalid(format!("`{what}` is {value}; the ceiling `{name}` is {most}"));
    }
    Ok(())
}

fn session_name(name: Option<String>) -> Result<Option<String>, Error> {
    // An empty one is none.
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let max = limits::SESSION_NAME_BYTES_MAX;
    if name.len() > max {
        return invalid(format!("`name` is {} bytes; the limit is {max}", name.len()));
    }
    if name.chars().any(char::is_control) {
        return invalid("`name` has a control character");
    }
    Ok(Some(name))
}

fn environment(env: BTreeMap<String, String>) -> Result<Vec<(String, String)>, Error> {
    check_variables("env", &env)?;
    Ok(env.into_iter().collect())
}

/// The rules for variables, of a session or of one command.
pub(super) fn check_variables(field: &str, env: &BTreeMap<String, String>) -> Result<(), Error> {
    if env.len() > limits::MAP_ENTRIES_MAX {
        return invalid(format!(
            "`{field}` has {} entries; the limit is {}",
            env.len(),
            limits::MAP_ENTRIES_MAX
        ));
    }
    let mut bytes = 0;
    for (name, value) in env {
        bytes += check_variable(field, name, value)?;
    }
    if bytes > limits::ENV_BYTES_MAX {
        return invalid(format!(
            "`{field}` is {bytes} bytes; the limit is {}",
            limits::ENV_BYTES_MAX
        ));
    }
    Ok(())
}

/// The rule for one variable. Gives its length in bytes with its name and `=`.
pub(super) fn check_variable(field: &str, name: &str, value: &str) -> Result<usize, Error> {
    if !is_identifier(name) {
        return invalid(format!(
            "`{field}` has the name `{}`; names are letters, digits and `_`, no digit first",
            shortened(name)
        ));
    }
    if value.contains('\0') {
        return invalid(format!("`{field}.{}` has a NUL", shortened(name)));
    }
    let length = name.len() + 1 + value.len();
    if length > ENV_STRING_BYTES_MAX {
        return invalid(format!(
            "`{field}.{}` is {length} bytes with its name; the limit is {ENV_STRING_BYTES_MAX}",
            shortened(name)
        ));
    }
    Ok(length)
}

fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The rules for labels, of a session or of a workspace.
pub(crate) fn check_labels(
    labels: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Error> {
    if labels.len() > limits::MAP_ENTRIES_MAX {
        return invalid(format!(
            "`labels` has {} entries; the limit is {}",
            labels.len(),
            limits::MAP_ENTRIES_MAX
        ));
    }
    let max = limits::LABEL_BYTES_MAX;
    for (key, value) in &labels {
        let name = shortened(key);
        if key.is_empty() || key.len() > max || value.len() > max {
            return invalid(format!(
                "label `{name}`: a key is 1 to {max} bytes, a value {max} at most"
            ));
        }
        if key.chars().chain(value.chars()).any(char::is_control) {
            return invalid(format!("label `{name}` has a control character"));
        }
    }
    Ok(labels)
}

fn directory(cwd: Option<String>) -> Result<String, Error> {
    let Some(cwd) = cwd else { return Ok("/workspace".into()) };
    check_directory(&cwd)?;
    if !cwd.starts_with('/') {
        return invalid("`cwd` must be absolute");
    }
    Ok(cwd)
}

/// The rules for any directory that is entered.
pub(super) fn check_directory(cwd: &str) -> Result<(), Error> {
    if cwd.is_empty() {
        return invalid("`cwd` is empty");
    }
    if cwd.contains('\0') {
        return invalid("`cwd` has a NUL");
    }
    if cwd.len() >= limits::PATH_BYTES_MAX {
        return invalid(format!(
            "`cwd` is {} bytes; the limit is {}",
            cwd.len(),
            limits::PATH_BYTES_MAX - 1
        ));
    }
    Ok(())
}

/// `passwd` gives the image's.
fn box_user(
    user: Option<&str>,
    passwd: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<BoxUser, Error> {
    let Some(user) = user.filter(|user| !BoxUser::Sandbox.is(user) && !user.is_empty()) else {
        return Ok(BoxUser::Sandbox);
    };
    if is_root(user) {
        return Ok(BoxUser::Root);
    }
    check_name(user)?;
    let entry = find(&passwd()?, user.as_bytes()).ok_or_else(|| unknown_user(user))?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_bytes| unknown_user(user));
    Ok(BoxUser::Named(NamedUser {
        name: text(entry.name)?,
        uid: entry.uid,
        gid: entry.gid,
        home: text(entry.home)?,
    }))
}

/// A client's text for a message: escaped, and not all of it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect::<String>().escape_default().to_string()
}

#[cfg(test)]
mod test {
    use sandkasten_types::session::NetworkPolicy;

    use super::*;
    use crate::image::ImageConfig;
    use crate::testing::config;

    struct Store;

    impl Images for Store {
        fn image(&self, name: &ImageName) -> Result<Image, Error> {
            let config = ImageConfig::default();
            let created_at = sandkasten_types::Timestamp::now();
            Ok(Image { name: name.clone(), layers: Vec::new(), config, size_bytes: 0, created_at })
        }

        fn passwd(&self, _image: &Image) -> Result<Vec<u8>, Error> {
            Ok(b"root:x:0:0::/root:\nwww-data:x:33:34::/var/www:\n".to_vec())
        }
    }

    fn checked(request: CreateSession) -> Result<Spec, Error> {
        check(request, &config("/nonexistent".as_ref()), &Store)
    }

    #[test]
    fn any_user_of_the_image_may_be_asked_for() {
        let of = |user: &str| {
            let request = CreateSession { user: Some(user.into()), ..CreateSession::default() };
            checked(request).map(|spec| spec.user)
        };
        for own in ["", "sandbox", "1000"] {
            assert_eq!(of(own).unwrap(), BoxUser::Sandbox);
        }
        assert_eq!((of("root").unwrap(), of("0").unwrap()), (BoxUser::Root, BoxUser::Root));
        for name in ["www-data", "33"] {
            let BoxUser::Named(user) = of(name).unwrap() else { panic!("{name}") };
            assert_eq!((user.name.as_str(), user.uid, user.gid), ("www-data", 33, 34));
            assert_eq!(user.home, "/var/www");
        }
        assert!(of("nobody").unwrap_err().to_string().contains("`nobody`"));
    }

    #[test]
    fn a_change_of_a_lease_has_a_length() {
        let asked = |seconds| {
            let request = UpdateSession { ttl_seconds: Some(seconds), ..UpdateSession::default() };
            check_update(request).map(|change| change.ttl_seconds)
        };
        assert_eq!(asked(86_400).unwrap(), Some(86_400));
        for seconds in [0, -1, 86_401] {
            let error = asked(seconds).unwrap_err().to_string();
            let told = format!("`ttl_seconds` is {seconds}; it must be 1 to 86400");
            assert!(error.ends_with(&told), "{error}");
        }
    }

    #[test]
    fn an_empty_request_gets_the_defaults() {
        let spec = checked(CreateSession::default()).unwrap();
        assert_eq!(spec.image.as_str(), "base");
        assert_eq!((spec.about.ttl_seconds, spec.cwd.as_str()), (1800, "/workspace"));
        assert_eq!((spec.memory_mb, spec.pids, spec.user), (512, 256, BoxUser::Sandbox));
        assert_eq!(spec.workspace, None);
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        type Change = fn(&mut CreateSession);
        let cases: [(&str, Change); 19] = [
            ("ttl_seconds", |r| r.ttl_seconds = Some(-1)),
            ("ttl_seconds", |r| r.ttl_seconds = Some(86_401)),
            ("image", |r| r.image = Some("../x".into())),
            ("`workspace_id`", |r| r.workspace_id = Some("A".into())),
            ("network", |r| r.network = Some(Network::Mode("bridge".into()))),
            ("network", |r| r.network = Some(Network::Mode("x".into()))),
            ("network", |r| {
                let allow = vec!["example.com".into()];
                r.network = Some(Network::Policy(NetworkPolicy {
                    mode: "none".into(),
                    allow,
                    deny: Vec::new(),
                }));
            }),
            ("ceilings.mem_mb", |r| {
                r.limits = Some(Limits { memory_mb: Some(1 << 40), ..Limits::default() });
            }),
            ("limits.cpu", |r| r.limits = Some(Limits { cpu: Some(0.0), ..Limits::default() })),
            ("limits.disk_mb", |r| {
                r.limits = Some(Limits { disk_mb: Some(1), ..Limits::default() });
            }),
            ("env", |r| r.env = Some(BTreeMap::from([("A-B".into(), String::new())]))),
            ("env.A", |r| r.env = Some(BTreeMap::from([("A".into(), "\0".into())]))),
            ("env.A", |r| r.env = Some(BTreeMap::from([("A".into(), "x".repeat(140_000))]))),
            ("cwd", |r| r.cwd = Some("relative".into())),
            ("`cwd` is empty", |r| r.cwd = Some(String::new())),
            ("`seccomp` is not available in this version", |r| r.seccomp = Some("mvp".into())),
            ("`seccomp` is `off`", |r| r.seccomp = Some("off".into())),
            ("user", |r| r.user = Some("nobody".into())),
            ("exec_mode", |r| r.exec_mode = Some("stateless".into())),
        ];
        for (name, change) in cases {
            let mut request = CreateSession::default();
            change(&mut request);
            let error = checked(request).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
