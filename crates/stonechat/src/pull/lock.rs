//! Lock of a repository's downloads, between threads and processes.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::Error;
use crate::models::io as io_error;

/// A locked file in the folder of downloads. Dropping it removes the file, and the folder if it is empty then.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits for the lock `name` in `folder`.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created.
    pub(super) fn take(folder: &Path, name: &str) -> Result<Self, Error> {
        let path = folder.join(format!("{name}.lock"));
        loop {
            match fs::create_dir_all(folder) {
                Ok(()) => {}
                // Another process removed the folder while it was found to exist.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_other(folder) => {
                    continue;
                }
                Err(error) => return Err(io_error("create", folder)(error)),
            }
            let mut options = File::options();
            let file = match options.create(true).append(true).open(&path) {
                Ok(file) => file,
                // Another process has just removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("write", &path)(error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    tracing::info!("waiting for another download of {name}");
                    file.lock().map_err(io_error("lock", &path))?;
                }
                // A file system without locks.
                Err(TryLockError::Error(error)) => tracing::debug!("{}: {error}", path.display()),
            }
            // The holder before marked the file that it removed; a new one may have its name.
            if file.metadata().map_err(io_error("read", &path))?.len() == 0 {
                return Ok(Self { file, path });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Processes that wait for the lock see the mark once they hold it. A file that cannot be removed stays a lock.
        if fs::remove_file(&self.path).is_ok() {
            let _ = self.file.write_all(b"removed");
        }
        if let Some(folder) = self.path.parent() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Whether something that is no folder has the name of the folder.
fn is_other(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|metadata| !metadata.is_dir())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::{fs, thread};

    use super::Lock;

    #[test]
    fn one_at_a_time_has_the_lock() {
        let folder = std::env::temp_dir().join(format!("stonechat-lock-{}", std::process::id()));
        let (holders, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = Lock::take(&folder, "u--r").unwrap();
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        total.fetch_add(1, Ordering::SeqCst);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 200);
        let first = Lock::take(&folder, "u--r").unwrap();
        // Another repository does not wait.
        drop(Lock::take(&folder, "u--s").unwrap());
        drop(first);
        assert!(!folder.exists());
        assert!(fs::metadata(&folder).is_err());
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("file");
        fs::write(&folder, "").unwrap();
        let error = Lock::take(&folder, "u--r").unwrap_err();
        assert!(error.to_string().contains("cannot create"), "{error}");
    }
}
