//! A task of a matmul: some panels times all rows of activations.

use std::ops::Range;

use stonechat_compute::cpu::{Epilogue, SharedMut};

use super::panel::Panels;
use crate::activation::ActivationBuffer;

/// Some panels times all rows of `x`.
#[derive(Clone)]
pub(super) struct PanelTask<'a> {
    pub(super) w: Panels<'a>,
    pub(super) x: &'a ActivationBuffer,
    /// Panels of the task.
    pub(super) panels: Range<usize>,
    /// Rows of `w` that are stored; the first and the last panel may have others.
    pub(super) rows: Range<usize>,
    pub(super) out: SharedMut<'a>,
    pub(super) epilogue: Epilogue<'a>,
}
