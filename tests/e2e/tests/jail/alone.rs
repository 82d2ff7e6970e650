//! what loads the whole host. Nothing runs beside these.

use std::time::{Duration, Instant};

use sandkasten_e2e::{Lab, Session, host, requires, wait};
use serde_json::{Value, json};

fn session<'a>(lab: &'a Lab, limits: &Value) -> Session<'a> {
    lab.session(&json!({ "image": "base", "limits": limits }))
}

/// The time below which 99 of 100 lie.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

/// Times of `GET /healthz` for as long as `during` runs.
fn health_during(lab: &Lab, during: impl FnOnce()) -> Vec<Duration> {
    let mut times = Vec::new();
    wait::meanwhile(|| times.push(lab.client.get("/healthz").took), during);
    times
}

#[test]
fn r_01_fork_bomb_stays_inside() {
    let lab = Lab::shared();
    let session = session(&lab, &json!({ "pids": 128 }));
    let command = session.probe_command(&["bomb 10"]);
    let mut most = 0;
    let times = health_during(&lab, || {
        let mut events = session.stream(&json!({ "cmd": format!("{command} > /dev/null &") }));
        assert!(events.by_ref().any(|event| event.name == "done"), "the bomb was started");
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            most = most.max(session.stats()["pids"].as_u64().unwrap_or(u64::MAX));
            assert!(std::process::Command::new("true").status().is_ok(), "the host can fork");
        }
    });
    assert!((100..=128).contains(&most), "{most} processes of 128");
    assert!(p99(times.clone()) < Duration::from_millis(100), "healthz: {:?}", p99(times));
    let start = Instant::now();
    assert_eq!(session.delete().status(), 200);
    assert!(start.elapsed() < Duration::from_secs(2), "destroy took {:?}", start.elapsed());
}

const MIB: u64 = 1 << 20;
const LIMIT_MIB: u64 = 128;

/// Takes far more than the limit of a kind of memory. The host must not lose more than the limit,
/// and the session must say what happened, or hold.
#[track_caller]
fn stays_below_the_limit(step: &str) {
    let lab = Lab::shared();
    let session = session(&lab, &json!({ "memory_mb": LIMIT_MIB, "pids": 64 }));
    let command = session.probe_command(&[step]);
    let before = host::memory_available();
    let mut least = before;
    let request = json!({ "cmd": command, "timeout_ms": 60_000 });
    let look = || {
        least = least.min(host::memory_available());
        std::thread::yield_now();
    };
    let answer = wait::meanwhile(look, || session.try_exec(&request));
    // The host's own business goes on meanwhile.
    let fall = before.saturating_sub(least) / MIB;
    assert!(fall < LIMIT_MIB + 128, "{step}: the host lost {fall} MiB: {answer}");
    if answer.status() == 410 {
        // Memory that no process has for itself may cost the session its init; then it says so.
        assert_eq!(answer.error(410, "SESSION_CRASHED")["details"]["reason"], "oom");
        return;
    }
    let body = answer.ok(200);
    match body["exit_reason"].as_str() {
        Some("oom") => {
            assert!(body["oom_kills"].as_u64() >= Some(1), "{body}");
            assert_eq!(body["memory_limit"], LIMIT_MIB * MIB, "{body}");
            assert!(session.stats()["oom_kills"].as_u64() >= Some(1));
        }
        // Another limit stopped it: no more was to be had.
        Some("exited") => assert_ne!(body["exit_code"], 137, "{body}"),
        _ => panic!("{body}"),
    }
    session.alive();
}

mod r_02_memory_stays_below_its_limit {
    use super::stays_below_the_limit;

    macro_rules! kinds {
        ($($name:ident: $step:literal;)+) => {
            $(#[test]
            fn $name() {
                stays_below_the_limit($step);
            })+
        };
    }

    kinds! {
        anonymous: "eat anon 1024";
        tmpfs: "fill /tmp/big 1024";
        shared_memory: "fill /dev/shm/big 1024";
        page_tables: "eat pagetables 1024";
        memfd: "eat memfd 1024";
        pipes: "eat pipe 1024";
        unix_sockets: "eat unix 1024";
        tcp_sockets: "eat tcp 1024";
        udp_sockets: "eat udp 1024";
    }
}

#[test]
fn r_02_anonymous_memory_is_reported_as_oom() {
    let lab = Lab::shared();
    let session = session(&lab, &json!({ "memory_mb": LIMIT_MIB }));
    let command = session.probe_command(&["eat anon 256"]);
    let done = session.exec(&command);
    assert_eq!((done.code(), done.reason()), (137, "oom"), "{}", done.body);
    session.alive();
}

fn cpu_seconds(session: &Session<'_>) -> f64 {
    session.stats()["cpu_usage_usec"].as_f64().expect("a number") / 1e6
}

#[test]
fn r_04_cpu_stays_below_its_share() {
    requires!(cpus(2));
    let lab = Lab::shared();
    let (small, full) =
        (session(&lab, &json!({ "cpu": 0.5 })), session(&lab, &json!({ "cpu": 1.0 })));
    let burn = |session: &Session<'_>, count: u32| {
        let command = session.probe_command(&[&format!("burn 12 {count}")]);
        session.run(&format!("{command} > /dev/null &"));
    };
    burn(&small, 2);
    burn(&full, 1);
    let before = (cpu_seconds(&small), cpu_seconds(&full));
    let start = Instant::now();
    // The check says ten seconds.
    wait::prescribed(Duration::from_secs(10));
    let after = (cpu_seconds(&small), cpu_seconds(&full));
    let time = start.elapsed().as_secs_f64();
    let shares = ((after.0 - before.0) / time, (after.1 - before.1) / time);
    assert!(shares.0 <= 0.55, "used {:.2} of half a core", shares.0);
    assert!(shares.1 >= 0.8, "the neighbour got {:.2} of its core", shares.1);
}

#[test]
fn r_08_orphans_are_reaped() {
    let lab = Lab::shared();
    let session = session(&lab, &json!({ "pids": 256 }));
    let command = session.probe_command(&["zombies 10000"]);
    let pids = || session.stats()["pids"].as_u64().unwrap_or(u64::MAX);
    session.alive();
    let base = pids();
    let done = session.exec_with(&json!({ "cmd": command, "timeout_ms": 120_000 }));
    assert_eq!((done.code(), done.output()), (0, "ok\n"), "{}", done.body);
    wait::until("no zombies", Duration::from_secs(2), || {
        let all = host::processes_of(&session.id);
        all.iter().all(|&pid| !host::status(pid, "State").starts_with('Z'))
    });
    wait::until("the count is back", Duration::from_secs(2), || pids() <= base);
}
