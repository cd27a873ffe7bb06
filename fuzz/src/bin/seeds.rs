//! Writes the seeds of the corpora: `cargo run --bin seeds` in this folder. The corpora
//! themselves are not committed.
#![forbid(unsafe_code)]

#[path = "../../../crates/formats/tests/support/sample_files.rs"]
mod sample_files;

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
    Ok(())
}
