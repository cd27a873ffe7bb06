//! Levenshtein distances of sequences of any kind.
//!
//! Own code: callers need the distance to every prefix, libraries give the last one.

/// The fewest insertions, deletions and substitutions that make `a` the first 0, 1, … items of `b`;
/// the last is the distance of the two.
///
/// ```
/// assert_eq!(stonechat_text::prefix_distances(b"cut", b"cats"), [3, 2, 2, 1, 2]);
/// ```
pub fn prefix_distances<T: PartialEq>(a: &[T], b: &[T]) -> Vec<usize> {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        // `diagonal` is the cell above and to the left.
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::prefix_distances;

    #[track_caller]
    fn check(a: &str, b: &str, expected: usize) {
        for (a, b) in [(a, b), (b, a)] {
            let distances = prefix_distances(a.as_bytes(), b.as_bytes());
            assert_eq!(distances.last(), Some(&expected), "{a} {b}");
            for (n, distance) in distances.iter().enumerate() {
                assert_eq!(
                    prefix_distances(a.as_bytes(), &b.as_bytes()[..n]).last(),
                    Some(distance)
                );
            }
        }
    }

    #[test]
    fn distances() {
        check("", "", 0);
        check("", "abc", 3);
        check("abc", "abc", 0);
        check("kitten", "sitting", 3);
        check("flaw", "lawn", 2);
        check("ab", "ba", 2);
        check("intention", "execution", 5);
    }
}
