//! Files that a client may read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Limits of the files that a client may read.
#[derive(Debug)]
pub(super) struct Files {
    /// Folder that they must be in, without links.
    root: Option<PathBuf>,
    /// Maximum size.
    pub(super) max_bytes: u64,
}

impl Files {
    /// # Errors
    /// If the folder does not exist.
    pub(super) fn new(root: Option<&Path>, max_bytes: u64) -> anyhow::Result<Self> {
        let resolve = |root: &Path| {
            fs::canonicalize(root).with_context(|| format!("cannot open `{}`", root.display()))
        };
        Ok(Self { root: root.map(resolve).transpose()?, max_bytes })
    }

    /// Resolves the path of a recording; a relative one is in the root.
    ///
    /// # Errors
    /// If it is no regular file, outside of the root or too large.
    pub(super) fn resolve(&self, path: &str) -> anyhow::Result<PathBuf> {
        let given = Path::new(path);
        let joined = self.root.as_ref().map_or_else(|| given.to_owned(), |root| root.join(given));
        let found = fs::canonicalize(&joined);
        if let Some(root) = &self.root {
            // One error for both, or a client could ask which files exist.
            let is_inside = found.as_ref().is_ok_and(|found| found.starts_with(root));
            ensure!(is_inside, "path: expected a file in `{}`, got `{path}`", root.display());
        }
        let found = found.with_context(|| format!("cannot open `{path}`"))?;
        let metadata = fs::metadata(&found).with_context(|| format!("cannot open `{path}`"))?;
        ensure!(metadata.is_file(), "path: expected a regular file, got `{path}`");
        let (n, max) = (metadata.len(), self.max_bytes);
        ensure!(n <= max, "path: expected a file of at most {max} bytes, got {n}");
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Files;

    #[test]
    fn files_outside_of_the_root_and_large_ones_are_refused() {
        let folder = std::env::temp_dir().join(format!("stonechat-mcp-{}", std::process::id()));
        let root = folder.join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(folder.join("secret"), "x").unwrap();
        fs::write(root.join("a.wav"), "12345").unwrap();
        let files = Files::new(Some(&root), 5).unwrap();
        assert!(files.resolve("a.wav").unwrap().ends_with("root/a.wav"));
        for path in ["../secret", "/etc/passwd", "none.wav", "sub/../../secret"] {
            let error = files.resolve(path).unwrap_err().to_string();
            assert!(error.starts_with("path: expected a file in"), "{error}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(folder.join("secret"), root.join("link")).unwrap();
            assert!(files.resolve("link").is_err());
        }
        let error = files.resolve("sub").unwrap_err().to_string();
        assert!(error.contains("a regular file"), "{error}");
        let small = Files::new(Some(&root), 4).unwrap();
        assert!(small.resolve("a.wav").unwrap_err().to_string().contains("at most 4 bytes, got 5"));
        assert!(Files::new(Some(&root.join("absent")), 4).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
