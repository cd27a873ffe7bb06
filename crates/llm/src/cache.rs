//! KV pages of earlier prompts: in the pool, in stores, in files.

pub(crate) mod page_store;
pub(crate) mod prefix_cache;
pub(crate) mod prompt_cache;
