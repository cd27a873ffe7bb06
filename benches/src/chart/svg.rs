//! Drawing as SVG.

use std::fmt::Write;

use super::{Canvas, Colour, LINE, WIDTH};

/// A document that grows.
pub(super) struct Svg(String);

impl Svg {
    /// White, so that black text shows on any page.
    pub(super) fn new(width: usize, height: usize) -> Self {
        // The advance of a monospaced character is 0.6 of its size.
        let size = WIDTH as f64 / 0.6;
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"{size:.1}\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        ))
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.push_str("</svg>\n");
        self.0.into_bytes()
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes whatever is written.
        let _ = writeln!(self.0, "{line}");
    }
}

impl Canvas for Svg {
    fn rectangle(
        &mut self,
        (x, y): (usize, usize),
        (width, height): (usize, usize),
        [r, g, b]: Colour,
    ) {
        self.line(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{r:02x}{g:02x}{b:02x}\"/>"
        ));
    }

    fn text(&mut self, (x, y): (usize, usize), text: &str) {
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let baseline = y + LINE * 3 / 4;
        self.line(format_args!(
            "<text x=\"{x}\" y=\"{baseline}\" xml:space=\"preserve\">{escaped}</text>"
        ));
    }
}
