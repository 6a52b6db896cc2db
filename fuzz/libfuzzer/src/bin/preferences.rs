#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cipherhop_fuzz::fuzz("preferences", bytes));
