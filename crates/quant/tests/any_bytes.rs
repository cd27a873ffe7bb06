//! Any bytes are blocks: unpacking and multiplying them never panics, whatever the scales.

use proptest::prelude::*;
use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::{Cpu, DType, Isa, ThreadTeam};
use stonechat_quant::{
    ActivationBuffer, Error, PackedMatmul, PackedMatrix, QuantMatrix, dequantize_rows, gemv_blocks,
    is_float, matmul_packed, needs_importance, quantize_rows,
};

fn floats() -> Vec<DType> {
    DType::ALL.iter().copied().filter(|&dtype| is_float(dtype)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_unpack_and_multiply(
        dtype in prop::sample::select(floats()),
        bytes in prop::collection::vec(any::<u8>(), 2 * 292 * 8),
        x in prop::collection::vec(prop::num::f32::ANY, 512),
    ) {
        let k = 512;
        let bytes = &bytes[..2 * dtype.bytes_for(k).unwrap().min(bytes.len() / 2)];
        let n_values = bytes.len() / dtype.block_bytes() * dtype.block_len();
        for isa in Isa::available() {
            let mut out = vec![0.0; n_values];
            let n_bytes = dtype.bytes_for(n_values).unwrap();
            dequantize_rows(isa, dtype, &bytes[..n_bytes], &mut out).unwrap();
            if !QuantMatrix::holds(dtype) {
                continue;
            }
            let mut activations = ActivationBuffer::new();
            let cpu = Cpu { isa, threads: ThreadTeam::new(1).unwrap() };
            activations.quantize(&cpu, MatRef::packed(&x, 1, k));
            let (out, epilogue) = (MatMut::packed(&mut out[..2], 1, 2), Epilogue::default());
            if let Some(mut w) = PackedMatrix::zeroed(isa, dtype, 2, k).unwrap() {
                w.pack(&cpu, 0, bytes);
                let product = PackedMatmul { out, w: &w, rows: 0..2, epilogue };
                matmul_packed(&cpu, &activations, [Some(product)]);
            } else {
                let w = QuantMatrix::new(dtype, 2, k, bytes).unwrap();
                gemv_blocks(&cpu, out, &activations, w, epilogue);
            }
        }
    }

    #[test]
    fn any_values_pack_and_unpack(
        dtype in prop::sample::select(floats()),
        x in prop::collection::vec(prop::num::f32::ANY, 512),
    ) {
        let mut bytes = vec![0; dtype.bytes_for(512).unwrap()];
        let packed = quantize_rows(dtype, &x, 512, &mut bytes);
        if needs_importance(dtype) {
            prop_assert_eq!(packed, Err(Error::NeedsImportance { dtype }));
            return Ok(());
        }
        packed.unwrap();
        let mut out = vec![0.0; 512];
        dequantize_rows(Isa::available()[0], dtype, &bytes, &mut out).unwrap();
    }
}
