//! The state of a shell, on its way to the next one.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sandkasten_fuzz::dump::load(data);
});
