//! Steps: the forward pass on the devices, sequences and KV pages, outputs.

pub(crate) mod devices;
pub(crate) mod forward;
pub(crate) mod options;
pub(crate) mod outputs;
pub(crate) mod placement;
pub(crate) mod stage;
pub(crate) mod state;
