//! Frames from init, as the engine reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sandkasten_fuzz::frames::decode::<sandkasten_protocol::FromInit>(
        data,
        sandkasten_protocol::FROM_INIT_BYTES_MAX,
    );
});
