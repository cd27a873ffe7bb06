//! Windows of the state and the requests that wait for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Weak;

use super::Task;

/// Window of the state.
#[derive(Debug)]
pub(super) enum Place {
    Free,
    /// Audio of a finished request.
    Kept {
        handle: Weak<()>,
        owner: u64,
    },
    /// Request whose audio is encoded.
    Active(Request),
}

/// Request of a window.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) handle: Weak<()>,
    pub(super) owner: u64,
    pub(super) keep_audio: bool,
    pub(super) task: Task,
}

impl Place {
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    fn owner(&self) -> Option<u64> {
        match self {
            Self::Free => None,
            Self::Kept { owner, .. } | Self::Active(Request { owner, .. }) => Some(*owner),
        }
    }
}

/// The longest run of free places, of at most `max`; of several, the first.
pub(super) fn free_run(places: &[Place], max: usize) -> Range<usize> {
    let mut best = 0..0;
    let mut first = 0;
    for run in places.chunk_by(|a, b| a.is_free() == b.is_free()) {
        let n = if run[0].is_free() { run.len().min(max) } else { 0 };
        if n > best.len() {
            best = first..first + n;
        }
        first += run.len();
    }
    best
}

/// Takes the request whose owner has the fewest places; of several, the first.
pub(super) fn take_next<T>(
    queue: &mut VecDeque<(Request, T)>,
    places: &[Place],
) -> Option<(Request, T)> {
    let n_places = |owner| places.iter().filter(|place| place.owner() == Some(owner)).count();
    let next = (0..queue.len()).min_by_key(|&index| n_places(queue[index].0.owner))?;
    queue.remove(next)
}
