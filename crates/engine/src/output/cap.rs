//! Keeps the first and the last half of a text of any length.

use std::collections::VecDeque;

/// The head and the tail of a text. Holds `cap` bytes at most.
#[derive(Debug)]
pub(super) struct HeadTail {
    cap: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Bytes of the whole text.
    total: usize,
    /// Something is missing behind the head: it grows no more.
    has_gap: bool,
}

impl HeadTail {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap, head: Vec::new(), tail: VecDeque::new(), total: 0, has_gap: false }
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        self.total += text.len();
        let room = if self.has_gap { 0 } else { self.head_max() - self.head.len() };
        let (head, rest) = text.split_at(room.min(text.len()));
        self.head.extend_from_slice(head);
        self.push_tail(rest);
    }

    /// Appends what `line` holds and empties it. As if the whole text of `line` had been pushed:
    /// its head fills the head here, its tail is all that can be seen of the tail here.
    pub(super) fn take(&mut self, line: &mut Self) {
        let left_out = line.total - line.head.len() - line.tail.len();
        self.push(&line.head);
        let (front, back) = line.tail.as_slices();
        if left_out == 0 {
            self.push(front);
            self.push(back);
        } else {
            self.total += left_out + line.tail.len();
            self.push_tail(front);
            self.push_tail(back);
        }
        line.clear();
    }

    /// So many bytes are missing here: the head ends, the tail begins anew.
    pub(super) fn gap(&mut self, bytes: u64) {
        let is_whole = self.total == self.head.len() + self.tail.len();
        if is_whole && !self.has_gap {
            self.head.extend(&self.tail);
        }
        self.tail.clear();
        self.has_gap = true;
        self.total = self.total.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    pub(super) fn clear(&mut self) {
        self.head.clear();
        self.tail.clear();
        self.total = 0;
    }

    /// The text, and whether something of it was left out. Where it was, a line in its place says
    /// how much; that line counts towards the cap.
    pub(super) fn into_text(self) -> (String, bool) {
        let (bytes, is_cut) = self.joined(floor, ceil);
        (into_string(bytes), is_cut)
    }

    /// The same for bytes that need not be text.
    pub(super) fn into_bytes(self) -> (Vec<u8>, bool) {
        self.joined(|bytes, at| at.min(bytes.len()), |bytes, at| at.min(bytes.len()))
    }

    /// `floor` and `ceil` say where near a place the head may end and the tail begin.
    fn joined(
        mut self,
        floor: impl Fn(&[u8], usize) -> usize,
        ceil: impl Fn(&[u8], usize) -> usize,
    ) -> (Vec<u8>, bool) {
        if self.total <= self.cap && !self.has_gap {
            self.head.extend(self.tail);
            return (self.head, false);
        }
        let tail = self.tail.make_contiguous();
        // The marker's length depends on the number in it, which depends on the marker's length. The
        // number has at most as many digits as the total, so that room always suffices.
        let marker_max = marker(&self.head, self.total).len() + 1;
        let Some(room) = self.cap.checked_sub(marker_max) else {
            let end = floor(&self.head, self.cap);
            self.head.truncate(end);
            return (self.head, true);
        };
        // Behind a gap either half may be shorter than its share.
        let head_max = (room / 2).max(room.saturating_sub(tail.len()));
        let head_end = floor(&self.head, if self.has_gap { head_max } else { room / 2 });
        let tail_start = ceil(tail, tail.len().saturating_sub(room - head_end.max(room / 2)));
        self.head.truncate(head_end);
        let tail = tail.get(tail_start..).unwrap_or_default();
        let line = marker(&self.head, self.total - self.head.len() - tail.len());
        self.head.extend_from_slice(line.as_bytes());
        self.head.extend_from_slice(tail);
        (self.head, true)
    }

    fn head_max(&self) -> usize {
        self.cap / 2
    }

    fn push_tail(&mut self, text: &[u8]) {
        let max = self.cap - self.head_max();
        let text = text.get(text.len().saturating_sub(max)..).unwrap_or_default();
        let over = (self.tail.len() + text.len()).saturating_sub(max);
        self.tail.drain(..over);
        self.tail.extend(text);
    }
}

/// The line that stands for what is left out; begins a line of its own.
fn marker(head: &[u8], left_out: usize) -> String {
    let newline = if head.is_empty() || head.ends_with(b"\n") { "" } else { "\n" };
    format!("{newline}[… {left_out} bytes left out …]\n")
}

fn into_string(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        // Cuts are made between characters only; a fault there must cost a character, not a panic.
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// The last place at or before `at` where no character is cut. `bytes` begin where a character does,
/// and may themselves end in the middle of one.
fn floor(bytes: &[u8], at: usize) -> usize {
    let before = bytes.get(..at).unwrap_or(bytes);
    match std::str::from_utf8(before) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    }
}

/// The first place at or behind `at` where a character begins or the text ends.
fn ceil(bytes: &[u8], at: usize) -> usize {
    (at..bytes.len()).find(|&i| is_boundary(bytes, i)).unwrap_or(bytes.len())
}

fn is_boundary(bytes: &[u8], at: usize) -> bool {
    // Continuation bytes are 0x80 to 0xBF.
    bytes.get(at).is_none_or(|byte| byte & 0xC0 != 0x80)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn capped(cap: usize, pieces: &[String]) -> (String, bool) {
        let mut kept = HeadTail::new(cap);
        for piece in pieces {
            kept.push(piece.as_bytes());
        }
        kept.into_text()
    }

    #[test]
    fn the_marker_is_a_line_and_counts_itself_out() {
        let whole = "0123456789".repeat(10);
        let (text, truncated) = capped(60, std::slice::from_ref(&whole));
        assert!(truncated);
        assert_eq!(text, "01234567890123\n[… 71 bytes left out …]\n567890123456789");
        assert!(text.len() <= 60);
    }

    #[test]
    fn a_text_of_just_the_cap_is_whole() {
        assert_eq!(capped(10, &["0123456789".into()]), ("0123456789".into(), false));
        assert!(capped(10, &["0123456789x".into()]).1);
    }

    #[test]
    fn a_cap_below_a_character_gives_nothing() {
        assert_eq!(capped(2, &["→".into()]), (String::new(), true));
        assert_eq!(capped(2, &["é😀".into()]), (String::new(), true));
        assert_eq!(capped(1, &["a😀".into()]).0.len(), 0);
    }

    proptest! {
        #[test]
        fn the_cap_holds_and_the_number_is_true(pieces in prop::collection::vec("[aé→😀\n]{0,30}", 0..12), cap in 1usize..300) {
            let whole = pieces.concat();
            let (text, truncated) = capped(cap, &pieces);
            prop_assert!(text.len() <= cap);
            prop_assert_eq!(truncated, whole.len() > cap);
            if !truncated {
                prop_assert_eq!(text, whole);
            } else if let Some((head, rest)) = text.split_once("[… ") {
                let (number, tail) = rest.split_once(" bytes left out …]\n").unwrap();
                let left_out: usize = number.parse().unwrap();
                let head = if whole.starts_with(head) { head } else { head.strip_suffix('\n').unwrap() };
                prop_assert!(whole.starts_with(head) && whole.ends_with(tail));
                // A newline before the marker is the text's own or the marker's; both add up.
                let own = whole.len() - left_out - tail.len();
                prop_assert!(own == head.len() || own + 1 == head.len());
            }
        }

        #[test]
        fn taking_lines_is_pushing_their_text(lines in prop::collection::vec("[ab]{0,60}\n", 0..10), cap in 1usize..100) {
            let (mut by_line, mut line) = (HeadTail::new(cap), HeadTail::new(cap));
            for text in &lines {
                line.push(text.as_bytes());
                by_line.take(&mut line);
            }
            prop_assert_eq!(by_line.into_text(), capped(cap, &lines));
        }
    }
}
