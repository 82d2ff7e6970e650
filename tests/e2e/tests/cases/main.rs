//! Cases from the field: each is a test named after it, in the image `python` (bash) and, where it is
//! not about bash or python, in one of busybox alone; some in dash and in the bash of Debian 12 too.
//!
//! A case is a function of the place that it runs in; `in_images!` makes a test of it for each image.
//! Cases that wait for most of their time stand in modules `waits`, those that look at the whole
//! daemon in `alone`, those of minutes in `minutes`: the runner knows these names.

mod env;
mod images;
mod shell;
mod shell_more;
mod streams;
mod streams_more;
mod text;
mod timeouts;
mod timeouts_more;

use std::time::Duration;

use sandkasten_e2e::session::Done;
use sandkasten_e2e::sse::Played;
use sandkasten_e2e::{Lab, Session};
use serde_json::{Value, json};

/// "At once".
const AT_ONCE: Duration = Duration::from_secs(2);
/// The largest limit of output.
const MANY_BYTES: u64 = 64 * 1024 * 1024;

/// Where a case runs.
struct Place {
    lab: Lab,
    image: &'static str,
}

impl Place {
    fn session(&self) -> Session<'_> {
        self.lab.session(&json!({ "image": self.image }))
    }

    fn is_bash(&self) -> bool {
        ["python", "bookworm"].contains(&self.image)
    }
}

fn run(image: &'static str, case: fn(&Place)) {
    case(&Place { lab: Lab::shared(), image });
}

/// Tests of cases, in a module for each image.
macro_rules! in_images {
    ($($image:ident: $($case:ident),+ $(,)?;)+) => {
        $(mod $image {
            $(#[test]
            fn $case() {
                crate::run(stringify!($image), super::$case);
            })+
        })+
    };
}

use in_images;

/// What cases ask of a session.
trait Asks {
    /// The command is answered at once with this exit code and exactly this output.
    fn gives(&self, cmd: &str, code: i64, output: &str) -> Done;

    /// The same, blocking and then streamed. Streams keep what a carriage return takes away, so the
    /// output has none.
    fn gives_both(&self, cmd: &str, code: i64, output: &str);

    /// A stream that ends with `done` and this exit code.
    fn plays(&self, request: &Value, code: i64) -> Played;

    /// The command is answered at once with 0.
    fn does(&self, cmd: &str);

    /// The command is ended by a timeout of a second.
    fn times_out(&self, cmd: &str) -> Done;

    /// Before what the state has to outlive.
    fn keep(&self);

    /// After it.
    fn kept(&self);
}

impl Asks for Session<'_> {
    #[track_caller]
    fn gives(&self, cmd: &str, code: i64, output: &str) -> Done {
        let done = self.exec(cmd);
        assert_eq!((done.code(), done.output()), (code, output), "{cmd}: {}", done.body);
        assert!(done.took < AT_ONCE, "{cmd}: took {:?}", done.took);
        done
    }

    #[track_caller]
    fn gives_both(&self, cmd: &str, code: i64, output: &str) {
        self.gives(cmd, code, output);
        let played = self.plays(&json!({ "cmd": cmd }), code);
        assert_eq!(played.text(), output, "{cmd}: streamed");
        assert!(played.end().at < AT_ONCE, "{cmd}: the stream took {:?}", played.end().at);
    }

    #[track_caller]
    fn plays(&self, request: &Value, code: i64) -> Played {
        let played = self.stream(request).finish();
        assert_eq!(played.done()["exit_code"], code, "{}: {:?}", request["cmd"], played.end());
        played
    }

    #[track_caller]
    fn does(&self, cmd: &str) {
        self.gives(cmd, 0, "");
    }

    #[track_caller]
    fn times_out(&self, cmd: &str) -> Done {
        let done = self.exec_with(&json!({ "cmd": cmd, "timeout_ms": 1000 }));
        let ended = (done.code(), &done.body["timed_out"], done.reason());
        assert_eq!(ended, (124, &json!(true), "timeout"), "{cmd}: {}", done.body);
        // The time itself, and 500 ms for all processes to go.
        let took = done.body["duration_ms"].as_u64().unwrap_or_default();
        assert!((1000..1500).contains(&took), "{cmd}: {took} ms");
        done
    }

    #[track_caller]
    fn keep(&self) {
        self.does("mkdir -p /workspace/k; cd /workspace/k; export K=1");
    }

    #[track_caller]
    fn kept(&self) {
        self.gives("pwd; echo $K", 0, "/workspace/k\n1\n");
    }
}

/// A command of more than 16 KiB.
fn long_command(end: &str) -> String {
    format!("# {}\n{end}", "p".repeat(17_000))
}
