//! Writes the seeds of the corpora: `cargo run --bin seeds` in this folder. The corpora
//! themselves are not committed.
#![forbid(unsafe_code)]

#[path = "../../../crates/formats/tests/support/sample_files.rs"]
mod sample_files;

#[path = "../llm_seeds.rs"]
mod llm_seeds;

use std::fs;
use std::path::Path;

/// Targets whose first bytes are put in front of the input.
const MAGIC_IN_FRONT: [&str; 2] = ["whisper_bin", "gguf"];

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (n, (target, bytes)) in sample_files::all().into_iter().enumerate() {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        let skip = if MAGIC_IN_FRONT.contains(&target) { 4 } else { 0 };
        fs::write(folder.join(format!("seed{n}")), &bytes[skip..])?;
    }
    llm_seeds::write(&corpus)?;
    audio_seeds(&corpus)
}

/// The starts of the test clips, which hold their headers and some packets.
fn audio_seeds(corpus: &Path) -> std::io::Result<()> {
    const SEED_BYTES: usize = 8192;
    const WAV_HEAD_BYTES: usize = 12;
    let clips = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test-data/audio/formats");
    for clip in fs::read_dir(clips)? {
        let clip = clip?.path();
        let bytes = fs::read(&clip)?;
        let start = &bytes[..bytes.len().min(SEED_BYTES)];
        let (target, seed) = if start.starts_with(b"RIFF") {
            ("wav", &start[WAV_HEAD_BYTES..])
        } else {
            ("audio", start)
        };
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(clip.file_name().unwrap_or_default()), seed)?;
    }
    Ok(())
}
