//! Window and filters of log-mel spectrograms, for the kernels of devices.

/// Window and filters of a log-mel spectrogram.
#[derive(Debug, Clone)]
pub struct LogMelTables<'a> {
    /// Factors of the samples of a window, `[n_fft]`.
    pub window: &'a [f32],
    /// Samples from the start of a window to that of the next.
    pub hop: usize,
    /// Filter of each mel.
    pub filters: Vec<MelFilter<'a>>,
}

/// Weights of consecutive bins of a spectrum of `n_fft / 2 + 1` bins; those of the other bins are 0.
#[derive(Debug, Clone, Copy)]
pub struct MelFilter<'a> {
    /// Bin of the first weight.
    pub first_bin: usize,
    /// The weights.
    pub weights: &'a [f32],
}
