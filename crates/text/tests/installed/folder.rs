//! The folder where `cargo xtask models` installs models.

use std::path::PathBuf;

pub(crate) fn models_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    variable("STONECHAT_MODELS")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("stonechat/models")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/stonechat/models")))
        .unwrap_or_default()
}
