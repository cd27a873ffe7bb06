//! Packed bytes and unpacked values against GGML's own, bit for bit.
//!
//! `test-data/golden/quant.bin` was written by `quant.py` beside it, which calls GGML's library on
//! the rows that are made here again.

use stonechat_compute::{DType, Isa};
use stonechat_quant::{dequantize_rows, quantize_rows};

const GOLDEN: &[u8] = include_bytes!("../../../test-data/golden/quant.bin");
const K: usize = 512;

const FORMATS: [(DType, &[usize]); 18] = [
    (DType::Q4_0, &[0]),
    (DType::Q4_1, &[0, 2]),
    (DType::Q5_0, &[0]),
    (DType::Q5_1, &[0, 2]),
    (DType::Q8_0, &[0]),
    (DType::Q8_1, &[0, 2]),
    (DType::Q2K, &[80, 82]),
    (DType::Q3K, &[108]),
    (DType::Q4K, &[0, 2]),
    (DType::Q5K, &[0, 2]),
    (DType::Q6K, &[208]),
    // The upper half of its f32 scale: clearing the same bit keeps it finite.
    (DType::Q8K, &[2]),
    (DType::Iq4Nl, &[0]),
    (DType::Iq4Xs, &[0]),
    (DType::Mxfp4, &[]),
    (DType::Nvfp4, &[]),
    (DType::Tq1_0, &[52]),
    (DType::Tq2_0, &[64]),
];

/// Packed with an importance matrix: only unpacked here.
const CODE_BOOKS: [(DType, usize); 7] = [
    (DType::Iq1S, 0),
    // The last quarter of its scale: the same bit again.
    (DType::Iq1M, 54),
    (DType::Iq2Xxs, 0),
    (DType::Iq2Xs, 0),
    (DType::Iq2S, 0),
    (DType::Iq3Xxs, 0),
    (DType::Iq3S, 0),
];
const CODE_BOOK_ROWS: usize = 3;
const CODE_BOOK_BLOCKS: usize = 256;

struct Lcg(u32);

impl Lcg {
    fn next24(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn unit(&mut self) -> [f32; K] {
        std::array::from_fn(|_| self.next24() as f32 / 8_388_608.0 - 1.0)
    }
}

fn rows() -> Vec<(&'static str, [f32; K])> {
    let mut g = Lcg(1);
    let uniform = g.unit();
    let [a, b, c, d] = std::array::from_fn(|_| g.unit());
    let bell = std::array::from_fn(|i| (((a[i] + b[i]) + c[i]) + d[i]) * 0.5);
    let mut outliers = g.unit().map(|v| v * 2f32.powi(-6));
    outliers.iter_mut().step_by(37).for_each(|v| *v *= 512.0);
    let mut patches = g.unit();
    patches[32..64].fill(0.0);
    patches[80..96].fill(0.25);
    patches[128..192].iter_mut().for_each(|v| *v *= 2f32.powi(-12));
    patches[300..420].fill(0.0);
    patches[310] = -3.0;
    vec![
        ("uniform", uniform),
        ("bell", bell),
        ("outliers", outliers),
        ("patches", patches),
        ("zeros", [0.0; K]),
        ("constant", [0.375; K]),
        ("negative constant", [-1.5; K]),
        ("f16 subnormal scales", g.unit().map(|v| v * 2f32.powi(-20))),
        ("f32 subnormals", g.unit().map(|v| v * f32::from_bits(1 << 19))),
        ("positive", g.unit().map(|v| v.abs() + 0.5)),
        ("negative", g.unit().map(|v| -v.abs())),
        ("large", g.unit().map(|v| v * 1000.0)),
    ]
}

fn fnv1a(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes());
    bytes
        .fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Reader(&'static [u8]);

impl Reader {
    fn take(&mut self, n: usize) -> &'static [u8] {
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        head
    }

    fn hash(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }
}

/// Any blocks, but with finite f16 fields at `halves`.
fn random_blocks(seed: u32, dtype: DType, n_blocks: usize, halves: &[usize]) -> Vec<u8> {
    let mut g = Lcg(seed);
    let n_bytes = n_blocks * dtype.block_bytes();
    let mut raw: Vec<u8> = (0..n_bytes).map(|_| (g.next24() >> 16) as u8).collect();
    for block in raw.chunks_exact_mut(dtype.block_bytes()) {
        halves.iter().for_each(|&offset| block[offset + 1] &= 0xbf);
    }
    raw
}

/// Compares what `bytes` unpack to with the golden hash, on every instruction set.
fn check_unpacked(dtype: DType, name: &str, bytes: &[u8], hash: u64, failures: &mut Vec<String>) {
    for isa in Isa::available() {
        let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
        dequantize_rows(isa, dtype, bytes, &mut out).expect("whole blocks");
        if fnv1a(&out) != hash {
            failures.push(format!("{dtype}, {name}, {isa}: unpacked values differ"));
        }
    }
}

#[test]
fn blocks_are_ggmls_bit_for_bit() {
    let mut golden = Reader(GOLDEN);
    let failures = &mut Vec::new();
    for (i, (dtype, halves)) in FORMATS.into_iter().enumerate() {
        for (name, row) in rows() {
            let expected = golden.take(dtype.bytes_for(K).unwrap());
            let mut packed = vec![0; expected.len()];
            quantize_rows(dtype, &row, K, &mut packed).unwrap();
            let n = packed.iter().zip(expected).filter(|(a, b)| a != b).count();
            if n > 0 {
                failures.push(format!("{dtype}, {name}: {n} packed bytes differ"));
            }
            check_unpacked(dtype, name, expected, golden.hash(), failures);
        }
        let raw = random_blocks(100 + i as u32, dtype, 2048 / dtype.block_len(), halves);
        check_unpacked(dtype, "random bytes", &raw, golden.hash(), failures);
    }
    for (i, (dtype, half)) in CODE_BOOKS.into_iter().enumerate() {
        for (name, _) in &rows()[..CODE_BOOK_ROWS] {
            let packed = golden.take(dtype.bytes_for(K).unwrap());
            check_unpacked(dtype, name, packed, golden.hash(), failures);
        }
        let raw = random_blocks(200 + i as u32, dtype, CODE_BOOK_BLOCKS, &[half]);
        check_unpacked(dtype, "random bytes", &raw, golden.hash(), failures);
    }
    assert!(golden.0.is_empty(), "{} bytes of the golden file are left", golden.0.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
