//! AMX tiles of x86-64 with bf16 products, `tdpbf16ps`.
//!
//! A tile register has 16 rows of 64 bytes. `C[16][16] += A[16][32] · B[32][16]`, with `A` as rows of 32 bf16 values,
//! `B` as 16 rows of 16 pairs (values `2k` and `2k + 1` of a column), `C` as f32. All eight registers are in use:
//!
//! ```text
//!               B0 = tmm6   B1 = tmm7
//! A0 = tmm4     C00 tmm0    C01 tmm1        C is 32 × 32; a round loads 2 + 2 tiles for 4 products
//! A1 = tmm5     C10 tmm2    C11 tmm3
//! ```
//!
//! Stable Rust has neither intrinsics nor feature detection for AMX, hence assembly and `cpuid`. Linux grants the tile
//! registers to a process on request.

use crate::{check_eq, check_multiple};
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};

use super::avx512bf16::Avx512Bf16;
use super::avx512vnni::Avx512Vnni;
use super::token::Token;

/// Contents of a tile register, 1 KiB of bf16: as `A` 32 values of each of 16 rows; as `B` 16 rows of 16 pairs, row `k`
/// with values `2k` and `2k + 1` of each of 16 columns.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Tile(pub [[u16; 32]; 16]);

/// f32 sums `C[32][32]`, four tile registers.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TileSums(pub [[f32; 32]; 32]);

/// Token of AMX tiles with bf16 products, and of [`Avx512Bf16`].
#[derive(Clone, Copy, Debug)]
pub struct Amx {
    vectors: Avx512Bf16,
}

impl Amx {
    /// Name of the tier.
    pub const NAME: &'static str = "amx";

    /// The token, if the CPU has the instructions and the system grants the registers.
    #[must_use]
    pub fn try_new() -> Option<Self> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        let vectors = Avx512Bf16::try_new()?;
        USABLE.get_or_init(|| has_instructions() && is_allowed()).then_some(Self { vectors })
    }

    /// The token of the 8-bit dot product.
    #[inline(always)]
    #[must_use]
    pub fn vectors(self) -> Avx512Vnni {
        self.vectors.vnni()
    }

    /// The token of bf16 dot products.
    #[inline(always)]
    #[must_use]
    pub(super) fn bf16(self) -> Avx512Bf16 {
        self.vectors
    }

    /// Calls `f` with the tile registers of this thread, configured, and releases them afterwards.
    ///
    /// # Panics
    /// If `f` calls this: the inner call would release the tiles of the outer one.
    #[track_caller]
    pub fn with_tiles<R>(self, f: impl FnOnce(&Tiles) -> R) -> R {
        let tiles = Tiles::configured();
        f(&tiles)
    }
}

thread_local! {
    /// Whether a [`Tiles`] of this thread is alive.
    static TILES_IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// Claim of this thread's tile registers, one at a time; it stays on the thread.
#[derive(Debug)]
struct TilesClaim(PhantomData<*mut ()>);

impl TilesClaim {
    /// # Panics
    /// If this thread holds a claim already.
    #[track_caller]
    fn new() -> Self {
        assert!(!TILES_IN_USE.replace(true), "tiles: nested use on one thread");
        Self(PhantomData)
    }
}

impl Drop for TilesClaim {
    fn drop(&mut self) {
        TILES_IN_USE.set(false);
    }
}

/// Configured tile registers of the current thread; not [`Send`].
#[derive(Debug)]
pub struct Tiles {
    _claim: TilesClaim,
}

/// Operand of `ldtilecfg`: palette 1, eight registers of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Prefetches half a tile, eight cache lines.
macro_rules! prefetch {
    ($at:literal) => {
        concat!(
            "prefetcht0 [",
            $at,
            "]\n",
            "prefetcht0 [",
            $at,
            " + 64]\n",
            "prefetcht0 [",
            $at,
            " + 128]\n",
            "prefetcht0 [",
            $at,
            " + 192]\n",
            "prefetcht0 [",
            $at,
            " + 256]\n",
            "prefetcht0 [",
            $at,
            " + 320]\n",
            "prefetcht0 [",
            $at,
            " + 384]\n",
            "prefetcht0 [",
            $at,
            " + 448]",
        )
    };
}

impl Tiles {
    #[track_caller]
    fn configured() -> Self {
        let claim = TilesClaim::new();
        // SAFETY: only `Amx::with_tiles` calls this, and an `Amx` exists only where `try_new` found the
        // instructions; the configuration is valid and outlives the instruction.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack)) };
        Self { _claim: claim }
    }

    /// `sums[i][j] += inputs[i] · weights[j]` for 32 rows of each. Tile `t` of `inputs[0]` has values `32t..32t + 32` of
    /// rows `0..16`, that of `inputs[1]` of rows `16..32`; `weights[t]` has both tiles.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn accumulate(&self, sums: &mut TileSums, inputs: [&[Tile]; 2], weights: &[[Tile; 2]]) {
        let n = weights.len();
        check_eq!([inputs[0].len(), inputs[1].len()], [n, n], "tiles: lengths of the inputs");
        if n == 0 {
            return;
        }
        // SAFETY:
        // - A `Tiles` exists only between `ldtilecfg` and `tilerelease` on this thread; no Rust code uses tile registers.
        // - Each of the `n` rounds reads one tile of each input and two of weights; all have `n` by the assertion.
        // - The sums are four tiles of rows 128 bytes apart.
        // - Prefetches two rounds ahead may lie past the ends, where they do nothing.
        unsafe {
            asm!(
                "tileloadd tmm0, [{c} + {row} * 2]",
                "tileloadd tmm1, [{c} + {row} * 2 + 64]",
                "tileloadd tmm2, [{c} + {row} * 2 + 2048]",
                "tileloadd tmm3, [{c} + {row} * 2 + 2112]",
                "2:",
                "tileloadd tmm4, [{a0} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                prefetch!("{a0} + 2048"),
                prefetch!("{b} + 4096"),
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                prefetch!("{a0} + 2560"),
                prefetch!("{b} + 4608"),
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {row}]",
                prefetch!("{a1} + 2048"),
                prefetch!("{b} + 5120"),
                "tdpbf16ps tmm2, tmm5, tmm6",
                prefetch!("{a1} + 2560"),
                prefetch!("{b} + 5632"),
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, 1024",
                "add {a1}, 1024",
                "add {b}, 2048",
                "dec {n}",
                "jnz 2b",
                "tilestored [{c} + {row} * 2], tmm0",
                "tilestored [{c} + {row} * 2 + 64], tmm1",
                "tilestored [{c} + {row} * 2 + 2048], tmm2",
                "tilestored [{c} + {row} * 2 + 2112], tmm3",
                row = in(reg) 64usize,
                c = in(reg) sums.0.as_mut_ptr(),
                a0 = inout(reg) inputs[0].as_ptr() => _,
                a1 = inout(reg) inputs[1].as_ptr() => _,
                b = inout(reg) weights.as_ptr() => _,
                n = inout(reg) n => _,
                options(nostack),
            );
        }
    }
}

/// Pairs of bf16 values in a row of a tile.
const PAIRS: usize = 16;

impl Tiles {
    /// Rows and columns of `C` in four registers, and values along `K` per round.
    pub(crate) const SIDE: usize = 2 * PAIRS;

    /// `c = a · b`, or `c += a · b` with `accumulate`. Shapes, with `K` in pairs of bf16 values (the first in the low
    /// half): `a` = `[M, K]`, `b` = `[K, N]`, `c` = `[M, N]`.
    ///
    /// # Panics
    /// If `M` or `N` is no multiple of 32, `K` none of 16 or zero, or a length differs.
    pub(crate) fn multiply(
        &self,
        c: &mut [f32],
        a: &[u32],
        b: &[u32],
        [m, k, n]: [usize; 3],
        accumulate: bool,
    ) {
        check_multiple!(m, Self::SIDE, "tiles: rows");
        check_multiple!(n, Self::SIDE, "tiles: columns");
        assert!(
            k > 0 && k.is_multiple_of(PAIRS),
            "tiles: expected sums of a multiple of {PAIRS} pairs, got {k}"
        );
        check_eq!(
            [c.len(), a.len(), b.len()],
            [m * n, m * k, k * n],
            "tiles: lengths of c, a and b"
        );
        for row in (0..m).step_by(Self::SIDE) {
            for column in (0..n).step_by(Self::SIDE) {
                // SAFETY:
                // - A `Tiles` exists only between `ldtilecfg` and `tilerelease` on this thread; no Rust code uses tile
                //   registers.
                // - `c` has 32 rows from `row` and 32 columns from `column`; `a` the same rows and 16 pairs a round; `b`
                //   16 rows a round and the same columns. All lie inside by the assertions.
                unsafe {
                    let (c, a) = (c.as_mut_ptr().add(row * n + column), a.as_ptr().add(row * k));
                    asm!(
                        "test {accumulate:e}, {accumulate:e}",
                        "jz 3f",
                        "tileloadd tmm0, [{c0} + {width}]",
                        "tileloadd tmm1, [{c0} + {width} + 64]",
                        "tileloadd tmm2, [{c1} + {width}]",
                        "tileloadd tmm3, [{c1} + {width} + 64]",
                        "jmp 2f",
                        "3:",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{a0} + {depth}]",
                        "tileloadd tmm6, [{b} + {width}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{b} + {width} + 64]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        "tileloadd tmm5, [{a1} + {depth}]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7",
                        "add {a0}, 64",
                        "add {a1}, 64",
                        "add {b}, {step}",
                        "dec {rounds}",
                        "jnz 2b",
                        "tilestored [{c0} + {width}], tmm0",
                        "tilestored [{c0} + {width} + 64], tmm1",
                        "tilestored [{c1} + {width}], tmm2",
                        "tilestored [{c1} + {width} + 64], tmm3",
                        accumulate = in(reg) u32::from(accumulate),
                        c0 = in(reg) c,
                        c1 = in(reg) c.add(16 * n),
                        width = in(reg) size_of::<u32>() * n,
                        depth = in(reg) size_of::<u32>() * k,
                        step = in(reg) size_of::<u32>() * n * PAIRS,
                        a0 = inout(reg) a => _,
                        a1 = inout(reg) a.add(16 * k) => _,
                        b = inout(reg) b.as_ptr().add(column) => _,
                        rounds = inout(reg) k / PAIRS => _,
                        options(nostack),
                    );
                }
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `configured` ran `ldtilecfg` on this thread, and nothing uses the tiles any more.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Bits of `edx` of `cpuid` leaf 7: 22 is AMX-BF16, 24 AMX-TILE.
fn has_instructions() -> bool {
    const BITS: u32 = 1 << 22 | 1 << 24;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & BITS == BITS
}

/// Requests the tile registers from Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn is_allowed() -> bool {
    const ARCH_PRCTL: usize = 158;
    let result: isize;
    // SAFETY: the call accesses no memory of this process and only extends its permissions; the registers that a system
    // call overwrites, `rcx` and `r11`, are declared.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") 0x1023usize,
            in("rsi") 18usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Other systems are not supported.
#[cfg(not(target_os = "linux"))]
fn is_allowed() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::{Amx, TilesClaim};

    #[test]
    fn a_thread_claims_its_tiles_once() {
        let claim = TilesClaim::new();
        assert!(catch_unwind(|| drop(TilesClaim::new())).is_err());
        std::thread::spawn(|| drop(TilesClaim::new())).join().unwrap();
        drop(claim);
        drop(TilesClaim::new());
    }

    #[test]
    fn nested_use_of_tiles_panics() {
        let Some(amx) = Amx::try_new() else {
            println!("SKIPPED nested_use_of_tiles_panics: this CPU has no AMX");
            return;
        };
        let nested = || amx.with_tiles(|_| amx.with_tiles(|_| ()));
        assert!(catch_unwind(nested).is_err());
        amx.with_tiles(|_| ());
    }
}
