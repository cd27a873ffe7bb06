//! The log file opened again, after a program that rotates logs has moved it.

use std::sync::PoisonError;

use super::{Appended, FILE};

/// Opens the log file again; without one there is nothing to do.
pub(crate) fn reopen() -> anyhow::Result<()> {
    if let Some(log) = FILE.get() {
        let file = Appended::open(&log.path)?;
        *log.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }
    Ok(())
}
