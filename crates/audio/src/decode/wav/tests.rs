use crate::decode_bytes;

fn chunk(id: &[u8; 4], size: u32, body: &[u8]) -> Vec<u8> {
    [&id[..], &size.to_le_bytes(), body].concat()
}

fn format(tag: u16, n_channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let frame = n_channels * bits / 8;
    let mut body = Vec::new();
    body.extend(tag.to_le_bytes());
    body.extend(n_channels.to_le_bytes());
    body.extend(rate.to_le_bytes());
    body.extend((rate * u32::from(frame)).to_le_bytes());
    body.extend(frame.to_le_bytes());
    body.extend(bits.to_le_bytes());
    chunk(b"fmt ", 16, &body)
}

fn riff(size: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    [chunk(b"RIFF", size, b"WAVE"), chunks.concat()].concat()
}

fn pcm16(n: i16) -> Vec<u8> {
    (0..n).flat_map(|i| (i * 64).to_le_bytes()).collect()
}

#[track_caller]
fn check(bytes: Vec<u8>, want: &[f32]) {
    assert_eq!(decode_bytes(bytes).unwrap().samples, want);
}

#[test]
fn sizes_that_writers_leave_wrong() {
    let body = pcm16(100);
    let want: Vec<f32> = (0..100).map(|i| i as f32 * 64.0 / 32768.0).collect();
    let fmt = format(1, 1, 16_000, 16);
    for (riff_size, data_size) in [(236, 200), (u32::MAX, u32::MAX), (0, 0), (236, 5000)] {
        check(riff(riff_size, &[fmt.clone(), chunk(b"data", data_size, &body)]), &want);
    }
    check(riff(36, &[fmt.clone(), chunk(b"data", 0, b"")]), &[]);
    check(riff(236, &[fmt, chunk(b"data", 200, &body[..51])]), &want[..25]);
}

#[test]
fn chunks_in_any_order_with_or_without_pad_bytes() {
    let (fmt, data) = (format(1, 1, 16_000, 16), chunk(b"data", 4, &[0, 64, 0, 192]));
    let want = [0.5, -0.5];
    check(riff(0, &[data.clone(), fmt.clone()]), &want);
    check(riff(0, &[chunk(b"LIST", 3, b"abc\0"), fmt.clone(), data.clone()]), &want);
    check(riff(0, &[chunk(b"LIST", 3, b"abc"), fmt, data]), &want);
}

#[test]
fn every_sample_encoding() {
    let make = |tag, bits, body: &[u8]| {
        riff(0, &[format(tag, 1, 16_000, bits), chunk(b"data", body.len() as u32, body)])
    };
    check(make(1, 8, &[128, 192, 0]), &[0.0, 0.5, -1.0]);
    check(make(1, 24, &[0, 0, 64, 0, 0, 128]), &[0.5, -1.0]);
    check(make(1, 32, &(1i32 << 30).to_le_bytes()), &[0.5]);
    check(make(3, 32, &[0.25f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat()), &[0.25, 0.0]);
    check(make(3, 64, &0.25f64.to_le_bytes()), &[0.25]);
    check(make(7, 8, &[0xFF, 0x80, 0x00]), &[0.0, 32124.0 / 32768.0, -32124.0 / 32768.0]);
    check(make(6, 8, &[0xD5, 0xAA, 0x2A]), &[8.0 / 32768.0, 32256.0 / 32768.0, -32256.0 / 32768.0]);
}
