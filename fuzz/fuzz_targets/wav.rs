//! Any bytes as the chunks of a WAV file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_audio(b"RIFF\xff\xff\xff\x7fWAVE", data));
