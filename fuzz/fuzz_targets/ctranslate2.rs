//! Any bytes as CTranslate2's `model.bin`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_model(&[], data));
