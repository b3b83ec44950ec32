#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| drumlin_fuzz_targets::manifests(data));
