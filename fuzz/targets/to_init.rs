//! Frames from the engine, as init reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sandkasten_fuzz::frames::decode::<sandkasten_protocol::ToInit>(
        data,
        sandkasten_protocol::TO_INIT_BYTES_MAX,
    );
});
