//! Speculative decoding: sources of drafts, and the gate that turns drafts on and off.

pub(crate) mod draft;
pub(crate) mod drafter;
pub(crate) mod gate;
pub(crate) mod model;
pub(crate) mod n_gram;
