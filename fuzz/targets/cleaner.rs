//! What a command wrote, on its way to a client.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sandkasten_fuzz::cleaner::clean(data);
});
