//! Packed bytes and unpacked values against GGML's own, bit for bit.
//!
//! `test-data/golden/quant.bin` was written by `quant.py` beside it, which calls GGML's library on
//! the rows that are made here again.

use stonechat_compute::{DType, Isa};
use stonechat_quant::{dequantize_rows, quantize_rows};

const GOLDEN: &[u8] = include_bytes!("../../../test-data/golden/quant.bin");
const K: usize = 512;

const FORMATS: [(DType, &[usize]); 12] = [
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
];

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

#[test]
fn blocks_are_ggmls_bit_for_bit() {
    let mut golden = Reader(GOLDEN);
    let mut failures = Vec::new();
    for (i, (dtype, halves)) in FORMATS.into_iter().enumerate() {
        for (name, row) in rows() {
            let expected = golden.take(dtype.bytes_for(K).unwrap());
            let mut packed = vec![0; expected.len()];
            quantize_rows(dtype, &row, K, &mut packed).unwrap();
            let n = packed.iter().zip(expected).filter(|(a, b)| a != b).count();
            if n > 0 {
                failures.push(format!("{dtype}, {name}: {n} packed bytes differ"));
            }
            let expected_hash = golden.hash();
            for isa in Isa::available() {
                let mut out = vec![0.0; K];
                dequantize_rows(isa, dtype, expected, &mut out).unwrap();
                if fnv1a(&out) != expected_hash {
                    failures.push(format!("{dtype}, {name}, {isa}: unpacked values differ"));
                }
            }
        }
        let mut g = Lcg(100 + i as u32);
        let mut raw: Vec<u8> =
            (0..dtype.bytes_for(2048).unwrap()).map(|_| (g.next24() >> 16) as u8).collect();
        for block in raw.chunks_exact_mut(dtype.block_bytes()) {
            halves.iter().for_each(|&offset| block[offset + 1] &= 0xbf);
        }
        let expected_hash = golden.hash();
        for isa in Isa::available() {
            let mut out = vec![0.0; 2048];
            dequantize_rows(isa, dtype, &raw, &mut out).unwrap();
            if fnv1a(&out) != expected_hash {
                failures.push(format!("{dtype}, random bytes, {isa}: unpacked values differ"));
            }
        }
    }
    assert!(golden.0.is_empty(), "{} bytes of the golden file are left", golden.0.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
