//! Frames from a worker, as the engine reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sandkasten_fuzz::frames::decode::<sandkasten_protocol::work::Item>(
        data,
        sandkasten_protocol::work::WORK_BYTES_MAX,
    );
});
