//! Devices of a model as a pipeline of stages.

use stonechat_nn::Device;

/// Devices of a model in pipeline order. The first stage has the embedding, the last one the output. A step copies the
/// residual stream from stage to stage through the host.
#[derive(Debug, Clone)]
pub struct Devices {
    /// Devices and their numbers of layers.
    first: Vec<(Device, usize)>,
    /// Device of the layers that are left.
    last: Device,
}

impl<D: Into<Device>> From<D> for Devices {
    fn from(device: D) -> Self {
        Self { first: Vec::new(), last: device.into() }
    }
}

impl Devices {
    /// Adds a stage: the last device so far gets `n_layers` layers, `next` those that are left.
    #[must_use]
    pub fn split(mut self, n_layers: usize, next: impl Into<Device>) -> Self {
        let last = std::mem::replace(&mut self.last, next.into());
        self.first.push((last, n_layers));
        self
    }

    /// Number of layers of all devices but the last.
    pub(crate) fn n_split(&self) -> usize {
        self.first.iter().map(|(_, n_layers)| n_layers).sum()
    }

    /// Device and layers of each stage of a model of `n_layers`; `None` if the first stages have more.
    pub(crate) fn stages(&self, n_layers: usize) -> Option<Vec<(Device, std::ops::Range<usize>)>> {
        let mut start = 0;
        let mut stages = Vec::with_capacity(self.first.len() + 1);
        for (device, n) in &self.first {
            let end = start + n;
            stages.push((device.clone(), start..end));
            start = end;
        }
        stages.push((self.last.clone(), start..n_layers));
        (start <= n_layers).then_some(stages)
    }
}
