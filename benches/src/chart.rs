//! A report as a picture: bars of engines beside each other, and of this engine beside the machine's limits.
//!
//! `svg` and `png` draw rectangles and text; what is drawn where is decided here.

mod png;
mod svg;

use std::path::Path;

use crate::report::{Report, Row};
use crate::table::{duration, rate};
use png::Pixels;
use svg::Svg;

/// Pixels from one line to the next.
const LINE: usize = 20;
/// Pixels of the longest bar.
const BAR: usize = 360;
/// Pixels around everything.
const MARGIN: usize = 12;
/// Colours of engines, told apart by every kind of colour vision (Okabe and Ito 2008).
const COLOURS: [Colour; 5] =
    [[0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [213, 94, 0]];
/// What stands behind bars that have an end.
const TRACK: Colour = [228, 228, 228];
const BLACK: Colour = [0, 0, 0];

/// Red, green, blue.
type Colour = [u8; 3];

/// Something that can be drawn on. Coordinates are pixels from the top left.
trait Canvas {
    /// A filled rectangle.
    fn rectangle(&mut self, at: (usize, usize), size: (usize, usize), colour: Colour);
    /// A line of text, `at` the top left corner of a line's height.
    fn text(&mut self, at: (usize, usize), text: &str);
}

/// A picture's file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Scalable, with text.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// The format that a path's extension names.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "svg" => Some(Self::Svg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }
}

/// Draws a report.
#[must_use]
pub fn draw(report: &Report, format: Format) -> Vec<u8> {
    let lines = lines(report);
    let chars = |f: &dyn Fn(&Line) -> usize| lines.iter().map(f).max().unwrap_or(0);
    let label_width = chars(&|line| line.bar().map_or(0, |bar| bar.label.chars().count())) * WIDTH;
    let value_width = chars(&|line| line.bar().map_or(0, |bar| bar.value.chars().count())) * WIDTH;
    let title_width = chars(&|line| line.title().map_or(0, |title| title.chars().count())) * WIDTH;
    let bars_at = MARGIN + label_width + WIDTH;
    let width = (bars_at + BAR + WIDTH + value_width).max(MARGIN + title_width) + MARGIN;
    let height = 2 * MARGIN + LINE * lines.len();
    let mut svg = Svg::new(width, height);
    let mut pixels = Pixels::new(width, height);
    let canvas: &mut dyn Canvas = match format {
        Format::Svg => &mut svg,
        Format::Png => &mut pixels,
    };
    for (i, line) in lines.iter().enumerate() {
        let y = MARGIN + i * LINE;
        match line {
            Line::Title(title) => canvas.text((MARGIN, y), title),
            Line::Bar(bar) => {
                canvas.text((MARGIN, y), &bar.label);
                if bar.has_end {
                    canvas.rectangle((bars_at, y + 3), (BAR, LINE - 6), TRACK);
                }
                let length = (bar.part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
                canvas.rectangle((bars_at, y + 3), (length.max(1), LINE - 6), bar.colour);
                canvas.text((bars_at + BAR + WIDTH, y), &bar.value);
            }
        }
    }
    match format {
        Format::Svg => svg.finish(),
        Format::Png => pixels.finish(),
    }
}

/// Pixels of a character.
const WIDTH: usize = png::WIDTH;

enum Line {
    Title(String),
    Bar(Bar),
}

struct Bar {
    label: String,
    /// Of the longest bar.
    part: f64,
    /// Whether the longest bar means something: a limit.
    has_end: bool,
    colour: Colour,
    value: String,
}

impl Line {
    fn bar(&self) -> Option<&Bar> {
        if let Self::Bar(bar) = self { Some(bar) } else { None }
    }

    fn title(&self) -> Option<&str> {
        if let Self::Title(title) = self { Some(title) } else { None }
    }
}

/// What stands below each other.
fn lines(report: &Report) -> Vec<Line> {
    let machine = &report.machine;
    let title = |text: String| Line::Title(text);
    let mut lines = vec![title(format!("{}, {} cores", machine.cpu, machine.cores))];
    let engines = engines(report);
    let colour = |row: &Row| {
        let at = engines.iter().position(|name| *name == row.engine).unwrap_or(0);
        COLOURS[at % COLOURS.len()]
    };
    let value = |row: &Row| {
        let noise = if row.is_stable() { "" } else { " ~" };
        format!("{}  {}{noise}", rate(row.per_second, row.unit), duration(row.p50_s))
    };
    for (i, row) in report.rows.iter().enumerate() {
        let first = report.rows.iter().position(|other| other.is_same_measurement(row));
        let group: Vec<&Row> =
            report.rows.iter().filter(|other| other.is_same_measurement(row)).collect();
        if first != Some(i) || group.len() < 2 {
            continue;
        }
        let fastest = group.iter().map(|row| row.p50_s).fold(f64::INFINITY, f64::min);
        let name = [&row.model, &row.work, &row.stage].map(String::as_str);
        let name: Vec<&str> = name.into_iter().filter(|part| !part.is_empty()).collect();
        lines.push(title(String::new()));
        lines.push(title(format!("{}, {} threads", name.join(", "), row.threads)));
        lines.extend(group.iter().map(|row| {
            Line::Bar(Bar {
                label: row.engine.clone(),
                part: fastest / row.p50_s,
                has_end: false,
                colour: colour(row),
                value: value(row),
            })
        }));
    }
    let bounded: Vec<(&Row, f64)> =
        report.rows.iter().filter_map(|row| Some((row, row.of_peak?))).collect();
    if !bounded.is_empty() {
        lines.push(title(String::new()));
        lines.push(title("part of what the machine can do at most".to_owned()));
    }
    lines.extend(bounded.into_iter().map(|(row, part)| {
        let mut label =
            if row.model.is_empty() { String::new() } else { format!("{}: ", row.model) };
        label.push_str(&row.stage);
        if row.engine != "stonechat" {
            label = format!("{label} ({})", row.engine);
        }
        let percent = 100.0 * part;
        let label = format!("{label}, {} threads", row.threads);
        let value = format!("{percent:3.0} %  {}", value(row));
        Line::Bar(Bar { label, part, has_end: true, colour: colour(row), value })
    }));
    lines
}

/// Names of the engines, this one first.
fn engines(report: &Report) -> Vec<&str> {
    let mut names = vec!["stonechat"];
    for row in &report.rows {
        if !names.contains(&row.engine.as_str()) {
            names.push(&row.engine);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn formats_are_named_by_extensions() {
        assert_eq!(Format::of(Path::new("a/b.SVG")), Some(Format::Svg));
        assert_eq!(Format::of(Path::new("b.png")), Some(Format::Png));
        assert_eq!(Format::of(Path::new("b.gif")), None);
        assert_eq!(Format::of(Path::new("b")), None);
    }

    #[test]
    fn svg_is_well_formed_and_bars_tell_the_ratio() {
        let mut report = example();
        report.rows[0].stage = "a < b & \"c\"".to_owned();
        report.rows[1].stage = report.rows[0].stage.clone();
        let svg = String::from_utf8(draw(&report, Format::Svg)).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.iter().any(|text| text.contains("a < b & \"c\"")), "{texts:?}");
        assert!(texts.contains(&"llama.cpp"), "{texts:?}");
        let width = |colour: &str| -> Vec<usize> {
            let bars = document.descendants().filter(|node| node.attribute("fill") == Some(colour));
            bars.map(|node| node.attribute("width").unwrap().parse().unwrap()).collect()
        };
        // Twice as fast, and at half and a quarter of the peak.
        assert_eq!(width("#0072b2"), [BAR, BAR / 2]);
        assert_eq!(width("#e69f00"), [BAR / 2, BAR / 4]);
    }

    #[test]
    fn reports_without_rows_can_be_drawn() {
        let report = Report { rows: Vec::new(), ..example() };
        let svg = String::from_utf8(draw(&report, Format::Svg)).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
        assert!(!draw(&report, Format::Png).is_empty());
    }
}
