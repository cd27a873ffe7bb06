//! Sets of code points.

use std::fmt::Write as _;

const MAX: u32 = char::MAX as u32;

/// Set of code points: sorted inclusive ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    /// The union of inclusive ranges.
    pub(super) fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged)
    }

    pub(super) fn all() -> Self {
        Self(vec![(0, MAX)])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for &(low, high) in &self.0 {
            if low > next {
                ranges.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= MAX {
            ranges.push((next, MAX));
        }
        Self(ranges)
    }

    /// Adds `other`. Returns whether the set grew.
    pub(super) fn extend(&mut self, other: &Self) -> bool {
        if other.0.iter().all(|range| self.contains(*range)) {
            return false;
        }
        let mut ranges = std::mem::take(&mut self.0);
        ranges.extend(&other.0);
        *self = Self::new(ranges);
        true
    }

    fn contains(&self, (low, high): (u32, u32)) -> bool {
        let at = self.0.partition_point(|range| range.1 < low);
        self.0.get(at).is_some_and(|range| range.0 <= low && high <= range.1)
    }

    pub(super) fn intersects(&self, other: &Self) -> bool {
        self.0.iter().any(|&(low, high)| {
            let at = other.0.partition_point(|range| range.1 < low);
            other.0.get(at).is_some_and(|range| range.0 <= high)
        })
    }

    /// Character class of a regular expression.
    pub(super) fn to_regex(&self) -> String {
        let mut regex = String::from("[");
        for &(low, high) in &self.0 {
            // Surrogates are not characters; a range must not start or end in them.
            let low = if (0xd800..=0xdfff).contains(&low) { 0xe000 } else { low };
            let high = if (0xd800..=0xdfff).contains(&high) { 0xd7ff } else { high };
            if low <= high {
                let _ = write!(regex, "\\x{{{low:x}}}-\\x{{{high:x}}}");
            }
        }
        regex.push(']');
        regex
    }
}

#[cfg(test)]
mod tests {
    use super::CharSet;

    #[test]
    fn sets_merge_complement_and_intersect() {
        let mut set = CharSet::new(vec![(5, 9), (0, 2), (3, 3), (8, 12)]);
        assert_eq!(set, CharSet(vec![(0, 3), (5, 12)]));
        assert_eq!(set.complement(), CharSet(vec![(4, 4), (13, 0x10_ffff)]));
        assert!(CharSet::all().complement().is_empty());
        assert!(set.intersects(&CharSet::new(vec![(4, 5)])));
        assert!(!set.intersects(&CharSet::new(vec![(4, 4), (13, 20)])));
        assert!(!set.extend(&CharSet::new(vec![(6, 7)])));
        assert!(set.extend(&CharSet::new(vec![(4, 4)])));
        assert_eq!(set, CharSet(vec![(0, 12)]));
        assert_eq!(set.to_regex(), r"[\x{0}-\x{c}]");
    }
}
