//! Durations and sizes as people write them, each with one parser.

use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A duration: `500ms`, `30s`, `1m`, `2h`, `1d`, `1h30m`; a bare number is seconds.
///
/// # Errors
/// Says what may be written.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write 500ms, 30s, 5m, 2h or 1h30m");
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let mut total_ms: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let one_ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => 24 * 60 * 60 * 1000,
            _ => return Err(wrong()),
        };
        let part: Option<u64> = number.parse().ok().and_then(|n: u64| n.checked_mul(one_ms));
        let sum = part.and_then(|part| total_ms.checked_add(part));
        total_ms = sum.ok_or_else(wrong)?;
        rest = behind;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_millis(total_ms)) }
}

/// A size in whole MiB: `512m`, `1g`, `1.5GiB`. A unit is 1024 of the one below.
///
/// # Errors
/// Says what may be written. A bare number is refused: docker takes it for bytes, the API for MiB.
pub(crate) fn mebibytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size in whole MiB; write 512m or 1.5g");
    let letters = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(letters);
    let unit = unit.to_ascii_lowercase();
    let one = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit) {
        "k" => 1u64 << 10,
        "m" => MIB,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 6 {
        return Err(wrong());
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_too_long| wrong())?;
    let bytes = digits.checked_mul(u128::from(one)).ok_or_else(wrong)? / scale;
    let mebibytes = u64::try_from(bytes / u128::from(MIB)).map_err(|_too_large| wrong())?;
    let is_whole = bytes.is_multiple_of(u128::from(MIB)) && mebibytes > 0;
    if is_whole { Ok(mebibytes) } else { Err(wrong()) }
}

/// How long something is, in the largest unit that says enough: `45s`, `12m`, `5h`, `3d`.
pub(crate) fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn durations_have_units() {
        let ms = |text| duration(text).map(|duration| duration.as_millis());
        assert_eq!(ms("30"), Ok(30_000));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("1m"), Ok(60_000));
        assert_eq!(ms("1h30m"), Ok(5_400_000));
        assert_eq!(ms("1d"), Ok(86_400_000));
        for wrong in ["", "s", "m5", "5 m", "-1", "1.5s", "5y", "5ms3", "99999999999999999999d"] {
            assert!(ms(wrong).unwrap_err().contains("write 500ms"), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_whole_mebibytes() {
        assert_eq!(mebibytes("512m"), Ok(512));
        assert_eq!(mebibytes("1G"), Ok(1024));
        assert_eq!(mebibytes("1.5GiB"), Ok(1536));
        assert_eq!(mebibytes("2048kb"), Ok(2));
        for wrong in ["", "512", "m", "0m", "1k", "1.5m", "-1m", "1x", "1 g", "9999999999999999t"] {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ages_are_short() {
        let of = |seconds| rough(Duration::from_secs(seconds));
        assert_eq!(of(119), "119s");
        assert_eq!(of(720), "12m");
        assert_eq!(of(7200), "2h");
        assert_eq!(of(200_000), "2d");
    }
}
