//! Vectors on huge pages.

/// Minimum number of values of a vector on huge pages: 4 MiB.
pub(crate) const MIN_VALUES: usize = (4 << 20) / size_of::<f32>();

/// Allocates an empty vector with room for about `n` values, an expectation: a large one gets huge pages, if the system
/// has them, to save TLB misses and page faults. Memory that is never written is never committed. Without memory for
/// `n` values there is no room.
#[must_use]
pub fn huge_page_vec(n: usize) -> Vec<f32> {
    let mut vec = Vec::new();
    if vec.try_reserve_exact(n).is_err() || n < MIN_VALUES {
        return vec;
    }
    #[cfg(all(target_os = "linux", not(miri)))]
    advise(&vec);
    vec
}

/// Asks for huge pages in the memory of `vec`.
#[cfg(all(target_os = "linux", not(miri)))]
fn advise(vec: &Vec<f32>) {
    use rustix::mm::{Advice, madvise};

    /// Alignment that every page size of Linux divides.
    const ALIGNMENT: usize = 64 << 10;

    let memory = vec.as_ptr();
    let before = memory.addr().next_multiple_of(ALIGNMENT) - memory.addr();
    let n_bytes = (vec.capacity() * size_of::<f32>()).saturating_sub(before);
    let start = memory.wrapping_byte_add(before).cast_mut().cast();
    // SAFETY: the bytes are memory of `vec`, whose content this advice does not change. It fails without effect.
    let _ = unsafe { madvise(start, n_bytes, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests {
    use super::huge_page_vec;

    #[test]
    fn there_is_room_if_there_is_memory() {
        assert_eq!(huge_page_vec(usize::MAX / 8).capacity(), 0);
        for n in [0, 5, 3 << 20] {
            let mut vec = huge_page_vec(n);
            assert!(vec.is_empty() && vec.capacity() >= n);
            vec.extend((0..n + 7).map(|i| i as f32));
            assert_eq!(vec.len(), n + 7);
            assert!(vec.iter().enumerate().all(|(i, &x)| x == i as f32));
        }
    }
}
