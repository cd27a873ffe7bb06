//! Content of one file, as every parser returns it.

use crate::metadata::Metadata;
use crate::tensor::TensorTable;

/// Version, metadata and tensor table of one file.
pub(crate) struct Parsed {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: TensorTable,
}
