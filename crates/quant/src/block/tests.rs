//! Tests of code shared by formats.

use super::definition::{Half, pack_scales_mins, truncate, unpack_scales_mins};

#[test]
fn every_half_widens_exactly() {
    for bits in 0..=u16::MAX {
        let (got, expected) = (Half(bits.to_le_bytes()).to_f32(), half::f16::from_bits(bits));
        let expected = expected.to_f32();
        assert!(
            got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
            "{bits:#x}: got {got}, expected {expected}"
        );
    }
}

#[test]
fn six_bit_scales_round_trip() {
    for shift in 0..64u8 {
        let scales = std::array::from_fn(|j| (7 * j as u8 + shift) & 63);
        let mins = std::array::from_fn(|j| (11 * j as u8 + 2 * shift) & 63);
        assert_eq!(unpack_scales_mins(&pack_scales_mins(&scales, &mins)), (scales, mins));
    }
}

#[test]
fn truncation_is_that_of_x86() {
    let cases = [(1.9, 1), (-1.9, -1), (2e9, 2_000_000_000), (3e9, i32::MIN), (-3e9, i32::MIN)];
    for (x, expected) in cases {
        assert_eq!(truncate(x), expected);
    }
    assert_eq!(truncate(f32::NAN), i32::MIN);
}
