//! `sandkasten doctor`: the guarantees that jail has tried, and those that settings give up, as lines.

use sandkasten_jail::doctor::{Guarantee, HostPaths, State};
use serde_json::{Value, json};

use crate::config::{RUN_DIR, Settings, absolute, disk_limits};
use crate::context::Context;
use crate::failure::{FAILED, Failure, Result};
use crate::instance;
use crate::output::escaped;
use crate::reach;

/// Show each guarantee of the isolation, and whether this host can give it.
///
/// The first line counts them, then come those that are missing, each with the reason and what to do;
/// -v shows the others too. Each is the result of trying the thing, which takes root. The exit code is
/// 0 only if all required guarantees are given; the daemon refuses to start without them, but for those
/// named with --allow-degraded. With --json all are there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the guarantees that are given too
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    reach::refuse_url("doctor", context)?;
    let settings = context.load()?.settings;
    if !rustix::process::geteuid().is_root() {
        return not_root(context);
    }
    let mut guarantees = of_host(&settings);
    guarantees.extend(of_settings(&settings));
    let complete = !guarantees.iter().any(|one| one.required && is_missing(one));
    let list: Vec<Value> = guarantees.iter().map(value).collect();
    context.output.result(&json!({"ok": complete, "guarantees": list}), || {
        report(&guarantees, if args.verbose { Given::Shown } else { Given::Counted })
    });
    Ok(if complete { 0 } else { FAILED })
}

/// Without root each attempt fails, which says nothing of the host: only that is said.
fn not_root(context: &Context) -> Result<u8> {
    if context.output.is_json() {
        let root = missing_root();
        context.output.json(&json!({"ok": false, "guarantees": [value(&root)]}));
        return Ok(FAILED);
    }
    let message = "`sandkasten doctor` needs root: it tries what the daemon would do";
    Err(Failure::new(message).hint("run it as root: `sudo sandkasten doctor`"))
}

fn missing_root() -> Guarantee {
    Guarantee {
        name: "root",
        required: true,
        says: "doctor and daemon run as root".into(),
        state: State::Missing {
            why: "this user is not root, so nothing was tried".into(),
            fix: "run it as root: `sudo sandkasten doctor`".into(),
        },
    }
}

/// What the host can give.
pub(super) fn of_host(settings: &Settings) -> Vec<Guarantee> {
    sandkasten_jail::doctor::guarantees(&HostPaths {
        data_dir: absolute(&settings.data_dir),
        run_dir: RUN_DIR.into(),
        disk_limits: disk_limits(settings),
    })
}

pub(super) fn is_missing(guarantee: &Guarantee) -> bool {
    matches!(guarantee.state, State::Missing { .. })
}

/// What the operator's own settings give up. A daemon that runs already has its key from where it was
/// started, which need not be here.
fn of_settings(settings: &Settings) -> Vec<Guarantee> {
    let has_key = !settings.api_key.is_empty() || running_has_key(settings);
    vec![Guarantee {
        name: "api-key",
        required: false,
        says: "only who has the key reaches the API".into(),
        state: if has_key {
            State::Given
        } else {
            State::Missing {
                why: "`api_key` is empty: every user of this host can use the daemon".into(),
                fix: "set `api_key` in sandkasten.yaml, or SANDKASTEN_API_KEY".into(),
            }
        },
    }]
}

fn running_has_key(settings: &Settings) -> bool {
    let runs = matches!(instance::find(&settings.data_dir), Ok(Some(_)));
    runs && matches!(instance::key(&settings.data_dir), Ok(Some(_)))
}

fn value(one: &Guarantee) -> Value {
    let (given, why, fix) = match &one.state {
        State::Given => (true, None, None),
        State::Missing { why, fix } => (false, Some(why), Some(fix)),
    };
    json!({
        "name": one.name, "required": one.required, "given": given, "says": one.says,
        "why": why, "fix": fix,
    })
}

/// What is told of the guarantees that are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    Shown,
    Counted,
}

/// The count, what is missing (what is required first), and the rest where it is asked for.
fn report(guarantees: &[Guarantee], given: Given) -> String {
    let (missing, rest): (Vec<_>, Vec<_>) = guarantees.iter().partition(|one| is_missing(one));
    let (required, optional): (Vec<_>, Vec<_>) = missing.into_iter().partition(|one| one.required);
    let mut text = vec![summary(guarantees.len(), &required, optional.len())];
    text.extend(required.into_iter().chain(optional).map(lines));
    match given {
        Given::Shown => text.extend(rest.into_iter().map(lines)),
        Given::Counted => {}
    }
    text.join("\n")
}

/// `21 of 23 guarantees; 2 optional missing`.
fn summary(all: usize, required: &[&Guarantee], optional: usize) -> String {
    let mut text = format!("{} of {all} guarantees", all - required.len() - optional);
    if !required.is_empty() {
        let names: Vec<&str> = required.iter().map(|one| one.name).collect();
        text.push_str(&format!("; {} required missing ({})", names.len(), names.join(", ")));
    }
    if optional > 0 {
        text.push_str(&format!("; {optional} optional missing"));
    }
    if !required.is_empty() {
        text.push_str(": the daemon does not start here");
    }
    text
}

fn lines(one: &Guarantee) -> String {
    let kind = if one.required { "" } else { " (optional)" };
    match &one.state {
        State::Given => format!("given    {}{kind}: {}", one.name, escaped(&one.says)),
        State::Missing { why, fix } => {
            let (says, why, fix) = (escaped(&one.says), escaped(why), escaped(fix));
            format!("missing  {}{kind}: {says}\n         why: {why}\n         fix: {fix}", one.name)
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn missing() -> Guarantee {
        Guarantee {
            name: "cgroup-memory",
            required: true,
            says: "memory is limited".into(),
            state: State::Missing {
                why: "no controller".into(), fix: "mount -t cgroup2 …".into()
            },
        }
    }

    fn optional() -> Guarantee {
        Guarantee { name: "disk-limits", required: false, ..missing() }
    }

    fn given() -> Guarantee {
        Guarantee { name: "seccomp", state: State::Given, ..missing() }
    }

    #[test]
    fn a_line_says_what_why_and_how() {
        assert_eq!(
            lines(&missing()),
            "missing  cgroup-memory: memory is limited\n         why: no controller\n         fix: mount -t cgroup2 …"
        );
        assert!(lines(&optional()).starts_with("missing  disk-limits (optional): "));
        assert_eq!(lines(&given()), "given    seccomp: memory is limited");
        assert_eq!(value(&missing())["given"], false);
    }

    #[test]
    fn the_first_line_counts_them() {
        let first = |all: &[Guarantee]| {
            report(all, Given::Counted).lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(report(&[given(), given()], Given::Counted), "2 of 2 guarantees");
        assert_eq!(first(&[given(), optional()]), "1 of 2 guarantees; 1 optional missing");
        assert_eq!(
            first(&[optional(), given(), missing()]),
            "1 of 3 guarantees; 1 required missing (cgroup-memory); 1 optional missing: \
             the daemon does not start here"
        );
    }

    #[test]
    fn what_is_missing_comes_first() {
        let all = [given(), optional(), missing()];
        let names = |given: Given| {
            let text = report(&all, given);
            let heads = text.lines().skip(1).filter(|line| !line.starts_with(' '));
            heads.map(|line| line.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let short = ["missing  cgroup-memory", "missing  disk-limits (optional)"];
        assert_eq!(names(Given::Counted), short);
        assert_eq!(names(Given::Shown), [&short[..], &["given    seccomp"]].concat());
    }

    #[test]
    fn an_empty_key_is_reported() {
        let nowhere = || Settings { data_dir: "/nonexistent".into(), ..Settings::default() };
        let keyless = of_settings(&nowhere());
        assert!(is_missing(&keyless[0]) && !keyless[0].required);
        let keyed = of_settings(&Settings { api_key: "k".into(), ..nowhere() });
        assert!(!is_missing(&keyed[0]));
    }
}
