//! `sandkasten bench`: the client's clock, HTTP included, one keep-alive connection, one request at a
//! time. Invariant: a time counts only with the right answer.

mod figures;
mod files;
mod host;
mod memory;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::figures::Samples;
use self::memory::{FIRST_LOOK, Growth};
use super::daemon::Private;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::table;
use crate::{instance, reach};

/// Measure the daemon: n, median, p95 and p99 of each tier, in milliseconds.
///
/// Tiers of a session of their own each: `cold` creates it and waits for its first result, `create`
/// and `first_exec` are its parts, `destroy` deletes it. Tiers of one session that lives through all
/// of them, one after the other, for what a command costs in a session that is there: `exec` runs `true` in
/// its shell, `stream` does so as a stream, `program` runs /bin/true there, `process` does so beside the
/// shell. `healthz` is the cost of HTTP alone, `above_healthz` what an exec costs more than the health
/// check right behind it. Compare figures of one run on one host only. Where no daemon runs on the data
/// directory, one is started and stopped again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sessions to make, one after the other
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Image of the sessions [default: the daemon's]
    #[arg(long)]
    image: Option<String>,
    /// Also run so many commands in one session, and show the memory that daemon and init have at the
    /// 1000th and at the last
    #[arg(long, value_name = "EXECS", value_parser = clap::value_parser!(u32).range(2000..=10_000_000))]
    flat: Option<u32>,
    /// Measure files instead: small ones, a large one up and down, a tree of 10,000 by archive, with `cp`
    /// and GNU `tar` on the same disk beside them, and the memory that daemon and init had meanwhile
    #[arg(long, conflicts_with = "flat")]
    files: bool,
    /// Size of the large file
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "files",
        value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    size: u32,
}

/// Rounds before the clock counts, to fill caches.
const WARM_UP: u32 = 3;
/// Execs, and health checks, in the session that lives, for each one made.
const EXECS_PER_SESSION: u32 = 4;

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    if reach::named_url(context)?.is_some() {
        if args.files || args.flat.is_some() {
            let message =
                "--files and --flat look at the daemon's memory, which takes root on its host";
            return Err(Failure::new(message).hint("leave --url and SANDKASTEN_URL out"));
        }
        return measure(args, context);
    }
    reach::need_root("bench", context)?;
    if instance::find(&context.load()?.settings.data_dir)?.is_some() {
        return measure(args, context);
    }
    context.output.note("no daemon runs; starting one for the measurement");
    let private = Private::start(context)?;
    let measured = measure(args, context);
    private.stop().and(measured)
}

fn measure(args: &Args, context: &Context) -> Result<u8> {
    let mut bench = Bench::new(Client::of_daemon(context)?, args);
    if args.files {
        return files::measure(&mut bench, args, context);
    }
    for round in 0..WARM_UP + args.runs {
        if round == WARM_UP {
            bench.samples = Samples::default();
        }
        bench.round()?;
    }
    bench.commands(args.runs * EXECS_PER_SESSION)?;
    let mut pid = None;
    if reach::named_url(context)?.is_none() {
        let running = instance::find(&context.load()?.settings.data_dir)?;
        pid = running.map(|running| running.pid.as_raw_nonzero().get());
    }
    let growth = match (args.flat, pid) {
        (Some(execs), Some(daemon)) => Some(bench.flat(execs, daemon)?),
        _ => None,
    };
    report(&bench.samples, (pid, growth), context)?;
    Ok(0)
}

fn report(
    samples: &Samples,
    (pid, growth): (Option<i32>, Option<Growth>),
    context: &Context,
) -> Result<()> {
    let data_dir = context.load()?.settings.data_dir;
    let host = host::stamp(&data_dir);
    let tiers = samples.tiers();
    let value = json!({
        "version": env!("CARGO_PKG_VERSION"), "host": host, "daemon_pid": pid,
        "unit": "ms", "tiers": tiers.iter().map(figures::Tier::value).collect::<Vec<_>>(),
        "flat": growth.as_ref().map(Growth::value),
    });
    context.output.result(&value, || {
        let rows: Vec<_> = tiers.iter().map(figures::Tier::row).collect();
        let figures = table(&["TIER", "N", "P50", "P95", "P99", "MIN", "MAX"], &rows);
        let growth = growth.as_ref().map(|growth| format!("\n{}", growth.line()));
        let growth = growth.unwrap_or_default();
        format!("{}\n\n{figures}\n\nmilliseconds, over HTTP keep-alive{growth}", host::line(&host))
    });
    Ok(())
}

struct Bench {
    client: Client,
    create: Value,
    samples: Samples,
}

impl Bench {
    fn new(client: Client, args: &Args) -> Self {
        let create = match &args.image {
            Some(image) => json!({"image": image, "ttl_seconds": 60}),
            None => json!({"ttl_seconds": 60}),
        };
        Self { client, create, samples: Samples::default() }
    }

    /// Makes a session, does something in it, and deletes it whatever fails in between; how long the
    /// deletion took.
    fn within(
        &mut self,
        act: impl FnOnce(&mut Self, &str, Duration) -> Result<()>,
    ) -> Result<Duration> {
        let begin = Instant::now();
        let session: Value = self.client.call("POST", "/v1/sessions", Some(&self.create))?;
        let created = begin.elapsed();
        let Some(id) = session.get("id").and_then(Value::as_str) else {
            return Err(Failure::new("the daemon's answer has no session id"));
        };
        let done = act(self, id, created);
        let begin = Instant::now();
        let deleted = self.client.call::<Value>("DELETE", &format!("/v1/sessions/{id}"), None);
        let took = begin.elapsed();
        done.and(deleted).map(|_answer: Value| took)
    }

    /// One life of a session.
    fn round(&mut self) -> Result<()> {
        let begin = Instant::now();
        let destroyed = self.within(|bench, id, created| {
            let first = Instant::now();
            bench.exec(&format!("/v1/sessions/{id}"), "echo hi", "hi\n")?;
            bench.samples.add("cold", begin.elapsed());
            bench.samples.add("create", created);
            bench.samples.add("first_exec", first.elapsed());
            Ok(())
        })?;
        self.samples.add("destroy", destroyed);
        Ok(())
    }

    /// Commands in one session that lives through all of them, one way after the other: what one leaves
    /// to be done behind its answer is no time of another's.
    fn commands(&mut self, rounds: u32) -> Result<()> {
        const WAYS: [fn(&mut Bench, &str) -> Result<()>; 4] =
            [Bench::exec_and_health, Bench::stream, Bench::program, Bench::process];
        self.within(|bench, id, _created| {
            let path = format!("/v1/sessions/{id}");
            for way in WAYS {
                let before = bench.samples.clone();
                (0..WARM_UP).try_for_each(|_| way(bench, &path))?;
                bench.samples = before;
                (0..rounds).try_for_each(|_| way(bench, &path))?;
            }
            Ok(())
        })
        .map(drop)
    }

    /// Many commands in one session, and what memory that costs.
    fn flat(&mut self, execs: u32, daemon: i32) -> Result<Growth> {
        let mut growth = None;
        self.within(|bench, id, _created| {
            let path = format!("/v1/sessions/{id}");
            for _ in 0..FIRST_LOOK {
                bench.exec(&path, "true", "")?;
            }
            let mut seen = Growth::begin(execs, daemon, id)?;
            for _ in FIRST_LOOK..execs {
                bench.exec(&path, "true", "")?;
            }
            seen.end()?;
            growth = Some(seen);
            Ok(())
        })?;
        growth.ok_or_else(|| Failure::new("the session was not measured"))
    }

    fn exec_and_health(&mut self, path: &str) -> Result<()> {
        let begin = Instant::now();
        self.exec(path, "true", "")?;
        let exec = begin.elapsed();
        let begin = Instant::now();
        self.client.send("GET", "/healthz", None)?.succeeded()?;
        let health = begin.elapsed();
        self.samples.add("exec", exec);
        self.samples.add("healthz", health);
        self.samples.add("above_healthz", exec.saturating_sub(health));
        Ok(())
    }

    fn program(&mut self, path: &str) -> Result<()> {
        let begin = Instant::now();
        self.exec(path, "/bin/true", "")?;
        self.samples.add("program", begin.elapsed());
        Ok(())
    }

    fn stream(&mut self, path: &str) -> Result<()> {
        let request = json!({"cmd": "true"});
        let begin = Instant::now();
        let answer = self.client.send("POST", &format!("{path}/exec/stream"), Some(&request))?;
        let took = begin.elapsed();
        let events = String::from_utf8_lossy(&answer.succeeded()?.body).into_owned();
        if !events.contains("event: done\n") || !events.contains("\"exit_code\":0,") {
            return Err(Failure::new(format!("wrong stream of `true`: {events}")));
        }
        self.samples.add("stream", took);
        Ok(())
    }

    fn process(&mut self, path: &str) -> Result<()> {
        let request = json!({"argv": ["/bin/true"], "wait": true});
        let begin = Instant::now();
        let answer: Value =
            self.client.call("POST", &format!("{path}/processes"), Some(&request))?;
        let took = begin.elapsed();
        if answer.get("exit_code") != Some(&json!(0)) {
            return Err(Failure::new(format!("wrong answer of /bin/true: {answer}")));
        }
        self.samples.add("process", took);
        Ok(())
    }

    /// A figure counts only with the right answer.
    fn exec(&mut self, path: &str, command: &str, output: &str) -> Result<()> {
        let request = json!({"cmd": command});
        let answer: Value = self.client.call("POST", &format!("{path}/exec"), Some(&request))?;
        let right = answer.get("exit_code") == Some(&json!(0))
            && answer.get("output").and_then(Value::as_str) == Some(output);
        if right {
            Ok(())
        } else {
            Err(Failure::new(format!("wrong answer to `{command}`: {answer}")))
        }
    }
}
