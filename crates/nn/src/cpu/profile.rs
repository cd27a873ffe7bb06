//! Time per op.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stonechat_compute::op::{MatmulArgs, Op};
use web_time::Instant;

use super::weights::matrix;
use crate::device::OpTime;
use crate::inputs::Step;

/// Runs and time of each op, by name.
#[derive(Debug, Default)]
pub(super) struct Profile {
    totals: Mutex<BTreeMap<String, (u64, Duration)>>,
}

/// Adds the time from its creation to its drop to the profile.
#[derive(Debug)]
pub(super) struct Timer<'a> {
    profile: &'a Profile,
    name: String,
    start: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let elapsed = self.start.elapsed();
        let mut totals = self.profile.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let (runs, total) = totals.entry(std::mem::take(&mut self.name)).or_default();
        *runs += 1;
        *total += elapsed;
    }
}

impl Profile {
    /// Takes the times since the last call, sorted by descending time.
    pub(super) fn take(&self) -> Vec<OpTime> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = std::mem::take(&mut *totals);
        let mut times: Vec<OpTime> =
            totals.into_iter().map(|(name, (runs, total))| OpTime { name, runs, total }).collect();
        times.sort_by_key(|time| std::cmp::Reverse(time.total));
        times
    }

    /// Starts a timer for the op `name`.
    pub(super) fn timer(&self, name: String) -> Timer<'_> {
        Timer { profile: self, name, start: Instant::now() }
    }
}

/// Profile label: op, types and shapes of its weights, rows rounded up to a power of two.
pub(super) fn label(op: &Op, step: &Step<'_>, n_rows: usize) -> String {
    let name = op.name();
    let weights: Vec<&MatmulArgs> = match op {
        Op::Matmul(args) => vec![args],
        Op::MatmulGroup(all) => all.iter().collect(),
        Op::GatedProduct(args) => vec![&args.gate, &args.up],
        Op::Conv1d(args) => vec![&args.matmul],
        Op::Attention(args) => {
            let rows = step.rows(args.rows).rows.iter();
            let n_positions = rows.map(|row| row.kv_len as usize).max().unwrap_or(0);
            let [n_rows, n_positions] = [n_rows, n_positions].map(usize::next_power_of_two);
            return format!("{name}, {n_rows} rows, {n_positions} positions");
        }
        _ => return name.to_owned(),
    };
    let label = |text: String, args: &MatmulArgs| text + " " + &matrix(&args.weight).label();
    let text = weights.into_iter().fold(name.to_owned(), label);
    format!("{text}, {} rows", n_rows.next_power_of_two())
}
