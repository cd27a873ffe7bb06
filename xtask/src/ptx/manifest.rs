//! `cubins/manifest.json` of a crate: hashes of sources and compiled code, registers and spills.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::sources::cubins_folder;

/// Contents of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of NVRTC.
    pub(crate) nvrtc: String,
    /// Options beside the architecture and the defines of modules.
    pub(crate) options: Vec<String>,
    /// SHA-256 of every source and header, by path.
    pub(crate) sources: BTreeMap<String, String>,
    /// Archives by architecture.
    pub(crate) targets: BTreeMap<String, Target>,
}

/// An archive.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// SHA-256 of the file.
    pub(crate) archive: String,
    pub(crate) modules: BTreeMap<String, Code>,
}

/// Compiled code of a module. Registers and spills are the largest of its kernels; PTX has none.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Code {
    pub(crate) sha256: String,
    pub(crate) bytes: usize,
    pub(crate) registers: u32,
    pub(crate) spill_bytes: u32,
}

/// Path of a crate's manifest, relative to the root.
pub(crate) fn path(name: &str) -> String {
    format!("{}/manifest.json", cubins_folder(name))
}

impl Manifest {
    /// Reads the manifest of a crate; [`None`] if there is none.
    pub(crate) fn read(root: &Path, name: &str) -> Result<Option<Self>> {
        let path = path(name);
        let Ok(text) = fs::read_to_string(root.join(&path)) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).with_context(|| format!("{path} is no manifest"))
    }

    /// Text of the file.
    pub(super) fn text(&self) -> Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?))
    }
}

/// SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
