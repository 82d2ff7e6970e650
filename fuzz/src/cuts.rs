//! Where an input is cut into pieces.

/// Bytes of an input that say where its rest is cut.
const CUTS: usize = 4;

/// Takes the places of the cuts from the front of an input; the pieces and the whole.
#[must_use]
pub fn pieces(input: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let (head, whole) = input.split_at(input.len().min(2 * CUTS));
    let mut cuts: Vec<usize> = head
        .chunks(2)
        .map(|two| two.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
        .map(|cut| cut % (whole.len() + 1))
        .collect();
    cuts.extend([0, whole.len()]);
    cuts.sort_unstable();
    (cuts.windows(2).map(|edges| &whole[edges[0]..edges[1]]).collect(), whole)
}
