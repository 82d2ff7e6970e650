//! The output of a blocking answer, each field by itself.

use sandkasten_protocol::{OutputMode, Stream};
use sandkasten_types::Base64;
use sandkasten_types::exec::{ExecOutput, Gap};

use super::cap::HeadTail;
use super::{Blocking, Cleaning};

/// Collects what a command wrote. Holds the cap of each field.
#[derive(Debug)]
pub(crate) struct Collected {
    output: Field,
    /// stdout and stderr, where they are asked for.
    apart: Option<Box<[Field; 2]>>,
    /// Where the gap begins that was told last, and how many bytes from there on are accounted for.
    gap: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Field {
    Text(Box<Blocking>),
    Bytes(HeadTail),
}

impl Collected {
    /// `cleaning`: `None` for bytes as they are; `cap` in bytes of each field.
    pub(crate) fn new(mode: OutputMode, cleaning: Option<Cleaning>, cap: u64) -> Self {
        let field = || match cleaning {
            Some(cleaning) => Field::Text(Box::new(Blocking::new(cleaning, cap))),
            None => Field::Bytes(HeadTail::new(usize::try_from(cap).unwrap_or(usize::MAX))),
        };
        let apart = (mode == OutputMode::Split).then(|| Box::new([field(), field()]));
        Self { output: field(), apart, gap: None }
    }

    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        if let Some((_, known)) = &mut self.gap {
            *known += data.len() as u64;
        }
        self.output.push(data);
        if let Some(apart) = &mut self.apart {
            let [stdout, stderr] = &mut **apart;
            if stream == Stream::Stderr { stderr.push(data) } else { stdout.push(data) }
        }
    }

    /// Bytes are missing, of whichever stream. Of a command that still writes the gap grows, and is told
    /// whole each time: only what is new of it counts.
    pub(crate) fn gap(&mut self, gap: &Gap) {
        let known =
            self.gap.filter(|(from, _)| *from == gap.from_seq).map_or(0, |(_, known)| known);
        self.gap = Some((gap.from_seq, gap.bytes.max(known)));
        let bytes = gap.bytes.saturating_sub(known);
        self.output.gap(bytes);
        for field in self.apart.iter_mut().flat_map(|apart| apart.iter_mut()) {
            field.gap(bytes);
        }
    }

    /// The fields, and whether something was left out of any of them.
    pub(crate) fn finish(self) -> (ExecOutput, bool) {
        let mut truncated = false;
        let mut output = ExecOutput::default();
        let mut put = |field: Field, text: &mut Option<String>, bytes: &mut Option<Base64>| {
            let is_cut = match field {
                Field::Text(field) => {
                    let (whole, is_cut) = field.finish();
                    *text = Some(whole);
                    is_cut
                }
                Field::Bytes(field) => {
                    let (whole, is_cut) = field.into_bytes();
                    *bytes = Some(Base64(whole));
                    is_cut
                }
            };
            truncated |= is_cut;
        };
        put(self.output, &mut output.output, &mut output.output_base64);
        if let Some(apart) = self.apart {
            let [stdout, stderr] = *apart;
            put(stdout, &mut output.stdout, &mut output.stdout_base64);
            put(stderr, &mut output.stderr, &mut output.stderr_base64);
        }
        (output, truncated)
    }
}

impl Field {
    fn push(&mut self, data: &[u8]) {
        match self {
            Self::Text(field) => field.push(data),
            Self::Bytes(field) => field.push(data),
        }
    }

    fn gap(&mut self, bytes: u64) {
        match self {
            Self::Text(field) => field.gap(bytes),
            Self::Bytes(field) => field.gap(bytes),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn streams_are_apart_and_together() {
        let mut all = Collected::new(OutputMode::Split, Some(Cleaning::Full), 100);
        all.push(Stream::Stdout, b"out\r\n");
        all.push(Stream::Stderr, b"\x1b[1merr\n");
        all.push(Stream::Stdout, b"more\n");
        let (output, truncated) = all.finish();
        assert_eq!(output.output.as_deref(), Some("out\nerr\nmore\n"));
        assert_eq!(output.stdout.as_deref(), Some("out\nmore\n"));
        assert_eq!(output.stderr.as_deref(), Some("err\n"));
        assert!(!truncated && output.output_base64.is_none());
    }

    #[test]
    fn bytes_are_exact_and_capped() {
        let all_bytes: Vec<u8> = (0..=255).collect();
        let mut all = Collected::new(OutputMode::Merged, None, 1000);
        all.push(Stream::Output, &all_bytes);
        let (output, truncated) = all.finish();
        assert_eq!((output.output_base64.unwrap().0, truncated), (all_bytes.clone(), false));
        let mut all = Collected::new(OutputMode::Merged, None, 100);
        all.push(Stream::Output, &all_bytes);
        let (output, truncated) = all.finish();
        let bytes = output.output_base64.unwrap().0;
        assert!(truncated && bytes.len() <= 100);
        assert!(bytes.starts_with(&[0, 1, 2]) && bytes.ends_with(&[254, 255]));
    }

    #[test]
    fn a_gap_is_said_where_it_is() {
        for cleaning in [Some(Cleaning::Full), None] {
            let mut all = Collected::new(OutputMode::Merged, cleaning, 1000);
            all.push(Stream::Output, b"one\r");
            all.gap(&gap(2, 3, 50));
            all.push(Stream::Output, b"two\n");
            let (output, truncated) = all.finish();
            let bytes = match output.output {
                Some(text) => text.into_bytes(),
                None => output.output_base64.unwrap().0,
            };
            let want = "one\r\n[… 50 bytes left out …]\ntwo\n";
            assert_eq!((String::from_utf8(bytes).unwrap().as_str(), truncated), (want, true));
        }
    }

    fn gap(from_seq: u64, to_seq: u64, bytes: u64) -> Gap {
        Gap { bytes, from_seq, to_seq, seq: to_seq }
    }

    #[test]
    fn a_gap_that_grows_is_counted_once() {
        let mut all = Collected::new(OutputMode::Merged, None, 1000);
        all.push(Stream::Output, b"begin\n");
        all.gap(&gap(2, 5, 40));
        all.push(Stream::Output, b"six\n");
        // What was read of it before is not missing.
        all.gap(&gap(2, 9, 60));
        all.gap(&gap(2, 9, 60));
        all.push(Stream::Output, b"end\n");
        let bytes = all.finish().0.output_base64.unwrap().0;
        let text = String::from_utf8(bytes).unwrap();
        // There is one marker: what stands before the last gap is left out with it.
        assert_eq!(text, "begin\n[… 60 bytes left out …]\nend\n");
    }
}
