//! Snapshots: texts under `test-data/golden` that are reviewed as code.

use std::path::Path;

/// Compares a text with the file `name` under `test-data/golden`. With `UPDATE_SNAPSHOTS=1` the file is written instead.
///
/// # Errors
/// The first line that differs, or why there is no file.
pub fn check_snapshot(name: &str, text: &str) -> Result<(), String> {
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden"));
    let path = golden.join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| !value.is_empty()) {
        let folder = path.parent().unwrap_or(golden);
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, text));
        return written.map_err(|e| format!("{name}: {e}"));
    }
    let how = "UPDATE_SNAPSHOTS=1 writes it";
    let expected = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e} ({how})"))?;
    if expected == text {
        return Ok(());
    }
    let (mut old, mut new) = (expected.lines(), text.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (old.next(), new.next()) {
            (None, None) => return Err(format!("{name}: other line ends ({how})")),
            (old, new) if old == new => {}
            (old, new) => {
                let [old, new] = [old, new].map(|line| line.unwrap_or("end of the file"));
                return Err(format!("{name}:{number} ({how})\nexpected {old}\ngot      {new}"));
            }
        }
    }
}
