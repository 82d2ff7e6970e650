//! When a process was started: with its pid it tells the process from later ones of that pid.

use std::io;

/// Field 22 of `/proc/PID/stat`, in clock ticks after boot (proc(5)). `None` where the text has none.
///
/// # Errors
/// There is no such process.
pub fn start_time(pid: u32) -> io::Result<Option<u64>> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map(|stat| parse(&stat))
}

/// The second field, the name, is in parentheses and may hold any byte: what counts is after the last one.
fn parse(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_is_found_after_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2";
        assert_eq!(parse(stat), Some(12345));
        assert_eq!(parse("7 (a"), None);
    }
}
