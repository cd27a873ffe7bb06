//! Flags about inputs and results.

use std::path::PathBuf;
use std::str::FromStr;

use stonechat::audio::Channels;

use crate::headings::{INPUT, OUTPUT};

/// Flags about inputs and results.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// mix (mono), split (speakers) or a number from 1
    ///
    /// split transcribes each channel by itself, merges the segments by time and labels them.
    #[arg(long, value_name = "WHICH", default_value = "mix", help_heading = INPUT)]
    pub(super) channels: ChannelsArg,
    /// Transcribe only these START,END pairs (seconds)
    ///
    /// The last END may be absent.
    #[arg(long, value_name = "S,S,...", value_delimiter = ',', help_heading = INPUT)]
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
    #[arg(short = 'f', long, value_name = "FORMAT", value_delimiter = ',', help_heading = OUTPUT)]
    pub(super) output_format: Vec<String>,
    /// Directory to save the results; - is standard output
    ///
    /// By default, results go beside each input. The text of a single input goes to standard output
    /// if neither a format nor a directory is given.
    #[arg(short, long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub(super) output_dir: Option<PathBuf>,
    /// Output file path of a single input, without file extension
    #[arg(long, value_name = "FILE", conflicts_with = "output_dir", help_heading = OUTPUT)]
    pub(super) output_file: Option<PathBuf>,
    /// Transcribe inputs again whose results are newer than they are
    #[arg(long, help_heading = OUTPUT)]
    pub(super) overwrite: bool,
    /// Write the status of each input to a JSON file
    ///
    /// - is standard output.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(super) summary: Option<PathBuf>,
    /// Do not show a progress bar
    #[arg(long, help_heading = OUTPUT)]
    pub(super) no_progress: bool,
}

/// Values of `--channels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChannelsArg(pub(super) Channels);

impl FromStr for ChannelsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mix" => Ok(Self(Channels::Mix)),
            "split" => Ok(Self(Channels::Each)),
            _ => match text.parse() {
                Ok(number) if number > 0 => Ok(Self(Channels::One(number))),
                _ => Err("expected mix, split or the number of a channel, from 1".to_owned()),
            },
        }
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

    use super::ChannelsArg;

    #[test]
    fn channels_have_names_and_numbers() {
        assert_eq!("mix".parse(), Ok(ChannelsArg(Channels::Mix)));
        assert_eq!("split".parse(), Ok(ChannelsArg(Channels::Each)));
        assert_eq!("2".parse(), Ok(ChannelsArg(Channels::One(2))));
        for wrong in ["0", "-1", "left", "99999", ""] {
            assert!(wrong.parse::<ChannelsArg>().is_err(), "{wrong}");
        }
    }
}
