//! Any bytes as an audio file of any container.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_audio(&[], data));
