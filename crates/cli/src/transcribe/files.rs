//! Flags about inputs and results.

use std::path::PathBuf;

use stonechat::audio::Channels;

use crate::completions::output_formats;
use crate::headings::{INPUT, OUTPUT};

/// Flags about inputs and results.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// mix (mono), split (speakers) or a number from 1
    ///
    /// split transcribes each channel by itself, merges the segments by time and labels them.
    #[arg(long, value_name = "WHICH", default_value = "mix", value_parser = channels, help_heading = INPUT)]
    pub(super) channels: Channels,
    /// Number of the audio track, from 1 [default: the one that the file marks, else the first]
    ///
    /// stonechat inspect lists the tracks of a file.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = INPUT)]
    pub(super) audio_track: Option<u16>,
    /// Transcribe only these START,END pairs (seconds)
    ///
    /// M:SS and H:MM:SS are times, too. The last END may be absent.
    #[arg(long, value_name = "S,S,...", value_delimiter = ',', value_parser = clip_time, help_heading = INPUT)]
    pub(super) clip_timestamps: Vec<f64>,
    /// Time offset in milliseconds
    #[arg(long, value_name = "MS", conflicts_with = "clip_timestamps", help_heading = INPUT)]
    pub(super) offset_t: Option<u32>,
    /// Duration of audio to process in milliseconds; 0 is all
    #[arg(long, value_name = "MS", conflicts_with = "clip_timestamps", help_heading = INPUT)]
    pub(super) duration: Option<u32>,
    /// txt, srt, vtt, tsv, json, json-full, lrc, csv or all [default: txt]
    ///
    /// Several are separated by commas. all is openai-whisper's five: txt, vtt, srt, tsv and json;
    /// json-full has whisper.cpp's fields.
    #[arg(short = 'f', long, value_name = "FORMAT", value_delimiter = ',', help_heading = OUTPUT, add = output_formats())]
    pub(super) output_format: Vec<String>,
    /// Directory to save the results; - is standard output
    ///
    /// For a single input also a file, whose name ends with that of a format (out.srt). By default, results go beside each
    /// input. The text of a single input goes to standard output if neither a format nor a directory is given.
    #[arg(short, long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub(super) output_dir: Option<PathBuf>,
    /// Output file path of a single input, without file extension
    #[arg(long, value_name = "FILE", conflicts_with = "output_dir", help_heading = OUTPUT)]
    pub(super) output_file: Option<PathBuf>,
    /// Transcribe inputs again whose results are up to date
    ///
    /// Also replaces files that were edited or are no results of the input, which are refused
    /// otherwise.
    #[arg(long, help_heading = OUTPUT)]
    pub(super) overwrite: bool,
    /// Write the status of each input to a JSON file
    ///
    /// - is standard output.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(super) summary: Option<PathBuf>,
    /// Print each segment with its times, as whisper-cli does
    ///
    /// `[00:00:00.000 --> 00:00:02.500]   Text` on standard output, unless another format goes there. Results are written
    /// to files with --output-format or --output-dir only. --max-line-width and the like are the layout of the lines.
    #[arg(long, help_heading = OUTPUT)]
    pub(super) print_timestamps: bool,
    /// Do not show a progress bar
    #[arg(long, help_heading = OUTPUT)]
    pub(super) no_progress: bool,
}

/// Parses seconds, or a time of the form M:SS or H:MM:SS.
fn clip_time(text: &str) -> Result<f64, String> {
    let parse = || {
        let mut parts: Vec<&str> = text.split(':').map(str::trim).collect();
        let last = parts.pop()?;
        let seconds: f64 = last.parse().ok().filter(|seconds: &f64| seconds.is_finite())?;
        let whole = parts.iter().map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()?;
        let is_plain = last.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let minutes = match whole[..] {
            [] => return Some(seconds),
            [minutes] => f64::from(minutes),
            [hours, minutes] if minutes < 60 => f64::from(hours) * 60.0 + f64::from(minutes),
            _ => return None,
        };
        (is_plain && seconds < 60.0).then_some(minutes * 60.0 + seconds)
    };
    parse().ok_or_else(|| "expected seconds, M:SS or H:MM:SS".to_owned())
}

/// Parses `--channels`.
fn channels(text: &str) -> Result<Channels, String> {
    match text {
        "mix" => Ok(Channels::Mix),
        "split" => Ok(Channels::Each),
        _ => match text.parse() {
            Ok(number) if number > 0 => Ok(Channels::One(number)),
            _ => Err("expected mix, split or the number of a channel, from 1".to_owned()),
        },
    }
}

impl FileArgs {
    /// Clips to transcribe, in the form of [`Options::clip_timestamps`](stonechat::whisper::Options).
    pub(super) fn clips(&self) -> Vec<f64> {
        let seconds = |ms: u32| f64::from(ms) / 1000.0;
        match (self.offset_t, self.duration) {
            (None, None) => self.clip_timestamps.clone(),
            (from, length) => {
                let from = from.map_or(0.0, seconds);
                let end = length.filter(|&ms| ms > 0).map(|ms| from + seconds(ms));
                [Some(from), end].into_iter().flatten().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stonechat::audio::Channels;

    use super::{channels, clip_time};

    #[test]
    fn clip_times_are_seconds_or_clock_times() {
        for (text, seconds) in
            [("1.5", 1.5), ("0:05", 5.0), ("90:00.5", 5400.5), ("1:02:03", 3723.0), ("-1", -1.0)]
        {
            assert_eq!(clip_time(text), Ok(seconds), "{text}");
        }
        for wrong in
            ["", ":", "1:", ":1", "0:60", "1:60:00", "1:1:1:1", "-1:00", "1:-5", "nan", "inf"]
        {
            assert!(clip_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn channels_have_names_and_numbers() {
        assert_eq!(channels("mix"), Ok(Channels::Mix));
        assert_eq!(channels("split"), Ok(Channels::Each));
        assert_eq!(channels("2"), Ok(Channels::One(2)));
        for wrong in ["0", "-1", "left", "99999", ""] {
            assert!(channels(wrong).is_err(), "{wrong}");
        }
    }
}
