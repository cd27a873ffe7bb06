//! KV pages in a file: a store that outlives the server.
//!
//! A thread of its own writes, so that no step waits for the disk; what does not fit its queue is not stored. Pages are read
//! where they are needed. The oldest pages are removed once the file holds more than its limit. A crash loses the pages of
//! the last seconds. After a failed write, such as on a full disk, the file is neither written nor read any more.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
};
use stonechat::llm::{PageName, PageStore};

/// Bytes of pages by name.
const PAGES: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("pages");
/// Names with the bytes of their pages, by time of their last use.
const BY_USE: TableDefinition<'_, u64, (&[u8; 32], u64)> = TableDefinition::new("by use");
/// Time of the last use by name.
const USES: TableDefinition<'_, &[u8; 32], u64> = TableDefinition::new("uses");

/// Bytes of the file kept in memory: enough to find pages. A page is read once, and memory that was used before needs no
/// page faults.
const CACHE_BYTES: usize = 4 << 20;
/// Pages that wait to be written: a few prompts.
const QUEUE_LEN: usize = 256;
/// Time after which written pages are made to outlive a crash: a sync of the disk for each batch would slow its other users.
const SYNC_INTERVAL: Duration = Duration::from_secs(2);

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `{}` for KV pages: {reason}", path.display())]
pub struct PageFileError {
    path: PathBuf,
    reason: String,
}

/// Message to the writing thread.
#[derive(Debug, PartialEq)]
enum Write {
    Page(PageName, Arc<Vec<u8>>),
    /// A page was read.
    Use(PageName),
}

/// Pages in a file. Clones share it.
#[derive(Debug, Clone)]
pub struct PageFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    database: Arc<Database>,
    /// `None` once the file is closed.
    queue: Mutex<Option<SyncSender<Write>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Whether a write has failed.
    is_off: Arc<AtomicBool>,
}

impl PageFile {
    /// Opens or makes a file in `folder` for at most `limit` bytes of pages.
    ///
    /// # Errors
    /// If the file cannot be made, is damaged, or another server uses it.
    pub fn open(folder: &Path, limit: u64) -> Result<Self, PageFileError> {
        let path = folder.join("stonechat-kv.redb");
        let error = |reason: String| PageFileError { path: path.clone(), reason };
        std::fs::create_dir_all(folder).map_err(|source| error(source.to_string()))?;
        let database = Database::builder().set_cache_size(CACHE_BYTES).create(&path);
        let database = database.map_err(|source| error(source.to_string()))?;
        let n_bytes = prepare(&database).map_err(|source| error(source.to_string()))?;
        let database = Arc::new(database);
        let (queue, writes) = sync_channel(QUEUE_LEN);
        let is_off = Arc::new(AtomicBool::new(false));
        let mut writer = Writer { database: Arc::clone(&database), limit, n_bytes, unsynced: None };
        let file = (path.clone(), Arc::clone(&is_off));
        let thread = std::thread::Builder::new().name("stonechat-pages".to_owned());
        let writer = thread.spawn(move || {
            if let Err(error) = writer.run(&writes) {
                let (path, is_off) = file;
                is_off.store(true, Ordering::Release);
                tracing::warn!("`{}` is no longer used for KV pages: {error}", path.display());
            }
        });
        let writer = writer.map_err(|source| error(source.to_string()))?;
        let (queue, writer) = (Mutex::new(Some(queue)), Mutex::new(Some(writer)));
        Ok(Self(Arc::new(Shared { database, queue, writer, is_off })))
    }

    /// Writes the queued pages, and accepts no more.
    pub fn close(&self) {
        self.0.close();
    }

    fn send(&self, write: Write) {
        let queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = &*queue {
            // A full queue: the disk is slower than the prompts.
            let _ = queue.try_send(write);
        }
    }

    fn is_off(&self) -> bool {
        self.0.is_off.load(Ordering::Acquire)
    }

    /// Calls `read` with the entry of a page in a table.
    fn find<V: redb::Value + 'static, R>(
        &self,
        table: TableDefinition<'_, &'static [u8; 32], V>,
        name: PageName,
        read: impl FnOnce(V::SelfType<'_>) -> R,
    ) -> Option<R> {
        if self.is_off() {
            return None;
        }
        let find = || -> Result<Option<R>, redb::Error> {
            let table = self.0.database.begin_read()?.open_table(table)?;
            Ok(table.get(&name.0)?.map(|entry| read(entry.value())))
        };
        find().unwrap_or_else(|error| {
            tracing::warn!("reading a KV page failed: {error}");
            None
        })
    }
}

impl Shared {
    fn close(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // A panic was reported by the thread.
            let _ = writer.join();
        }
    }
}

impl Drop for Shared {
    /// Waits until all pages are written.
    fn drop(&mut self) {
        self.close();
    }
}

impl PageStore for PageFile {
    fn read(&mut self, name: PageName, read: &mut dyn FnMut(&[u8])) -> bool {
        self.find(PAGES, name, read).is_some()
    }

    fn contains(&mut self, name: PageName) -> bool {
        // Reads the table of uses, not the one of pages: a page has megabytes.
        let is_found = self.find(USES, name, |_| ()).is_some();
        if is_found {
            self.send(Write::Use(name));
        }
        is_found
    }

    fn put(&mut self, name: PageName, bytes: &Arc<Vec<u8>>) {
        self.send(Write::Page(name, Arc::clone(bytes)));
    }

    fn takes_new(&self) -> bool {
        !self.is_off()
    }
}

/// Makes the tables; returns the bytes of the pages.
fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    let mut n_bytes = 0;
    {
        transaction.open_table(PAGES)?;
        transaction.open_table(USES)?;
        for entry in transaction.open_table(BY_USE)?.iter()? {
            n_bytes += entry?.1.value().1;
        }
    }
    transaction.commit()?;
    Ok(n_bytes)
}

/// The writing thread.
struct Writer {
    database: Arc<Database>,
    limit: u64,
    n_bytes: u64,
    /// Time of the first commit since the last one that outlives a crash.
    unsynced: Option<Instant>,
}

impl Writer {
    /// Writes until the queue is closed.
    fn run(&mut self, writes: &Receiver<Write>) -> Result<(), redb::Error> {
        loop {
            let first = match self.unsynced {
                None => writes.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(since) => writes.recv_timeout(SYNC_INTERVAL.saturating_sub(since.elapsed())),
            };
            let has_ended = first == Err(RecvTimeoutError::Disconnected);
            // One transaction for the whole queue.
            let batch: Vec<Write> = first.into_iter().chain(writes.try_iter()).collect();
            let is_due = self.unsynced.is_some_and(|since| since.elapsed() >= SYNC_INTERVAL);
            let syncs = is_due || (has_ended && self.unsynced.is_some());
            if syncs || !batch.is_empty() {
                self.write(&batch, syncs)?;
            }
            if has_ended {
                return Ok(());
            }
        }
    }

    /// Writes a batch in one transaction; with `syncs`, it and the batches before it survive a crash.
    fn write(&mut self, batch: &[Write], syncs: bool) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        if syncs {
            // The file needs no full scan after a crash.
            transaction.set_quick_repair(true);
        } else {
            transaction.set_durability(Durability::None)?;
        }
        let mut n_bytes = self.n_bytes;
        {
            let mut pages = transaction.open_table(PAGES)?;
            let mut by_use = transaction.open_table(BY_USE)?;
            let mut uses = transaction.open_table(USES)?;
            let mut now = by_use.last()?.map_or(0, |(time, _)| time.value());
            for write in batch {
                now += 1;
                let (name, new) = match write {
                    Write::Page(name, bytes) => (&name.0, Some(bytes)),
                    Write::Use(name) => (&name.0, None),
                };
                let used = uses.get(name)?.map(|time| time.value());
                let size = match (used, new) {
                    (Some(time), _) => by_use.remove(time)?.map_or(0, |entry| entry.value().1),
                    (None, Some(bytes)) => {
                        pages.insert(name, &bytes[..])?;
                        n_bytes += bytes.len() as u64;
                        bytes.len() as u64
                    }
                    // The page was removed after it was read.
                    (None, None) => continue,
                };
                by_use.insert(now, (name, size))?;
                uses.insert(name, now)?;
            }
            while n_bytes > self.limit {
                let Some((_, oldest)) = by_use.pop_first()? else { break };
                let (name, size) = oldest.value();
                pages.remove(name)?;
                uses.remove(name)?;
                n_bytes -= size;
            }
            debug_assert_eq!(pages.len()?, by_use.len()?);
        }
        transaction.commit()?;
        self.n_bytes = n_bytes;
        self.unsynced = if syncs { None } else { self.unsynced.or_else(|| Some(Instant::now())) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stonechat::llm::{PageName, PageStore};

    use super::PageFile;

    fn name(i: u8) -> PageName {
        PageName([i; 32])
    }

    fn page(i: u8) -> Arc<Vec<u8>> {
        vec![i; 1000].into()
    }

    #[test]
    fn pages_outlive_the_server_and_the_oldest_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = PageFile::open(folder.path(), 3500).unwrap();
        for i in 0..3 {
            file.put(name(i), &page(i));
        }
        let second = PageFile::open(folder.path(), 3500).unwrap_err().to_string();
        assert!(second.starts_with("cannot use `"), "{second}");
        drop(file);
        let mut file = PageFile::open(folder.path(), 3500).unwrap();
        assert!(file.contains(name(0)));
        assert!(file.read(name(0), &mut |bytes| assert_eq!(bytes, &page(0)[..])));
        file.put(name(0), &page(0));
        file.put(name(3), &page(3));
        drop(file);
        let mut file = PageFile::open(folder.path(), 3500).unwrap();
        let kept: Vec<u8> = (0..4).filter(|&i| file.contains(name(i))).collect();
        assert_eq!(kept, [0, 2, 3]);
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("stonechat-kv.redb"), b"no database").unwrap();
        assert!(PageFile::open(folder.path(), 1000).is_err());
        let inside = folder.path().join("stonechat-kv.redb/folder");
        assert!(PageFile::open(&inside, 1000).is_err());
    }
}
