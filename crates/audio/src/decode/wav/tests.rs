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
fn blocks_join() {
    // Several blocks of a mono and of a stereo file, the last of them in part.
    let values: Vec<i16> = (0..50_001).map(|i| (i * 7919 % 65_536 - 32_768) as i16).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let scaled: Vec<f32> = values.iter().map(|&v| f32::from(v) / 32_768.0).collect();
    let file = |n_channels| {
        let data = chunk(b"data", bytes.len() as u32, &bytes);
        riff(0, &[format(1, n_channels, 16_000, 16), data])
    };
    check(file(1), &scaled);
    let means: Vec<f32> = scaled.as_chunks::<2>().0.iter().map(|[l, r]| (l + r) * 0.5).collect();
    check(file(2), &means);
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
fn extensible_headers_name_the_encoding_again() {
    // Valid bits, channel mask, then the sub-format's GUID, which starts with the tag.
    let extensible = |sub_tag: u16, bits: u16, valid: u16| {
        let plain = format(0xFFFE, 1, 16_000, bits);
        let mut body = plain[8..].to_vec();
        body.extend(22u16.to_le_bytes());
        body.extend(valid.to_le_bytes());
        body.extend(4u32.to_le_bytes());
        body.extend(sub_tag.to_le_bytes());
        body.extend([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71]);
        chunk(b"fmt ", 40, &body)
    };
    let float = chunk(b"data", 4, &0.25f32.to_le_bytes());
    check(riff(0, &[extensible(3, 32, 32), float]), &[0.25]);
    // 20 valid bits in 24 are the upper ones.
    let wide = chunk(b"data", 3, &[0x00, 0x00, 0x20]);
    check(riff(0, &[extensible(1, 24, 20), wide]), &[0.25]);
}

#[test]
fn rf64_keeps_its_size_in_another_chunk() {
    let mut ds64 = [0u8; 28];
    ds64[8..16].copy_from_slice(&4u64.to_le_bytes());
    let data = chunk(b"data", u32::MAX, &[0, 64, 0, 192, b'L', b'I', b'S', b'T']);
    let chunks = [chunk(b"ds64", 28, &ds64), format(1, 1, 16_000, 16), data].concat();
    check([chunk(b"RF64", u32::MAX, b"WAVE"), chunks].concat(), &[0.5, -0.5]);
}

#[test]
fn channels_are_averaged() {
    let frames: Vec<u8> =
        [8192i16, -16_384, 16_384, 16_384].iter().flat_map(|x| x.to_le_bytes()).collect();
    let data = chunk(b"data", 8, &frames);
    check(riff(0, &[format(1, 2, 16_000, 16), data.clone()]), &[-0.125, 0.5]);
    check(riff(0, &[format(1, 4, 16_000, 16), data]), &[0.1875]);
}

#[test]
fn broken_headers_say_what_was_expected() {
    let data = chunk(b"data", 4, &[0; 4]);
    let message = |chunks: &[Vec<u8>]| decode_bytes(riff(0, chunks)).unwrap_err().to_string();
    for (fmt, want) in [
        (format(1, 0, 16_000, 16), "expected at least 1 channel, got 0"),
        (format(1, 1, 16_000, 64), "got 8 bytes of format 1"),
        (format(1, 1, 0, 16), "expected a sample rate of 1000 to 768000 Hz, got 0 Hz"),
        (chunk(b"fmt ", 4, &[1, 0, 1, 0]), "expected a `fmt ` chunk of 16 bytes, got 4"),
        (chunk(b"LIST", 0, b""), "expected a `fmt ` chunk, found none"),
    ] {
        let message = message(&[fmt, data.clone()]);
        assert!(message.ends_with(want), "{message}");
    }
    let message = message(&[format(1, 1, 16_000, 16)]);
    assert!(message.ends_with("expected a `data` chunk, found none"), "{message}");
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
