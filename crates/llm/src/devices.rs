//! Where the layers of a model are: on one device, or split between two.

use std::fmt::Debug;

use stonechat_nn::Backend;

/// The devices of a model. Every [`Backend`] is one that has all of it; [`Split`] is two.
pub trait Devices: Clone + Debug + Send + Sync + 'static {
    /// Has the last layers and the output.
    type Upper: Backend;
    /// Has the embedding and the layers before them.
    type Lower: Backend;

    /// The device of the last layers.
    fn upper(&self) -> &Self::Upper;

    /// The device of the first layers and how many those are; none where there is one device.
    fn lower(&self) -> Option<(&Self::Lower, usize)>;
}

impl<B: Backend> Devices for B {
    type Upper = B;
    type Lower = B;

    fn upper(&self) -> &B {
        self
    }

    fn lower(&self) -> Option<(&B, usize)> {
        None
    }
}

/// Two devices: the embedding and the first layers are on the lower, the other layers and the output on the upper
/// one. A pass goes through the host between them, once.
#[derive(Debug, Clone)]
pub struct Split<L, U> {
    lower: L,
    upper: U,
    n_lower: usize,
}

impl<L: Backend, U: Backend> Split<L, U> {
    /// `n_lower` layers are on `lower`.
    #[must_use]
    pub fn new(lower: L, upper: U, n_lower: usize) -> Self {
        Self { lower, upper, n_lower }
    }
}

impl<L: Backend, U: Backend> Devices for Split<L, U> {
    type Upper = U;
    type Lower = L;

    fn upper(&self) -> &U {
        &self.upper
    }

    fn lower(&self) -> Option<(&L, usize)> {
        Some((&self.lower, self.n_lower))
    }
}
