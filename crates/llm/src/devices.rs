//! Devices of a model: one, or two as a pipeline of two stages.

use std::fmt::Debug;

use stonechat_nn::Backend;

/// Devices of a model. Every [`Backend`] is one that holds all layers; [`Split`] is two.
pub trait Devices: Clone + Debug + Send + Sync + 'static {
    /// Device of the first pipeline stage: the embedding and the first layers.
    type First: Backend;
    /// Device of the second pipeline stage: the other layers and the output.
    type Second: Backend;

    /// The first stage's device and its number of layers; `None` if the second stage is the whole model.
    fn first(&self) -> Option<(&Self::First, usize)>;

    /// The second stage's device.
    fn second(&self) -> &Self::Second;
}

impl<B: Backend> Devices for B {
    type First = B;
    type Second = B;

    fn first(&self) -> Option<(&B, usize)> {
        None
    }

    fn second(&self) -> &B {
        self
    }
}

/// Two devices. A forward pass copies the residual stream from the first to the second through the host, once.
#[derive(Debug, Clone)]
pub struct Split<F, S> {
    first: F,
    second: S,
    n_first: usize,
}

impl<F: Backend, S: Backend> Split<F, S> {
    /// `n_first` layers and the embedding are on `first`, the other layers and the output on `second`.
    #[must_use]
    pub fn new(first: F, second: S, n_first: usize) -> Self {
        Self { first, second, n_first }
    }
}

impl<F: Backend, S: Backend> Devices for Split<F, S> {
    type First = F;
    type Second = S;

    fn first(&self) -> Option<(&F, usize)> {
        Some((&self.first, self.n_first))
    }

    fn second(&self) -> &S {
        &self.second
    }
}
