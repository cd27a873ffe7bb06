//! Counters of device objects and work, for tests and reports.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the device was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl std::ops::Sub for Counters {
            type Output = Self;

            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }

        /// [`Counters`] as atomics.
        #[derive(Debug, Default)]
        pub(super) struct AtomicCounters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl AtomicCounters {
            pub(super) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Allocations of device memory and of pinned host memory.
    buffers,
    /// Modules loaded.
    modules,
    /// Graphs made.
    graphs,
    /// Kernel launches, graphs included.
    launches,
    /// Graphs launched.
    graph_launches,
    /// Lists whose kernels were launched one by one.
    lists,
    /// Copies of inputs to the device; none of weights.
    uploads,
    /// Copies of results to the host.
    readbacks,
    /// Microseconds from the start of steps to their submission.
    host_us,
}
