//! Drawing as PNG (ISO/IEC 15948): 8-bit RGB rows, filter 0, one zlib stream.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use super::{BLACK, Canvas, Colour, LINE};

const WEIGHT: FontWeight = FontWeight::Regular;
const HEIGHT: RasterHeight = RasterHeight::Size16;
/// Pixels of a character.
pub(super) const WIDTH: usize = get_raster_width(WEIGHT, HEIGHT);

/// A picture in memory.
pub(super) struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Pixels {
    /// All white.
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self { width, height, rgb: vec![255; 3 * width * height] }
    }

    /// The pixel at a place that is on the picture.
    fn at(&mut self, x: usize, y: usize) -> Option<&mut [u8]> {
        if x >= self.width || y >= self.height {
            return None;
        }
        let start = 3 * (y * self.width + x);
        self.rgb.get_mut(start..start + 3)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        let mut rows = Vec::new();
        for row in self.rgb.chunks_exact(3 * self.width) {
            rows.push(0);
            rows.extend_from_slice(row);
        }
        let mut header = Vec::new();
        for size in [self.width, self.height] {
            header.extend_from_slice(&(size as u32).to_be_bytes());
        }
        // 8 bits, RGB, then the only compression, filter and interlacing that matter here.
        header.extend_from_slice(&[8, 2, 0, 0, 0]);
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        push_chunk(&mut file, b"IHDR", &header);
        push_chunk(&mut file, b"IDAT", &compressed(&rows));
        push_chunk(&mut file, b"IEND", &[]);
        file
    }
}

impl Canvas for Pixels {
    fn rectangle(
        &mut self,
        (left, top): (usize, usize),
        (width, height): (usize, usize),
        colour: Colour,
    ) {
        for y in top..top + height {
            for x in left..left + width {
                if let Some(pixel) = self.at(x, y) {
                    pixel.copy_from_slice(&colour);
                }
            }
        }
    }

    fn text(&mut self, (left, top): (usize, usize), text: &str) {
        let top = top + (LINE - HEIGHT.val()) / 2;
        for (i, c) in text.chars().enumerate() {
            let Some(glyph) =
                get_raster(c, WEIGHT, HEIGHT).or_else(|| get_raster('?', WEIGHT, HEIGHT))
            else {
                continue;
            };
            for (dy, row) in glyph.rows().enumerate() {
                for (dx, &ink) in row.iter().enumerate() {
                    let Some(pixel) = self.at(left + i * WIDTH + dx, top + dy) else { continue };
                    for (value, black) in pixel.iter_mut().zip(BLACK) {
                        let (value_now, ink) = (u16::from(*value), u16::from(ink));
                        let mixed = (value_now * (255 - ink) + u16::from(black) * ink) / 255;
                        *value = mixed as u8;
                    }
                }
            }
        }
    }
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail")
}

/// Length, name, content, checksum of name and content.
fn push_chunk(file: &mut Vec<u8>, name: &[u8; 4], content: &[u8]) {
    let mut checksum = Crc::new();
    checksum.update(name);
    checksum.update(content);
    file.extend_from_slice(&(content.len() as u32).to_be_bytes());
    file.extend_from_slice(name);
    file.extend_from_slice(content);
    file.extend_from_slice(&checksum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;

    use super::*;

    fn number(bytes: &[u8]) -> usize {
        u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize
    }

    #[test]
    fn files_have_valid_chunks_and_the_pixels_that_were_drawn() {
        let mut pixels = Pixels::new(60, 30);
        pixels.rectangle((50, 10), (100, 2), [1, 2, 3]);
        pixels.text((0, 0), "I☃");
        let file = pixels.finish();
        assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
        let (mut rest, mut names, mut data) = (&file[8..], Vec::new(), Vec::new());
        while !rest.is_empty() {
            let len = number(rest);
            let (chunk, sum) = rest[4..].split_at(4 + len);
            let mut checksum = Crc::new();
            checksum.update(chunk);
            assert_eq!(number(sum), checksum.sum() as usize);
            names.push(chunk[..4].to_vec());
            match &chunk[..4] {
                b"IHDR" => assert_eq!((number(&chunk[4..]), number(&chunk[8..])), (60, 30)),
                b"IDAT" => data = chunk[4..].to_vec(),
                _ => {}
            }
            rest = &sum[4..];
        }
        assert_eq!(names, [b"IHDR".to_vec(), b"IDAT".to_vec(), b"IEND".to_vec()]);
        let mut rows = Vec::new();
        ZlibDecoder::new(&data[..]).read_to_end(&mut rows).unwrap();
        assert_eq!(rows.len(), 30 * (1 + 3 * 60));
        let pixel = |x: usize, y: usize| &rows[y * 181 + 1 + 3 * x..][..3];
        assert_eq!((pixel(50, 10), pixel(59, 11)), (&[1, 2, 3][..], &[1, 2, 3][..]));
        assert_eq!(pixel(50, 12), [255, 255, 255]);
        let ink = |columns: std::ops::Range<usize>| {
            (0..LINE).any(|y| columns.clone().any(|x| pixel(x, y)[0] < 100))
        };
        assert!(ink(0..WIDTH) && ink(WIDTH..2 * WIDTH) && !ink(2 * WIDTH..50));
    }
}
