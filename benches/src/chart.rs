//! A report as an SVG picture: bars of engines beside each other, and of this engine beside the machine's peaks.

use plotters::prelude::*;

use crate::report::{Report, Row};
use crate::table::{duration, rate};

/// Pixels from one line to the next.
const LINE: usize = 20;
/// Pixels of the longest bar.
const BAR: usize = 360;
/// Pixels around everything.
const MARGIN: usize = 12;
/// Pixels of a character: the advance of a monospaced one is 0.6 of its size.
const WIDTH: usize = 8;
const FONT_SIZE: usize = 13;
/// Colours of engines, told apart by every kind of colour vision (Okabe and Ito 2008).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
];
/// The background of bars that have an end.
const TRACK: RGBColor = RGBColor(228, 228, 228);

/// Draws a report.
///
/// # Errors
/// If the drawing library refuses.
pub fn draw(report: &Report) -> Result<String, Box<dyn std::error::Error>> {
    let lines = lines(report);
    let chars = |f: &dyn Fn(&Line) -> usize| lines.iter().map(f).max().unwrap_or(0);
    let label_width = chars(&|line| line.bar().map_or(0, |bar| bar.label.chars().count())) * WIDTH;
    let value_width = chars(&|line| line.bar().map_or(0, |bar| bar.value.chars().count())) * WIDTH;
    let title_width = chars(&|line| line.title().map_or(0, |title| title.chars().count())) * WIDTH;
    let bars_at = MARGIN + label_width + WIDTH;
    let width = (bars_at + BAR + WIDTH + value_width).max(MARGIN + title_width) + MARGIN;
    let height = 2 * MARGIN + LINE * lines.len();
    let mut svg = String::new();
    {
        let area =
            SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let style = ("monospace", FONT_SIZE as i32).into_font().color(&BLACK);
        let text = |x: usize, y: usize, text: &str| {
            let at = (x as i32, (y + (LINE - FONT_SIZE) / 2) as i32);
            area.draw_text(text, &style, at)
        };
        let rectangle = |x: usize, y: usize, width: usize, colour: RGBColor| {
            let corners =
                [(x, y + 3), (x + width, y + LINE - 3)].map(|(x, y)| (x as i32, y as i32));
            area.draw(&Rectangle::new(corners, colour.filled()))
        };
        for (i, line) in lines.iter().enumerate() {
            let y = MARGIN + i * LINE;
            match line {
                Line::Title(title) => text(MARGIN, y, title)?,
                Line::Bar(bar) => {
                    text(MARGIN, y, &bar.label)?;
                    if bar.has_end {
                        rectangle(bars_at, y, BAR, TRACK)?;
                    }
                    let length = (bar.part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
                    rectangle(bars_at, y, length.max(1), bar.colour)?;
                    text(bars_at + BAR + WIDTH, y, &bar.value)?;
                }
            }
        }
        area.present()?;
    }
    Ok(svg)
}

enum Line {
    Title(String),
    Bar(Bar),
}

struct Bar {
    label: String,
    /// Share of the longest bar.
    part: f64,
    /// Whether the longest bar means something: a limit.
    has_end: bool,
    colour: RGBColor,
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

/// Lines of the picture, top to bottom.
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
    fn svg_is_well_formed_and_bars_tell_the_ratio() {
        let mut report = example();
        report.rows[0].stage = "a < b & \"c\"".to_owned();
        report.rows[1].stage = report.rows[0].stage.clone();
        let svg = draw(&report).unwrap();
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
        assert!(svg.contains("llama.cpp"), "{svg}");
        let width = |colour: &str| -> Vec<usize> {
            let bars = svg.lines().filter(|line| line.contains(colour));
            let width = |line: &str| {
                let value = line.split_once("width=\"").unwrap().1;
                value[..value.find('"').unwrap()].parse().unwrap()
            };
            bars.map(width).collect()
        };
        // Twice as fast, and at half and a quarter of the peak.
        assert_eq!(width("#0072B2"), [BAR, BAR / 2]);
        assert_eq!(width("#E69F00"), [BAR / 2, BAR / 4]);
    }

    #[test]
    fn reports_without_rows_can_be_drawn() {
        let report = Report { rows: Vec::new(), ..example() };
        assert!(draw(&report).unwrap().ends_with("</svg>\n"));
    }
}
