//! Loudness of speech: speakers far below the loudest are raised.
//!
//! The spectrogram ends 80 dB below the loudest sound of a recording, so that speech 45 dB below other speech keeps 35 dB of its
//! own range. Only speech is raised: noise between loud words is as loud as they are.
//!
//! ```text
//! level[i]  = root mean square of block i
//! around[i] = min(max(level[i - reach..=i]), max(level[i..=i + reach])), without a side beyond an end of the audio
//! gain[i]   = max(level) / around[i], less MAX_BELOW; 1 to MAX_GAIN
//!
//! level     ▆█▇▆▁▁▇▆▁▂▁▂▁▂▂▁▂▇▆█
//! around    ██▇▇▇▇▇▆▂▂▂▂▂▂▂▂▂████
//! ```

use crate::SAMPLE_RATE;

/// Samples of a block: 0.1 s, about a syllable.
const BLOCK: usize = SAMPLE_RATE / 10;
/// Maximum level below the loudest block that is left unchanged; speakers in one room and syllables of a word differ by less.
const MAX_BELOW_DB: f32 = 20.0;
/// Largest gain: what needs more is near the last bit of 16-bit audio.
const MAX_GAIN_DB: f32 = 30.0;
/// Level of a silent block, below the last bit of 24-bit audio.
const LEAST_LEVEL: f32 = 1e-8;

/// Raises the parts of `samples` that lie more than [`MAX_BELOW_DB`] below the loudest block; no pause in them is longer than
/// `max_pause` samples.
pub(crate) fn raise_quiet_parts(samples: &mut [f32], max_pause: usize) {
    let levels: Vec<f32> = samples.chunks(BLOCK).map(level).collect();
    let gains = gains(&levels, max_pause.div_ceil(BLOCK) + 2);
    if gains.iter().all(|&gain| gain <= 1.0) {
        return;
    }
    let max_gain_db = 20.0 * gains.iter().copied().fold(1.0, f32::max).log10();
    tracing::debug!(max_gain_db, "quiet speech raised");
    for (i, block) in samples.chunks_mut(BLOCK).enumerate() {
        // The gain of a block does not reach into a louder one.
        let edge = |other: Option<&f32>| other.map_or(gains[i], |&other| other.min(gains[i]));
        let (from, to) = (edge(i.checked_sub(1).map(|i| &gains[i])), edge(gains.get(i + 1)));
        let step = (to - from) / block.len() as f32;
        block.iter_mut().enumerate().for_each(|(k, x)| *x *= from + step * k as f32);
    }
}

fn level(block: &[f32]) -> f32 {
    let energy: f32 = block.iter().map(|x| x * x).sum();
    (energy / block.len() as f32).sqrt().max(LEAST_LEVEL)
}

/// Gains of blocks, none of them below 1; pauses are shorter than `reach` blocks.
fn gains(levels: &[f32], reach: usize) -> Vec<f32> {
    let max = |levels: &[f32]| levels.iter().copied().fold(0.0, f32::max);
    let target = max(levels) * 10f32.powf(-MAX_BELOW_DB / 20.0);
    let max_gain = 10f32.powf(MAX_GAIN_DB / 20.0);
    let gain = |i: usize| {
        let before = i.checked_sub(reach).map(|first| max(&levels[first..=i]));
        let after = levels.get(i..=i + reach).map(max);
        let around = match (before, after) {
            (Some(before), Some(after)) => before.min(after),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => max(levels),
        };
        (target / around).clamp(1.0, max_gain)
    };
    (0..levels.len()).map(gain).collect()
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, level, raise_quiet_parts};
    use crate::SAMPLE_RATE;

    /// Words of 0.5 s at `level`, with pauses of faint noise.
    fn words(level: f32, pauses: &[f32]) -> Vec<f32> {
        let mut samples = Vec::new();
        for &pause in pauses {
            let word = |i: usize| level * (i as f32 * 0.3).sin();
            samples.extend((0..SAMPLE_RATE / 2).map(word));
            let n = (pause * SAMPLE_RATE as f32) as usize;
            samples.extend((0..n).map(|i| level * 0.001 * (i as f32 * 1.7).sin()));
        }
        samples
    }

    fn raised(samples: &[f32]) -> Vec<f32> {
        let mut raised = samples.to_vec();
        raise_quiet_parts(&mut raised, 2 * SAMPLE_RATE);
        raised
    }

    fn db(samples: &[f32]) -> f32 {
        20.0 * level(samples).log10()
    }

    #[test]
    fn quiet_speech_is_raised_and_loud_speech_and_its_pauses_are_not() {
        let pauses = [0.5, 0.2, 2.0, 0.1, 1.0, 0.3, 1.9];
        let (loud, quiet) = (words(0.5, &pauses), words(0.003, &pauses));
        for (before, after) in [(0, 1), (1, 0), (1, 1)] {
            let mut samples = loud.repeat(before);
            let start = samples.len();
            samples.extend(&quiet);
            let end = samples.len();
            samples.extend(loud.repeat(after));
            let got = raised(&samples);
            // Not the pause between the loud and the quiet words.
            let loud_end = start.saturating_sub(2 * SAMPLE_RATE);
            assert_eq!(got[..loud_end], samples[..loud_end], "loud speech before");
            assert_eq!(got[end..], samples[end..], "loud speech after");
            for word in [start, start + SAMPLE_RATE] {
                let word = word + 2 * BLOCK..word + 3 * BLOCK;
                let gain = db(&got[word.clone()]) - db(&samples[word.clone()]);
                let expected = 20.0 * (0.5f32 / 0.003).log10() - 20.0;
                assert!((gain - expected).abs() < 0.5, "{before} {after}: {gain} dB in {word:?}");
            }
            let loudest = samples.iter().fold(0f32, |max, x| max.max(x.abs()));
            assert!(got.iter().all(|x| x.abs() <= loudest));
        }
    }

    #[test]
    fn speech_of_similar_loudness_is_left_as_it_is() {
        let pauses = [0.5, 2.0, 0.1, 1.5];
        let mut samples = vec![0.0; SAMPLE_RATE];
        for level in [0.5, 0.06, 0.2, 0.08] {
            samples.extend(words(level, &pauses));
        }
        let syllable = samples[..BLOCK / 2].to_vec();
        for samples in [samples, syllable, Vec::new(), vec![0.0; 400], vec![0.001; 80_000]] {
            assert_eq!(raised(&samples), samples);
        }
    }

    #[test]
    fn a_gain_has_a_limit() {
        let mut samples = words(0.5, &[0.5; 10]);
        let start = samples.len();
        samples.extend(words(0.000_5, &[0.5; 10]));
        let got = raised(&samples);
        let gain =
            db(&got[start + 2 * BLOCK..][..BLOCK]) - db(&samples[start + 2 * BLOCK..][..BLOCK]);
        assert!((gain - 30.0).abs() < 0.1, "{gain} dB");
        assert_eq!(raised(&vec![0.0; 100_000]), vec![0.0; 100_000]);
    }
}
