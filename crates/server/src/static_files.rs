//! Static files in memory: those of the page, which the program embeds, and those of the npm package, from a folder.
//!
//! No path of a request reaches the file system: the folder is read once, at the start.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Maximum bytes of all files of a package.
const MAX_PACKAGE_BYTES: u64 = 128 << 20;
/// File that a package must have.
const ENTRY: &str = "index.js";
/// Bytes below which gzip saves nothing.
const MIN_GZIP_BYTES: usize = 512;

/// Types of the files that are served, by extension.
const TYPES: [(&str, &str); 8] = [
    ("bin", "application/octet-stream"),
    ("css", "text/css; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("svg", "image/svg+xml"),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
];

macro_rules! embedded {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("page/", $name)).as_slice())),*]
    };
}

/// Files of the page, which `cargo xtask page` builds.
static EMBEDDED: [(&str, &[u8]); 7] = embedded!(
    "app.css",
    "app.js",
    "capture.js",
    "icon.svg",
    "index.html",
    "manifest.webmanifest",
    "sw.js"
);

/// Files of the page by name.
pub(crate) static PAGE: LazyLock<BTreeMap<&'static str, StaticFile>> = LazyLock::new(|| {
    let file = |&(name, bytes): &(&'static str, &'static [u8])| {
        Some((name, StaticFile::new(name, Bytes::from_static(bytes))?))
    };
    EMBEDDED.iter().filter_map(file).collect()
});

/// Cause of a package that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebPackageError {
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// Folder or file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The folder is another one.
    #[error("`{}`: expected the files of the npm package, got no {ENTRY}", .0.display())]
    NoEntry(PathBuf),
    /// The files are larger than any package.
    #[error("`{}`: expected at most {} MiB of files, got more", .0.display(), MAX_PACKAGE_BYTES >> 20)]
    TooLarge(PathBuf),
}

/// Files of the npm package by name, for the page's engine that runs in the browser. Clones share them.
#[derive(Debug, Clone)]
pub struct WebPackage(Arc<BTreeMap<String, StaticFile>>);

impl WebPackage {
    /// Reads the files of a folder whose types are known. Folders in it and hidden files are left out.
    ///
    /// # Errors
    /// If the folder cannot be read, is no package or is too large.
    pub fn read(folder: &Path) -> Result<Self, WebPackageError> {
        let error = |path: &Path| {
            let path = path.to_owned();
            |source| WebPackageError::Read { path, source }
        };
        let mut files = BTreeMap::new();
        let mut n_bytes = 0;
        for entry in std::fs::read_dir(folder).map_err(error(folder))? {
            let path = entry.map_err(error(folder))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let metadata = std::fs::metadata(&path).map_err(error(&path))?;
            if name.starts_with('.') || !metadata.is_file() || content_type(name).is_none() {
                continue;
            }
            n_bytes += metadata.len();
            if n_bytes > MAX_PACKAGE_BYTES {
                return Err(WebPackageError::TooLarge(folder.to_owned()));
            }
            let bytes = std::fs::read(&path).map_err(error(&path))?;
            if let Some(file) = StaticFile::new(name, bytes.into()) {
                files.insert(name.to_owned(), file);
            }
        }
        if !files.contains_key(ENTRY) {
            return Err(WebPackageError::NoEntry(folder.to_owned()));
        }
        Ok(Self(Arc::new(files)))
    }

    pub(crate) fn file(&self, name: &str) -> Option<&StaticFile> {
        self.0.get(name)
    }
}

/// A file with its headers.
#[derive(Debug)]
pub(crate) struct StaticFile {
    content_type: &'static str,
    /// Content hash, in quotes.
    etag: HeaderValue,
    plain: Bytes,
    /// Content in gzip, if it is smaller.
    gzip: Option<Bytes>,
}

impl StaticFile {
    /// A file whose extension has a type.
    fn new(name: &str, plain: Bytes) -> Option<Self> {
        let content_type = content_type(name)?;
        let etag = HeaderValue::try_from(format!("\"{:016x}\"", hash(&plain))).ok()?;
        let gzip = compress(&plain).ok().filter(|gzip| gzip.len() < plain.len());
        Some(Self { content_type, etag, plain, gzip })
    }

    /// Answers with the file, or 304 if the client has it. One that is `is_immutable` is not asked for again.
    pub(crate) fn respond(&self, request: &HeaderMap, is_immutable: bool) -> Response {
        let cache = if is_immutable { "public, max-age=31536000, immutable" } else { "no-cache" };
        let shared = [
            (CACHE_CONTROL, HeaderValue::from_static(cache)),
            (VARY, HeaderValue::from_static("accept-encoding")),
            (ETAG, self.etag.clone()),
        ];
        if request.get_all(IF_NONE_MATCH).iter().any(|value| self.is_known(value)) {
            return (StatusCode::NOT_MODIFIED, shared).into_response();
        }
        let content_type = [(CONTENT_TYPE, self.content_type)];
        match self.gzip.as_ref().filter(|_| accepts_gzip(request)) {
            Some(gzip) => {
                (shared, content_type, [(CONTENT_ENCODING, "gzip")], gzip.clone()).into_response()
            }
            None => (shared, content_type, self.plain.clone()).into_response(),
        }
    }

    /// Tells if `If-None-Match` has the hash. Both encodings share it, which makes it a weak one.
    fn is_known(&self, value: &HeaderValue) -> bool {
        let etag = self.etag.to_str().unwrap_or_default();
        let mut tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
        tags.any(|tag| tag.trim_start_matches("W/") == etag || tag == "*")
    }
}

fn content_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    TYPES.iter().find(|(one, _)| *one == extension).map(|(_, content_type)| *content_type)
}

/// FNV-1a, 64 bits: tells versions of a file apart, and protects nothing.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn compress(bytes: &[u8]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    if bytes.len() >= MIN_GZIP_BYTES {
        encoder.write_all(bytes)?;
        return encoder.finish().map(Bytes::from);
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// Tells if `Accept-Encoding` has gzip, with a weight other than 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, "q=1"));
        let weight = weight.trim().trim_start_matches("q=").parse().unwrap_or(1.0);
        name.trim().eq_ignore_ascii_case("gzip") && weight > 0.0
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::http::HeaderMap;
    use axum::http::header::ACCEPT_ENCODING;

    use super::{PAGE, WebPackage, WebPackageError, accepts_gzip};

    #[test]
    fn encodings_have_weights() {
        for (value, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("br", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
    }

    #[test]
    fn embedded_files_are_compressed_without_loss() {
        assert_eq!(PAGE.len(), 7);
        let script = &PAGE["app.js"];
        let mut plain = Vec::new();
        let gzip = script.gzip.as_deref().unwrap();
        flate2::read::GzDecoder::new(gzip).read_to_end(&mut plain).unwrap();
        assert!(plain == script.plain && gzip.len() < 150_000, "{} bytes", gzip.len());
    }

    #[test]
    fn a_package_has_an_entry_and_known_types() {
        let folder = tempfile::tempdir().unwrap();
        let error = WebPackage::read(folder.path()).unwrap_err();
        assert!(matches!(error, WebPackageError::NoEntry(_)), "{error}");
        assert!(WebPackage::read(&folder.path().join("none")).is_err());
        std::fs::create_dir(folder.path().join("folder.js")).unwrap();
        for name in ["index.js", "stonechat-base.wasm", ".hidden.js", "secret.pem", "noextension"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let package = WebPackage::read(folder.path()).unwrap();
        let names: Vec<_> = package.0.keys().map(String::as_str).collect();
        assert_eq!(names, ["index.js", "stonechat-base.wasm"]);
    }
}
