//! `sandkasten doctor`: the guarantees that jail has tried, and those that settings give up, as lines.

use sandkasten_jail::doctor::{Guarantee, HostPaths, State};
use serde_json::{Value, json};

use crate::cli::Context;
use crate::config::{RUN_DIR, Settings, absolute, disk_limits};
use crate::failure::{FAILED, Result};
use crate::output::escaped;

/// Show each guarantee of the isolation, and whether this host can give it.
///
/// Each line is the result of trying the thing. The exit code is 0 only if all required guarantees
/// are given; the daemon refuses to start without them, but for those named with --allow-degraded.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, context: &Context) -> Result<u8> {
    let settings = context.load()?.settings;
    let mut guarantees = of_host(&settings);
    guarantees.extend(of_settings(&settings));
    let complete = !guarantees.iter().any(|one| one.required && is_missing(one));
    let list: Vec<Value> = guarantees.iter().map(value).collect();
    context.output.result(&json!({"ok": complete, "guarantees": list}), || {
        let mut text: Vec<String> = guarantees.iter().map(lines).collect();
        text.push(verdict(&guarantees));
        text.join("\n")
    });
    Ok(if complete { 0 } else { FAILED })
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

/// What the operator's own settings give up.
fn of_settings(settings: &Settings) -> Vec<Guarantee> {
    vec![Guarantee {
        name: "api-key",
        required: false,
        says: "only who has the key reaches the API".into(),
        state: if settings.api_key.is_empty() {
            State::Missing {
                why: "`api_key` is empty: every user of this host can use the daemon".into(),
                fix: "set `api_key` in sandkasten.yaml, or SANDKASTEN_API_KEY".into(),
            }
        } else {
            State::Given
        },
    }]
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

fn verdict(guarantees: &[Guarantee]) -> String {
    let missing: Vec<&str> = guarantees
        .iter()
        .filter(|one| one.required && is_missing(one))
        .map(|one| one.name)
        .collect();
    if missing.is_empty() {
        return "\nall required guarantees are given".into();
    }
    format!("\nmissing: {}; the daemon does not start here", missing.join(", "))
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
        Guarantee { required: false, ..missing() }
    }

    #[test]
    fn a_line_says_what_why_and_how() {
        assert_eq!(
            lines(&missing()),
            "missing  cgroup-memory: memory is limited\n         why: no controller\n         fix: mount -t cgroup2 …"
        );
        assert!(lines(&optional()).starts_with("missing  cgroup-memory (optional): "));
        let given = Guarantee { state: State::Given, ..missing() };
        assert_eq!(lines(&given), "given    cgroup-memory: memory is limited");
        assert_eq!(value(&missing())["given"], false);
    }

    #[test]
    fn only_required_ones_decide() {
        assert!(verdict(&[optional()]).contains("all required"));
        assert!(verdict(&[missing()]).contains("missing: cgroup-memory"));
    }

    #[test]
    fn an_empty_key_is_reported() {
        let keyless = of_settings(&Settings::default());
        assert!(is_missing(&keyless[0]) && !keyless[0].required);
        let keyed = of_settings(&Settings { api_key: "k".into(), ..Settings::default() });
        assert!(!is_missing(&keyed[0]));
    }
}
