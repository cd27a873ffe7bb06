//! Positions in a recording and in its concatenated speech segments.

use std::ops::Range;

use stonechat_compute::huge_page_vec;

/// Maps positions between a recording and its concatenated speech segments.
///
/// ```
/// use stonechat_audio::vad::SpeechMap;
///
/// let map = SpeechMap::new(vec![100..200, 500..800], 1000);
/// assert_eq!(map.n_kept(), 400);
/// // An end at a seam belongs to the segment before it, a start to the one after.
/// assert_eq!((map.original_end(100), map.original_start(100)), (200, 500));
/// assert_eq!(map.kept(501), 101);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeechMap {
    ranges: Vec<Range<usize>>,
    /// End of each segment in the concatenation.
    ends: Vec<usize>,
    n_samples: usize,
}

impl SpeechMap {
    /// Map of the speech segments `ranges` of a recording of `n_samples`.
    ///
    /// # Panics
    /// If the ranges are not ascending, disjoint, non-empty and inside the recording.
    #[must_use]
    pub fn new(ranges: Vec<Range<usize>>, n_samples: usize) -> Self {
        let mut ends = Vec::with_capacity(ranges.len());
        let (mut previous, mut n_kept) = (0, 0);
        for range in &ranges {
            assert!(
                previous <= range.start && range.start < range.end && range.end <= n_samples,
                "{range:?} of {n_samples} after {previous}"
            );
            previous = range.end;
            n_kept += range.len();
            ends.push(n_kept);
        }
        Self { ranges, ends, n_samples }
    }

    /// The speech segments.
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Samples of the recording.
    #[must_use]
    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    /// Samples of all segments.
    #[must_use]
    pub fn n_kept(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Removes everything but the speech segments from `samples`, in place.
    ///
    /// # Panics
    /// If `samples` is another recording, of another length.
    pub fn retain(&self, samples: &mut Vec<f32>) {
        assert_eq!(samples.len(), self.n_samples, "the recording that was mapped");
        for (range, end) in self.ranges.iter().zip(&self.ends) {
            samples.copy_within(range.clone(), end - range.len());
        }
        samples.truncate(self.n_kept());
    }

    /// Concatenates the speech segments of `samples`.
    ///
    /// # Panics
    /// If `samples` is another recording, of another length.
    #[must_use]
    pub fn collect(&self, samples: &[f32]) -> Vec<f32> {
        assert_eq!(samples.len(), self.n_samples, "the recording that was mapped");
        let mut kept = huge_page_vec(self.n_kept());
        for range in &self.ranges {
            kept.extend_from_slice(&samples[range.clone()]);
        }
        kept
    }

    /// Position in the recording of a start at `kept`; past the end, the end of the last segment.
    #[must_use]
    pub fn original_start(&self, kept: usize) -> usize {
        self.place(self.ends.partition_point(|&end| end <= kept), kept)
    }

    /// Position in the recording of an end at `kept`.
    #[must_use]
    pub fn original_end(&self, kept: usize) -> usize {
        self.place(self.ends.partition_point(|&end| end < kept), kept)
    }

    /// Range in the recording of the range `kept`, cut to the segment of its middle.
    #[must_use]
    pub fn original(&self, kept: Range<usize>) -> Range<usize> {
        let middle = kept.start.midpoint(kept.end);
        let index = self.ends.partition_point(|&end| end <= middle);
        self.place(index, kept.start)..self.place(index, kept.end)
    }

    /// Position in the concatenation of the sample `original`; outside of every segment, the start of
    /// the next one.
    #[must_use]
    pub fn kept(&self, original: usize) -> usize {
        let index = self.ranges.partition_point(|range| range.end <= original);
        let before = index.checked_sub(1).map_or(0, |i| self.ends[i]);
        let inside = self.ranges.get(index).map_or(0, |range| original.saturating_sub(range.start));
        before + inside
    }

    /// Position in the recording of `kept` within segment `index`, cut to that segment.
    fn place(&self, index: usize, kept: usize) -> usize {
        let index = index.min(self.ranges.len().saturating_sub(1));
        let Some(range) = self.ranges.get(index) else { return 0 };
        let first = self.ends[index] - range.len();
        range.start + kept.saturating_sub(first).min(range.len())
    }
}
