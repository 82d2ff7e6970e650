//! Every fixed limit, in one table. What an operator can change is configuration, not here.

pub const KIB: usize = 1024;
pub const MIB: usize = 1024 * KIB;

/// Length of `cmd` in decoded bytes.
pub const CMD_BYTES_MAX: usize = MIB;
/// Length of a path in bytes (`PATH_MAX` of Linux without its NUL).
pub const PATH_BYTES_MAX: usize = 4096;
/// Length of one name in a path (`NAME_MAX` of Linux).
pub const NAME_BYTES_MAX: usize = 255;
/// What a request may ask for with `max_output_bytes`.
pub const OUTPUT_BYTES_MAX: u64 = 64 * MIB as u64;
/// What a request may ask for with `max_bytes` on `fs/read`.
pub const READ_BYTES_MAX: u64 = 64 * MIB as u64;
/// JSON bodies with a large text in them: of `fs/write`, and of execs and processes with `stdin`.
pub const BODY_BYTES_MAX_CONTENT: usize = 96 * MIB;
/// JSON bodies of exec without `stdin`: 1 MiB of text may be escaped sixfold.
pub const BODY_BYTES_MAX_EXEC: usize = 8 * MIB;
/// JSON bodies of processes without `stdin`: 2 MiB of argv and env may be escaped sixfold.
pub const BODY_BYTES_MAX_PROCESS: usize = 16 * MIB;
/// JSON bodies elsewhere.
pub const BODY_BYTES_MAX: usize = 2 * MIB;
/// How much of a body over its limit is read and dropped so that the client sees the answer.
pub const BODY_BYTES_DRAINED: u64 = 96 * MIB as u64;
/// Bodies and answers in memory over all requests.
pub const BODIES_IN_MEMORY_MAX: usize = 256 * MIB;
/// Nesting of a JSON body.
pub const JSON_DEPTH_MAX: usize = 64;
/// Names in all objects of a JSON body: they are held to find the ones given twice.
pub const JSON_NAMES_MAX: usize = 20_000;
/// Items in all arrays of a JSON body: more arguments than any program can be given.
pub const JSON_ITEMS_MAX: usize = 262_144;
/// Request line and headers of one request.
pub const HEAD_BYTES_MAX: usize = 64 * KIB;
/// Open connections; beyond them a client is told 503.
pub const CONNECTIONS_MAX: usize = 4096;
/// Connections over [`CONNECTIONS_MAX`] that are held until their client has seen the refusal; the rest
/// is closed right after it.
pub const CONNECTIONS_REFUSED_MAX: usize = 256;
/// Seconds that a request's head may take from its first byte.
pub const HEAD_SECONDS: u64 = 10;
/// Seconds that a body may be silent.
pub const BODY_SILENCE_SECONDS: u64 = 30;
/// Seconds after which a body must have come at [`BODY_BYTES_PER_SECOND_MIN`] on average.
pub const BODY_GRACE_SECONDS: u64 = 60;
pub const BODY_BYTES_PER_SECOND_MIN: u64 = 64 * KIB as u64;
/// Seconds that an idle connection is kept, a new one too; httpx and proxies reuse one for up to 60.
pub const IDLE_SECONDS: u64 = 90;
/// Seconds that a client may take no byte of an answer while some wait to be sent.
pub const WRITE_STALL_SECONDS: u64 = 300;
/// Seconds that an answer waits for its share of [`BODIES_IN_MEMORY_MAX`].
pub const ANSWER_WAIT_SECONDS: u64 = 5;
/// Milliseconds that running requests get when the daemon stops.
pub const DRAIN_MS: u64 = 1000;
/// Milliseconds that the engine's tasks get after that: what then still runs is left to the next start.
pub const STOP_MS: u64 = 400;
/// Milliseconds that its database and cgroups get after that. All of these, and the last answers, are less
/// than the 2 seconds that a stop may take.
pub const CLOSE_MS: u64 = 250;
/// Milliseconds in which answers that the stop itself brought about leave.
pub const LAST_ANSWERS_MS: u64 = 200;
/// Files in one upload.
pub const UPLOAD_FILES_MAX: usize = 100;
/// Parts in one upload, files and others.
pub const UPLOAD_PARTS_MAX: usize = 1000;
/// Bytes of one upload that are not file content: boundaries, headers, other parts.
pub const UPLOAD_OVERHEAD_BYTES_MAX: u64 = MIB as u64;
/// Seconds that a session may be asked to live after its last use.
pub const TTL_SECONDS_MAX: u64 = 86_400;
/// Milliseconds an exec has when its request names none.
pub const EXEC_TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// The highest number of an event: the largest whole number that every reader of JSON holds exactly.
pub const EVENT_NUMBER_MAX: u64 = (1 << 53) - 1;
/// Bytes of one SSE event: the TypeScript client forgets an event's name between reads.
pub const SSE_EVENT_BYTES_MAX: usize = 8 * KIB;
/// Seconds of silence after which an event stream gets a comment line.
pub const SSE_HEARTBEAT_SECONDS: u64 = 10;
/// Bytes of one message of a WebSocket.
pub const WEBSOCKET_MESSAGE_BYTES_MAX: usize = MIB;
/// Seconds between two pings of a WebSocket.
pub const WEBSOCKET_PING_SECONDS: u64 = 20;
/// Seconds without a word of a WebSocket's client, pongs included, after which it is gone.
pub const WEBSOCKET_SILENCE_SECONDS: u64 = 120;
/// Bytes of output that a client gets first that attaches late: a screenful.
pub const ATTACH_RECENT_BYTES: usize = 64 * KIB;
/// Bytes of stdin from a WebSocket that may wait for its process; beyond them no more is read.
pub const ATTACH_STDIN_BYTES: usize = 256 * KIB;
/// Entries, and bytes of each name and value, of `env` and `labels` of a session.
pub const MAP_ENTRIES_MAX: usize = 256;
pub const ENV_BYTES_MAX: usize = 512 * KIB;
pub const LABEL_BYTES_MAX: usize = 256;
/// Length of a session's name.
pub const SESSION_NAME_BYTES_MAX: usize = 128;
/// Hours that an ended session can still be looked up.
pub const TOMBSTONE_HOURS: u64 = 24;
/// The longest argument or `NAME=value` that execve(2) takes: MAX_ARG_STRLEN, without its NUL.
pub const ENV_STRING_BYTES_MAX: usize = 128 * KIB - 1;
/// Bytes of a process's arguments and environment together, with their NULs.
pub const PROCESS_ARGS_BYTES_MAX: usize = 2 * MIB;
/// Bytes of each stream of a process that is waited for.
pub const WAIT_BYTES_MAX: u64 = 64 * MIB as u64;
/// Host uids (and gids) of one session: its ids 0 to 65535.
pub const UID_RANGE: u32 = 65_536;
/// The first host uid that a session may have.
pub const UID_BASE: u32 = 100_000 + 65_536 * 4;
/// Bytes of an image's archive, uncompressed, and of any file in it.
pub const IMAGE_BYTES_MAX: u64 = 16 << 30;
/// Entries of an image's archive.
pub const IMAGE_ENTRIES_MAX: usize = 1_000_000;
/// Directories above an entry of an image.
pub const IMAGE_DEPTH_MAX: usize = 256;
/// Bytes of an image's passwd, group and shadow.
pub const IMAGE_ACCOUNTS_BYTES_MAX: usize = MIB;
/// Bytes of stdin that were given to one session's commands and processes and that nobody has read.
pub const STDIN_BYTES_MAX: u64 = 256 * MIB as u64;
/// MiB that a session or workspace may be limited to on disk: below the least, its file system has no
/// room of its own; the most is what an ext4 of 4 KiB blocks can grow to with ease.
pub const DISK_MB_MIN: u64 = 16;
pub const DISK_MB_MAX: u64 = 16 << 20;
/// The least that a session may be limited to: cores, MiB of memory, processes and threads. init, a
/// shell and a command need some.
pub const CPU_MIN: f64 = 0.01;
pub const MEMORY_MB_MIN: u64 = 16;
pub const PIDS_MIN: u64 = 8;
/// Replacements in one edit of a file.
pub const EDITS_MAX: usize = 1000;
/// Entries of one listing, and bytes of their names and targets.
pub const LIST_ENTRIES_MAX: usize = 100_000;
pub const LIST_BYTES_MAX: usize = 4 * MIB;

/// Paths that a glob finds, and lines that a search does: where nothing is said, and at most.
pub const GLOB_LIMIT: u64 = 1000;
pub const GLOB_LIMIT_MAX: u64 = 100_000;
pub const GREP_LIMIT: u64 = 100;
pub const GREP_LIMIT_MAX: u64 = 10_000;
/// Lines before and after each line that is found.
pub const GREP_CONTEXT_MAX: u64 = 100;
/// Levels of directories in one listing.
pub const LIST_DEPTH_MAX: u32 = 64;
